"""Settling in groups: outcomes that come in while one group is being written form the next.

What a handler has finished is never thrown away. A settlement that cannot be written with its group leaves it, so that it holds up
no other, and is written by itself: where its row is locked it stands in the line for it, and where the ledger refuses it it is
tried again after longer and longer pauses, until it is written or its fence is gone. See ADR 14.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from redrive.core.decide import Settlement
from redrive.core.failure import describe_error
from redrive.core.task import Claim, ClaimLocked, ClaimLost, TaskId, Unwritten
from redrive.engine.patience import Patience
from redrive.engine.tally import KindTally
from redrive.events import AttemptEnded, Event, SettleFailed, SettleLost
from redrive.ports import Ledger

WRITERS = 2
"""Groups written at once: while the store writes one, the next is made ready and sent."""
FILL_SECONDS = 0.02
"""How long a group that is not full is kept for outcomes that are about to come: what is claimed together is then written together."""
LATE_WRITERS = 2
"""How many of those that left their groups are written at once: each may hold a connection while it stands in line."""
LINE_SECONDS = 2.0
"""How long a settlement stands in the line for its row before others have their turn; with many of them less."""
LINE_SECONDS_MIN = 0.05
LATE_MAX = 1000
"""How many may have left their groups before they count as unwritten, and so hold up the next claims."""
PAUSE_FIRST_SECONDS = 0.1
LOCKED_PAUSE_SECONDS_MAX = 1.0
REFUSED_PAUSE_SECONDS_MAX = 60.0
REFUSED_OFTEN = 5
"""How often a settlement is refused before nobody waits for it any more: a worker that stops leaves it to its lease."""


class Settler:
    """Writes settlements of one worker. A lone outcome is written at once, many share a commit."""

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
        tally: KindTally | None = None,
        more_to_come: Callable[[], bool] = lambda: False,
    ) -> None:
        """`more_to_come` says whether others end as soon as the loop has its next turn."""
        self._ledger = ledger
        self._worker = worker
        self._patience = patience
        self._tell = tell
        self._batch = batch
        self._observed = observed
        self._plan = plan
        self._tally = tally
        self._more_to_come = more_to_come
        self._pending: list[Settlement] = []
        self._writing: list[list[Settlement]] = []
        self._late: dict[asyncio.Task[None], _Late] = {}
        self._line = asyncio.Semaphore(LATE_WRITERS)
        self._regrouped: set[tuple[TaskId, UUID]] = set()
        self._filled = asyncio.Event()
        self._written = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def unwritten(self) -> int:
        """How many settlements are not durable yet; a few that left their groups are not counted."""
        late = max(0, len(self._late) - LATE_MAX)
        return len(self._pending) + sum(len(group) for group in self._writing) + late

    @property
    def claims(self) -> list[Claim]:
        """The claims whose settlements are not durable yet."""
        late = [one.settlement for one in self._late.values()]
        return [settlement.claim for group in (*self._writing, self._pending, late) for settlement in group]

    def put(self, settlement: Settlement, *, perhaps: Settlement | None = None) -> None:
        """Take an outcome to be written soon, unless a commit without an answer has written `perhaps`."""
        if perhaps is not None:
            self._write_later(_Late(settlement, doubtful=True, perhaps=perhaps))
            return
        self._pending.append(settlement)
        if len(self._pending) == 1:
            self._filled.set()
            self._idle.clear()

    async def run(self) -> None:
        """Write for ever, `WRITERS` groups at once."""
        try:
            async with asyncio.TaskGroup() as writers:
                for _ in range(WRITERS):
                    writers.create_task(self._write_for_ever())
        finally:
            late = list(self._late)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _write_for_ever(self) -> None:
        while True:
            await self._filled.wait()
            await self._fill()
            group, self._pending = self._pending[: self._batch], self._pending[self._batch :]
            if not self._pending:
                self._filled.clear()
            if not group:  # another writer was quicker
                continue
            self._writing.append(group)
            await self.write(group)
            self._writing.remove(group)
            self._written.set()
            self._look_around()

    async def _fill(self) -> None:
        """Let the group grow while runs that never wait stand in line: twice as many in a group, and half as many commits."""
        ends = time.monotonic() + FILL_SECONDS
        while self._more_to_come() and 0 < len(self._pending) < self._batch and time.monotonic() < ends:  # noqa: ASYNC110 - a turn of the loop is what it waits for
            await asyncio.sleep(0)

    def _look_around(self) -> None:
        """Whether there is anything left that is worth waiting for."""
        if self._pending or self._writing or any(one.refused < REFUSED_OFTEN for one in self._late.values()):
            self._idle.clear()
        else:
            self._idle.set()

    async def written(self) -> None:
        """Come back when another group is written."""
        self._written.clear()
        await self._written.wait()

    async def flushed(self) -> None:
        """Come back when everything is written, but for what the ledger has refused again and again."""
        await self._idle.wait()

    async def write(self, group: list[Settlement]) -> None:
        """Write one group, however long the ledger is away. What cannot be written with it is written later, by itself."""
        try:
            unwritten, _ = await self._settle(group)
        except Exception as error:
            # One that cannot be written must not keep the others from it.
            if len(group) == 1:
                self._tell([SettleFailed(self._ledger.name, group[0], describe_error(error))])
            for one in group:
                self._write_later(_Late(one, refused=1 if len(group) == 1 else 0, doubtful=True))
            return
        self._conclude(group, unwritten)

    def _conclude(self, group: Sequence[Settlement], unwritten: Sequence[Unwritten]) -> None:
        """Follow what was written, and come back to what is locked."""
        if unwritten:
            locked = {_key(one.claim) for one in unwritten if isinstance(one, ClaimLocked)}
            for one in group:
                # What only buries a lost claim is left to the next keeper: the owner may stand in the line with its outcome.
                if _key(one.claim) in locked and one.claim.abandoned is None:
                    self._write_later(_Late(one))
            group = [one for one in group if _key(one.claim) not in locked]
        if self._regrouped:
            self._regrouped.difference_update([_key(one.claim) for one in group])
        if self._plan is not None:
            delay = min((one.delay for one in group if one.delay is not None), default=None)
            if delay is not None:
                self._plan(delay)
        if self._tally is not None:
            self._tally.add(_without(group, unwritten) if unwritten else group)
        if self._observed or unwritten:
            self._announce(group, {_key(one.claim) for one in unwritten})

    def _announce(self, group: Sequence[Settlement], lost: set[tuple[TaskId, UUID]]) -> None:
        """Tell the observers what was written and what was refused by the fence."""
        name = self._ledger.name
        self._tell(
            [SettleLost(name, one) if lost and _key(one.claim) in lost else AttemptEnded(name, one) for one in group]
        )

    async def _settle(
        self, group: Sequence[Settlement], *, wait: timedelta | None = None, doubtful: bool = False
    ) -> tuple[list[Unwritten], list[Claim]]:
        """Ask the ledger: what is not written, and what was written before by a call whose answer was never heard."""

        async def ask() -> list[Unwritten]:
            nonlocal doubtful
            try:
                return await self._ledger.settle(group, worker=self._worker, wait=wait)
            except Exception:
                doubtful = True
                raise

        unwritten = await self._patience.until_answered(ask)
        lost = [one.claim for one in unwritten if isinstance(one, ClaimLost)] if doubtful else []
        if not lost:
            return unwritten, []
        before = await self._patience.until_answered(lambda: self._ledger.settled_by(lost, self._worker))
        written = {_key(claim) for claim in before}
        return [one for one in unwritten if _key(one.claim) not in written], before

    # --- one by one -------------------------------------------------------------------------------------------------

    def _write_later(self, late: "_Late") -> None:
        task = asyncio.get_running_loop().create_task(self._insist(late), name="redrive-settle-late")
        self._late[task] = late
        task.add_done_callback(self._late_ended)
        self._look_around()

    def _late_ended(self, task: asyncio.Task[None]) -> None:
        del self._late[task]
        self._written.set()
        self._look_around()

    async def _insist(self, late: "_Late") -> None:
        """Write one settlement by itself, until it is written or its fence is gone."""
        group, asked = [late.settlement], 0
        if late.refused:
            await asyncio.sleep(_pause(late.refused, REFUSED_PAUSE_SECONDS_MAX))
        while True:
            async with self._line:
                turns = max(1.0, len(self._late) / LATE_WRITERS)
                wait = timedelta(seconds=max(LINE_SECONDS_MIN, LINE_SECONDS / turns))
                began = time.monotonic()
                late.waits = False
                try:
                    unwritten, before = await self._settle(group, wait=wait, doubtful=late.doubtful)
                except Exception as error:
                    late.refused += 1
                    late.doubtful = True
                    self._tell([SettleFailed(self._ledger.name, late.settlement, describe_error(error))])
                    self._look_around()
                    pause = _pause(late.refused, REFUSED_PAUSE_SECONDS_MAX)
                else:
                    if not any(isinstance(one, ClaimLocked) for one in unwritten):
                        break
                    asked += 1
                    pause = _pause(asked, LOCKED_PAUSE_SECONDS_MAX)
            late.waits = True
            # Who has stood in the line has paused already, and stands there again at once.
            await asyncio.sleep(max(0.0, pause - (time.monotonic() - began)))
        late.waits = False
        if before and late.perhaps is not None:
            group = [late.perhaps]
        self._conclude(group, unwritten)
        self._regroup()

    def _regroup(self) -> None:
        """A lock has gone, and often it was one for many rows: those that wait for their turn are tried together, once."""
        for task, late in self._late.items():
            key = _key(late.settlement.claim)
            if late.waits and not late.doubtful and key not in self._regrouped:
                late.waits = False
                task.cancel()
                self._regrouped.add(key)
                self.put(late.settlement)


class _Late:
    """A settlement that left its group."""

    __slots__ = ("doubtful", "perhaps", "refused", "settlement", "waits")

    def __init__(
        self,
        settlement: Settlement,
        *,
        refused: int = 0,
        doubtful: bool = False,
        perhaps: Settlement | None = None,
    ) -> None:
        self.settlement = settlement
        self.perhaps = perhaps
        self.refused = refused
        self.doubtful = doubtful
        self.waits = True
        """Whether it waits for its turn: nothing of it is under way."""


def _without(group: Sequence[Settlement], unwritten: Sequence[Unwritten]) -> list[Settlement]:
    left = {_key(one.claim) for one in unwritten}
    return [one for one in group if _key(one.claim) not in left]


def _key(claim: Claim) -> tuple[TaskId, UUID]:
    return claim.task.id, claim.claim_id


def _pause(tries: int, most_seconds: float) -> float:
    """Longer each time, never in step with others."""
    ceiling = min(most_seconds, PAUSE_FIRST_SECONDS * 2 ** min(tries - 1, 10))
    return random.uniform(ceiling / 2, ceiling)
