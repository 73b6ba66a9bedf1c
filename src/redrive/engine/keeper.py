"""Keeping house: claims that were never settled, and tasks that ended long ago."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType

from redrive.core.decide import decide
from redrive.core.durations import format_duration
from redrive.core.failure import describe_error
from redrive.core.outcome import LeaseExpired
from redrive.core.states import State
from redrive.core.task import Claim
from redrive.engine.effects import settle_losses
from redrive.engine.gate_looks import Discovery
from redrive.engine.handlers import Handlers
from redrive.engine.kinds import Kinds
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import LedgerAwayError
from redrive.events import Event, TasksPruned
from redrive.ports import Ledger

EVERY_SECONDS = 1.0
LEASE = timedelta(seconds=1)
"""How long the keeper itself holds what it settles: a write takes milliseconds, and keepers are killed too."""
RECLAIM_MAX = 500
PRUNE_MAX = 1000
HISTORY_EVERY_SECONDS = 3600.0
RECOUNT_EVERY_SECONDS = 60.0
"""How often what gates hold is counted anew."""
NOTHING: Mapping[State, timedelta] = MappingProxyType({})

_log = logging.getLogger("redrive")


class Keeper:
    """Settles expired claims as `LeaseExpired` by the same `decide` as the worker, and prunes what may go."""

    def __init__(
        self,
        ledger: Ledger,
        handlers: Handlers,
        settler: Settler,
        patience: Patience,
        tell: Callable[[list[Event]], None],
        *,
        held: Callable[[], Iterable[Claim]] = tuple,
        lease: timedelta = LEASE,
        retention: Mapping[State, timedelta] = NOTHING,
        prune_every: timedelta = timedelta(hours=1),
    ) -> None:
        self._ledger = ledger
        self._handlers = handlers
        self._kinds = Kinds(ledger, handlers)
        self._settler = settler
        self._patience = patience
        self._tell = tell
        self._held = held
        self._lease = lease
        self._retention = retention
        self._prune_every = prune_every
        self._warned: dict[State, str] = {}
        self.discovery = Discovery(ledger)

    async def run(self) -> None:
        """Keep for ever."""
        prune_at = recount_at = history_at = time.monotonic()
        while True:
            asked_at = time.monotonic()
            try:
                await self.settle_expired()
                if await self._ledger.uses_gates():
                    recount = time.monotonic() >= recount_at
                    await self.discovery.look()
                    await self._ledger.keep_gates(recount=recount)
                    recount_at = time.monotonic() + RECOUNT_EVERY_SECONDS if recount else recount_at
                if self._retention and time.monotonic() >= prune_at:
                    await self.prune()
                    prune_at = time.monotonic() + self._prune_every.total_seconds()
                if time.monotonic() >= history_at:
                    await self._ledger.keep_history()
                    history_at = time.monotonic() + HISTORY_EVERY_SECONDS
                self._patience.back(asked_at=asked_at)
            except Exception as error:  # housekeeping goes on tomorrow whatever happened today
                self._patience.away(error, asked_at=asked_at)
            _heed_cancelling()
            await asyncio.sleep(EVERY_SECONDS * random.uniform(0.8, 1.2))

    async def keep_once(self) -> None:
        """Keep once, for a run that is over before the loop would come round. Here errors are raised."""
        await self.settle_expired()
        if await self._ledger.uses_gates(anew=True):
            await self._ledger.discover()
            await self._ledger.keep_gates(recount=True)
        await self._ledger.keep_history()
        await self.prune()

    async def settle_expired(self) -> int:
        """Settle all claims whose lease ran out; how many there were."""
        settled = 0
        while True:
            self._kinds.forget()
            kinds = await self._kinds.to_claim()
            claims = await self._ledger.reclaim(RECLAIM_MAX, LEASE, kinds=kinds)
            group = []
            lost = await self._lost(claims)
            stops = {(one.task_id, one.claim_id): one for one in await self._ledger.stops_asked()} if lost else {}
            for claim in lost:
                handler = self._handlers.find(claim.task.kind)
                assert handler is not None, "a ledger hands out the kinds that it was asked for"
                stop = stops.get((claim.task.id, claim.claim_id))
                group.append(decide(claim, LeaseExpired() if stop is None else stop.outcome(), handler.policy))
            if group:
                if self._handlers.has_effects:
                    group = await settle_losses(self._ledger, self._handlers, group)
                await self._settler.write(group)
            settled += len(group)
            if len(claims) < RECLAIM_MAX:
                return settled

    async def _lost(self, claims: list[Claim]) -> list[Claim]:
        """Those of the claims that this worker does not hold itself.

        What it runs, or has run and not written yet, is not lost: its lease ran out because the process stood still, the
        ledger was away or the clock jumped. It is held on to, and not run a second time beside the first.
        """
        held = {(claim.task.id, claim.claim_id) for claim in self._held()} if claims else set()
        own = [claim for claim in claims if (claim.task.id, claim.claim_id) in held]
        if own:
            await self._ledger.extend(own, self._lease)
            claims = [claim for claim in claims if (claim.task.id, claim.claim_id) not in held]
        return claims

    async def prune(self) -> int:
        """Delete ended tasks older than their state's retention; how many there were.

        What cannot be deleted is said once, and tried again with the next round.
        """
        pruned = 0
        for state, span in self._retention.items():
            try:
                pruned += await self._prune(state, span)
            except LedgerAwayError:
                raise
            except Exception as error:
                _heed_cancelling()
                self._warn(state, describe_error(error))
        return pruned

    async def _prune(self, state: State, span: timedelta) -> int:
        """The same of one state, in small batches."""
        pruned, amount = 0, PRUNE_MAX
        while amount == PRUNE_MAX:
            amount = await self._ledger.prune([state], span, limit=PRUNE_MAX)
            pruned += amount
            if amount:
                self._tell([TasksPruned(self._ledger.name, amount)])
            await asyncio.sleep(0)
        return pruned

    def _warn(self, state: State, error: str) -> None:
        if self._warned.get(state) != error:
            self._warned[state] = error
            every = format_duration(self._prune_every)
            _log.warning(
                "%s: tasks that are %s are not pruned: %s (tried every %s)", self._ledger.name, state, error, every
            )


def _heed_cancelling() -> None:
    """Whoever cancelled this task is not to wait for ever because something made another error of it."""
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        raise asyncio.CancelledError
