"""Who carries operations on: any process that works or serves. It gathers sets, and asks each operation for its next round.

All that must be right is in the transactions of `Operations`; what is lost with a carrier is at most the time until the next one comes.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from redrive.core.operation import OperationState
from redrive.core.states import Act, State
from redrive.errors import RedriveError, TooSlowError
from redrive.events import Event, OperationChanged, TasksChanged
from redrive.operator.operations import Moved, Operation, read_asked
from redrive.operator.ports import Operations, OperatorLedger, TaskPages
from redrive.ports import Filter, Page

AWAY = (RedriveError, OSError, TimeoutError)
"""A store that cannot be reached, or says no: whoever works on it tells of that."""
IDLE = timedelta(seconds=2)
"""How often a process without an operation looks whether there is one: a look at an index that is empty."""
GATHERED_AT_ONCE = 1000
WAIT_MIN = timedelta(milliseconds=5)
LOOK_ROUNDS = 4
"""While it releases, what has ended is looked at in one of so many rounds: that is most of what a round costs."""
FORGET_ROUNDS = 1800
"""After so many idle looks, about an hour, what is old is forgotten."""

_log = logging.getLogger("redrive")


class CarriedLane(Protocol):
    """What a carrier asks of a lane."""

    async def ledger(self) -> OperatorLedger: ...

    async def pages(self, *, limited: bool = True) -> TaskPages: ...

    def tell(self, events: list[Event]) -> None: ...


class Carrier:
    """Carries the operations of some lanes on, round by round."""

    def __init__(self, operations: Operations, lanes: Callable[[], Mapping[str, CarriedLane]], name: str) -> None:
        self._operations = operations
        self._lanes = lanes
        self._holder = f"{name} {uuid4()}"
        self._followed: dict[str, int] = {}
        """For each operation the position behind which to look next at what is out."""
        self._releases: dict[str, int] = {}
        """For each operation how many rounds in a row have released something."""
        self._in_trouble: set[str] = set()
        """Operations whose trouble has been logged."""
        self._idle_rounds = 0

    async def run(self) -> None:
        """Carry on until cancelled. A store that is away is told of by whoever works on it, and waited for here."""
        failed = False
        try:
            while True:
                try:
                    wait = await self.round()
                    failed = False
                except AWAY:
                    wait = IDLE
                except Exception:  # it may be well again later, and nobody else would notice that this loop ended
                    if not failed:
                        _log.exception("operations could not be carried on; it is tried again")
                    wait, failed = IDLE, True
                # Never in step with other processes where nothing presses.
                factor = random.uniform(0.8, 1.2) if wait >= IDLE else 1.0
                await asyncio.sleep(max(wait, WAIT_MIN).total_seconds() * factor)
        finally:
            if self._followed:
                await asyncio.shield(self._let_go())

    async def _let_go(self) -> None:
        try:
            async with asyncio.timeout(5):
                await self._operations.let_go(self._holder)
        except AWAY:
            pass  # it ends by itself, soon

    async def round(self) -> timedelta:
        """One round of each operation; how long to wait for the next one."""
        lanes = self._lanes()
        waits = [
            await self._carried(operation, lanes[operation.ledger])
            for operation in await self._operations.open()
            if operation.ledger in lanes
        ]
        if not waits:
            self._followed.clear()
            self._releases.clear()
            self._in_trouble.clear()
            self._idle_rounds += 1
            if self._idle_rounds % FORGET_ROUNDS == 0:
                await self._operations.forget()
        return min(waits, default=IDLE)

    async def _carried(self, operation: Operation, lane: CarriedLane) -> timedelta:
        """How long to wait for its next round. One that cannot be carried on holds no other one up."""
        try:
            wait = await self._carry(operation, lane)
        except AWAY:
            return IDLE
        except Exception:
            if operation.id not in self._in_trouble:
                _log.exception("operation %s could not be carried on; it is tried again", operation.id)
            self._in_trouble.add(operation.id)
            return IDLE
        self._in_trouble.discard(operation.id)
        return wait

    async def _carry(self, operation: Operation, lane: CarriedLane) -> timedelta:
        if operation.state is OperationState.GATHERING:
            return await self._gather(operation, lane)
        if operation.state is OperationState.UNAPPROVED or (
            operation.state is not OperationState.RUNNING and not operation.tally.out
        ):
            return IDLE  # a person is asked
        releases = self._releases.get(operation.id, 0)
        after = self._followed.get(operation.id, -1) if releases % LOOK_ROUNDS == 0 else None
        try:
            moved = await self._operations.advance(operation.id, await lane.ledger(), self._holder, after=after)
        except TooSlowError:  # somebody has locked one of its tasks: come back
            return IDLE
        if after is not None:
            self._followed[operation.id] = moved.followed
        self._releases[operation.id] = releases + 1 if moved.released else 0
        _tell(lane, moved)
        return moved.wait

    async def _gather(self, operation: Operation, lane: CarriedLane) -> timedelta:
        """Store the next page of the set."""
        ledger, pages = await lane.ledger(), await lane.pages(limited=False)
        asked = read_asked(operation.asked, operation.until, ledger.read_id)
        if asked.ids is None:
            page = await pages.ids(asked, cursor=operation.cursor, limit=GATHERED_AT_ONCE)
        else:
            # The ids say it all: what they were chosen by is kept for people.
            page = await pages.ids(
                Filter(state=State.DEAD, ids=asked.ids, until=asked.until), limit=len(asked.ids) or 1
            )
            page = Page(items=page.items)
        gathered = await self._operations.gather(operation.id, page, after=operation.cursor)
        if gathered.state is not operation.state:
            lane.tell(
                [OperationChanged(gathered.ledger, gathered.id, gathered.state, gathered.why, gathered.changed_by)]
            )
        return timedelta(0)


def _tell(lane: CarriedLane, moved: Moved) -> None:
    operation = moved.operation
    told: list[Event] = []
    if moved.released:
        reason = f"operation {operation.id}: {operation.reason}"
        told.append(TasksChanged(operation.ledger, Act.REDRIVE, tuple(moved.released), operation.started_by, reason))
    if moved.changed:
        told.append(
            OperationChanged(operation.ledger, operation.id, operation.state, operation.why, operation.changed_by)
        )
    if told:
        lane.tell(told)
