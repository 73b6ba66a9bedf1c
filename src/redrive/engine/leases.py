"""The leases of what a worker holds: extended in groups at half time, so that a claim lasts as long as its run and no longer."""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from redrive.core.task import ClaimLocked, ClaimLost, TaskId
from redrive.engine.held import Held, HeldRun
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.ports import Ledger


class Leases:
    """Keeps alive what one worker runs, and what it has run and not written yet. A run whose claim is lost is stopped."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        running: Iterable[HeldRun],
        settler: Settler,
        patience: Patience,
        *,
        lease: timedelta,
        batch: int,
    ) -> None:
        self._ledger = ledger
        self._worker = worker
        self._running = running
        self._settler = settler
        self._patience = patience
        self._lease = lease
        self._batch = batch
        self._extending = asyncio.Lock()

    async def run(self) -> None:
        """Extend for ever."""
        half = self._lease.total_seconds() / 2
        unwritten: dict[tuple[TaskId, UUID], Held] = {}
        while True:
            await asyncio.sleep(half / 4)
            now = time.monotonic()
            # What has ended and is still not written when this comes round again is kept alive too.
            keys = {(claim.task.id, claim.claim_id): claim for claim in self._settler.claims}
            unwritten = {key: unwritten.get(key) or Held(claim, now - half * 0.8) for key, claim in keys.items()}
            held: list[Held] = [*self._running, *unwritten.values()]
            async with self._extending:
                old = [one for one in held if now - one.extended_at >= half and not one.lost]
                for start in range(0, len(old), self._batch):
                    await self._extend(old[start : start + self._batch])

    async def leave_out(self, one: Held) -> None:
        """Do not extend it any more, also not by a request that is under way when this comes back."""
        async with self._extending:
            one.extended_at = math.inf

    async def _extend(self, group: Sequence[Held]) -> None:
        now = time.monotonic()
        try:
            rest = await self._ledger.extend([one.claim for one in group], self._lease)
            # A handler's own transaction may have written its settlement just now, and with it taken the fence away.
            lost = [one.claim for one in rest if isinstance(one, ClaimLost)]
            written = await self._ledger.settled_by(lost, self._worker)
        except Exception as error:  # tried again soon, well before the lease ends
            self._patience.away(error, asked_at=now)
            return
        self._patience.back(asked_at=now)
        why = {(one.claim.task.id, one.claim.claim_id): one for one in rest}
        for claim in written:
            del why[claim.task.id, claim.claim_id]
        for one in group:
            match why.get((one.claim.task.id, one.claim.claim_id)):
                case ClaimLocked():
                    pass  # not extended and not lost: tried again soon
                case None:
                    one.extended_at = now
                case ClaimLost():
                    one.extended_at = now
                    if isinstance(one, HeldRun) and one in self._running:
                        one.lost = True
                        one.stop()
