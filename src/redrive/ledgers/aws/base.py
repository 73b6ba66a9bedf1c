"""What the verbs of the ledger share: its table, its queue, its clock, and the way to change a head.

A head that cannot be read is one head's failure: it is told in the log, and costs no other. Its message is left alone, so that the
queue puts it among the dead letters, and a sweep looks at it again much later, when somebody may have corrected it.
"""

import asyncio
import logging
import math
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple, NoReturn, TypeVar
from uuid import UUID

from redrive.core.durations import ZERO
from redrive.core.failure import describe_error
from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.errors import LedgerAwayError, LedgerError, UsageError
from redrive.ledgers.aws.arrivals import Arrivals
from redrive.ledgers.aws.attributes import to_micros
from redrive.ledgers.aws.client import Dynamo, RefusedError
from redrive.ledgers.aws.follow import Change, Follower
from redrive.ledgers.aws.heads import OPEN, Head, UnreadableHeadError, head_from, head_key
from redrive.ledgers.aws.history import MINUTE_SHARDS, minute_action
from redrive.ledgers.aws.objects import Objects
from redrive.ledgers.aws.queue import Message, Queue
from redrive.ledgers.stacks import NewStacks
from redrive.ports import Clock, Within

SLACK = timedelta(seconds=120)
"""How long after something should have happened a sweep looks whether it did: a message takes its time."""
GRACE = timedelta(seconds=5)
"""How long after the end of a lease nobody takes it over: clocks differ."""
SWEEP_EVERY = timedelta(seconds=10)
"""How often all processes together sweep."""
KNOWN_MAX = 10_000
"""How many heads are remembered as they were left, so that settling need not read them."""
TRIES_MAX = 100
"""Each refusal is somebody else's progress; as many of them mean that something is wrong."""
TELL_AGAIN_SECONDS = 3600.0
"""How often the same trouble is told."""
TOLD_MAX = 1_000

T = TypeVar("T")

_log = logging.getLogger("redrive")


class FoundHeads(NamedTuple):
    """Heads that were looked for: those that are there, and those that are there and cannot be read."""

    heads: dict[str, Head]
    unreadable: dict[str, UnreadableHeadError]


