"""Settling in groups: outcomes that come in while one group is being written form the next."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from redrive.core.decide import Settlement
from redrive.core.failure import describe_error
from redrive.core.task import Claim, ClaimLost
from redrive.engine.patience import Patience
from redrive.events import AttemptEnded, Event, SettleFailed, SettleLost
from redrive.ports import Ledger

WRITERS = 2
"""Groups written at once: while the store writes one, the next is made ready and sent."""


class Settler:
    """Writes settlements of one worker. There is no timer: a lone outcome is written at once, many share a commit."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        patience: Patience,
        tell: Callable[[list[Event]], None],
        *,
        batch: int,
        observed: bool = True,
        plan: Callable[[timedelta], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._worker = worker
        self._patience = patience
        self._tell = tell
        self._batch = batch
        self._observed = observed
        self._plan = plan
        self._pending: list[Settlement] = []
        self._writing: list[list[Settlement]] = []
        self._filled = asyncio.Event()
        self._written = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def unwritten(self) -> int:
        """How many settlements are not durable yet."""
        return len(self._pending) + sum(len(group) for group in self._writing)

    @property
    def claims(self) -> list[Claim]:
        """The claims whose settlements are not durable yet."""
        return [settlement.claim for group in (*self._writing, self._pending) for settlement in group]

    def put(self, settlement: Settlement) -> None:
        """Take an outcome to be written soon."""
        self._pending.append(settlement)
        if len(self._pending) == 1:
            self._filled.set()
            self._idle.clear()

    async def run(self) -> None:
        """Write for ever, `WRITERS` groups at once."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._write_for_ever())

    async def _write_for_ever(self) -> None:
        while True:
            await self._filled.wait()
            group, self._pending = self._pending[: self._batch], self._pending[self._batch :]
            if not self._pending:
                self._filled.clear()
            if not group:  # another writer was quicker
                continue
            self._writing.append(group)
            await self.write(group)
            self._writing.remove(group)
            self._written.set()
            if not self._pending and not self._writing:
                self._idle.set()

    async def written(self) -> None:
        """Come back when another group is written."""
        self._written.clear()
        await self._written.wait()

    async def flushed(self) -> None:
        """Come back when everything is written."""
        await self._idle.wait()

    async def write(self, group: list[Settlement]) -> None:
        """Write one group, however long the ledger is away."""
        try:
            lost = await self._patience.until_answered(lambda: self._ledger.settle(group, worker=self._worker))
        except Exception as error:
            if len(group) == 1:
                # Its lease runs out and the keeper charges the try: visible, and never an endless loop.
                self._tell([SettleFailed(self._ledger.name, group[0], describe_error(error))])
                return
            for one in group:  # one that cannot be written must not keep the others from it
                await self.write([one])
            return
        if self._plan is not None:
            delay = min((one.delay for one in group if one.delay is not None), default=None)
            if delay is not None:
                self._plan(delay)
        if self._observed or lost:
            self.announce(group, lost)

    def announce(self, group: list[Settlement], lost: list[ClaimLost]) -> None:
        """Tell the observers what was written and what was refused."""
        gone = {(one.claim.task.id, one.claim.claim_id) for one in lost}
        name = self._ledger.name
        self._tell(
            [
                SettleLost(name, one)
                if gone and (one.claim.task.id, one.claim.claim_id) in gone
                else AttemptEnded(name, one)
                for one in group
            ]
        )