class ItemBase:
    """Heads in a table, and the queue in which they wait."""

    def __init__(
        self,
        dynamo: Dynamo,
        queue: Queue,
        ledger_table: LedgerTable,
        *,
        clock: Clock | None = None,
        follower: Follower | None = None,
        slack: timedelta = SLACK,
        grace: timedelta = GRACE,
        sweep_every: timedelta = SWEEP_EVERY,
        objects: Objects | None = None,
    ) -> None:
        """`objects` hold what is too large for items, under the names of heads."""
        self.table = ledger_table
        self.name = ledger_table.name
        self.dynamo = dynamo
        self.queue = queue
        self._clock = clock or dynamo.clock
        self._follower = follower or Follower()
        self._slack = slack
        self._grace = grace
        self._sweep_every = sweep_every
        self._objects = objects
        self._arrivals = Arrivals(lambda limit, wait: self.queue.receive(limit, wait))
        self._known: OrderedDict[str, Head] = OrderedDict()
        self._told: OrderedDict[str, float] = OrderedDict()
        self._fences: OrderedDict[UUID, set[str]] = OrderedDict()
        self._causes: OrderedDict[str, None] = OrderedDict()
        self._stacks = NewStacks()

    def _now(self) -> datetime:
        return self._clock.now()

    async def keep_history(self) -> int:
        """See `Ledger.keep_history`: it goes by itself."""
        return 0

    def _handles(self, kinds: Sequence[str] | None) -> bool:
        """Whether tasks of these kinds are kept here: all of them have one."""
        return kinds is None or self.name in kinds

    async def heads(self, ids: Iterable[str]) -> dict[str, Head]:
        """Those of the heads that are there and can be read, read strongly."""
        return (await self._find_heads(ids)).heads

    async def _find_heads(self, ids: Iterable[str]) -> FoundHeads:
        found = FoundHeads({}, {})
        for item in (await self.dynamo.get_many([head_key(id_) for id_ in ids])).values():
            try:
                head = head_from(item)
            except UnreadableHeadError as error:
                self._tell_trouble(error.id, error)
                found.unreadable[error.id] = error
            else:
                if not head.tombstone:
                    found.heads[head.id] = head
        return found

    def _tell_trouble(self, what: str, error: BaseException) -> None:
        """Say what is wrong with one head, or with messages: once in a while, however often it is met."""
        now = time.monotonic()
        if now < self._told.get(what, -math.inf):
            return
        self._told[what] = now + TELL_AGAIN_SECONDS
        self._told.move_to_end(what)
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        said = str(error) if isinstance(error, LedgerError) else f"{what}: {describe_error(error)}"
        _log.error("%s: %s", self.name, said)

    async def _each(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """What these calls answer, but for those about heads that cannot be read. Other errors are raised when all have ended."""
        ends = await asyncio.gather(*calls, return_exceptions=True)
        for end in ends:
            if isinstance(end, UnreadableHeadError):
                self._tell_trouble(end.id, end)
            elif isinstance(end, BaseException):
                raise end
        return [end for end in ends if not isinstance(end, BaseException)]

    async def _change(
        self, head: Head, plan: Callable[[Head], Change | None], ours: Callable[[Head], bool]
    ) -> Change | None:
        """Change a head as planned; None where the plan, seeing how it is now, finds nothing to do.

        Whoever is refused gets the head as it is and plans again, unless it is as we would have left it or shows our own mark,
        which `ours` knows: then the write whose answer was lost was made.
        """
        for _ in range(TRIES_MAX):
            change = plan(head)
            if change is None:
                return None
            try:
                await self.dynamo.write(change.actions, {head.user_id: change.counts})
            except RefusedError as error:
                item = error.reasons[0].item
                fresh = head_from(item) if item else (await self.heads([head.id])).get(head.id)
                if fresh is None or fresh.tombstone:
                    return None
                left = change.after
                mine = ours(fresh) or (fresh.version, fresh.parts) == (left.version, left.parts)
                if not (error.uncertain and mine):
                    head = fresh
                    continue
            self._written([change])
            return change
        raise LedgerAwayError(f"{head.id!r} was changed by others {TRIES_MAX} times in a row: try again")

    def _written(self, changes: Sequence[Change]) -> None:
        """Remember how heads were left, and tell."""
        for change in changes:
            self._known.pop(change.after.id, None)
            if any(part.state in OPEN for part in change.after.parts.values()):
                self._known[change.after.id] = change.after
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self._follower.tell(changes)

    async def _send_due(self, changes: Iterable[Change]) -> None:
        """Send a message for each instant at which parts of these heads are due from now on.

        A message that cannot be sent is no error: what was written is written, and a sweep sends it later.
        """
        dues = {
            (change.after.id, part.due_at)
            for change in changes
            for number, part in change.after.parts.items()
            if part.state is State.WAITING and part.due_at is not None and part != change.before.parts.get(number)
        }
        await self._send(dues)

    async def _send(self, dues: Iterable[tuple[str, datetime]]) -> bool:
        """Send a message for each head and instant. False if they were not sent: the item is written, and a sweep finds it."""
        now = self._now()
        messages = [(Message(id_, to_micros(due)), max(due - now, ZERO)) for id_, due in sorted(dues)]
        try:
            if messages:
                await self.queue.send(messages)
        except LedgerError as error:
            self._tell_trouble("messages that are sent later", error)
            return False
        return True

    async def _add_to_minute(self, worker: str, amounts: Mapping[str, float]) -> None:
        """Add to the present minute of a worker. Charts may miss a point, the ledger goes on."""
        minute = self._now().replace(second=0, microsecond=0)
        with suppress(LedgerAwayError):
            await self.dynamo.write(
                [minute_action(minute, random.randrange(MINUTE_SHARDS), self.name, worker, amounts)]
            )


def refuse_within(within: Within | None) -> None:
    """There is no transaction to join."""
    if within is not None:
        no_transaction()


def no_transaction() -> NoReturn:
    """Say so."""
    raise UsageError("deliveries are kept in DynamoDB, which has no transaction to join: call it without within")
