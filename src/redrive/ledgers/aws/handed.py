"""A ledger for one invocation of a function: it works off the messages that were handed over, and nothing else.

Who hands them over has received them and deletes them: the event source of a function does that with all that it is not told to keep.
So here a message is only noted as heeded. What is left is told to the event source, and comes again.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from redrive.core.durations import ZERO
from redrive.core.task import Claim
from redrive.ledgers.aws.arrivals import Arrivals
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.queue import BATCH_MAX, Message, Queue, ReceivedMessage, from_body
from redrive.ports import Ledger

PUT_OFF_MIN = timedelta(seconds=15)
"""How long a message is put off at least while deliveries are paused."""
TELL_ALL = timedelta(seconds=15)
"""How long a function waits until gates are told."""
IsClosing = Callable[[], bool]
"""Whether it is too late to begin with anything."""


class HandedQueue:
    """The messages that were handed over; what is sent goes to the queue itself."""

    def __init__(self, queue: Queue, messages: Sequence[ReceivedMessage], is_closing: IsClosing) -> None:
        self._queue = queue
        self.is_closing = is_closing
        self._waiting = list(messages)
        self._unheeded = {message.receipt: None for message in messages}

    @property
    def unheeded(self) -> list[str]:
        """The receipts of those that must come again."""
        return list(self._unheeded)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to begin with."""
        return not self._waiting or self.is_closing()

    async def send(self, messages: Sequence[tuple[Message, timedelta]]) -> None:
        """See `Queue.send`."""
        await self._queue.send(messages)

    async def receive(self, limit: int, wait: timedelta) -> list[ReceivedMessage]:  # noqa: ARG002 - no more will come
        """See `Queue.receive`."""
        if self.is_closing():
            return []
        taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return taken

    async def delete(self, messages: Sequence[ReceivedMessage]) -> None:
        """See `Queue.delete`: they need not come again."""
        for message in messages:
            self._unheeded.pop(message.receipt, None)

    async def depth(self) -> int:
        """See `Queue.depth`."""
        return len(self._waiting)


class HandedLedger(DynamoLedger):
    """The same ledger, for a worker that stops when it has worked off what was handed over. It sweeps only where that is its task."""

    def __init__(self, ledger: DynamoLedger, queue: HandedQueue, *, sweeps: bool = False) -> None:
        vars(self).update(vars(ledger))  # the same table, clock and follower, and what it remembers of heads
        self.queue = queue
        self._handed = queue
        self._arrivals = Arrivals(queue.receive)
        self._sweeps = sweeps
        self._tell_within = TELL_ALL  # between invocations nothing goes on

    async def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        kinds: Sequence[str] | None = None,
        fence: UUID | None = None,
        held: Callable[[], Iterable[Claim]] = tuple,
        gates: bool = True,
        busy: Sequence[str] | None = None,
    ) -> list[Claim]:
        """See `Ledger.claim`. While a person has paused deliveries, the messages are put off: who hands them over would else count them
        as failed, and put them among the dead letters in the end."""
        if not self._handles(kinds):
            await self._put_off()
            return []
        gates = gates and not self._handed.is_closing()
        return await super().claim(limit, lease, kinds=kinds, fence=fence, held=held, gates=gates, busy=busy)

    async def _put_off(self) -> None:
        """Send all messages anew, to be seen after as long as the pause has lasted already."""
        now = self._now()
        since = [one.gate.paused_at or now for one in (await self.kind_pauses()).values() if one.gate.is_paused(now)]
        wait = max(PUT_OFF_MIN, now - min(since, default=now))
        while messages := await self._handed.receive(BATCH_MAX, ZERO):
            readable = [one for one in messages if one.content is not None]
            await self.queue.send([(one.content, wait) for one in readable if one.content is not None])
            await self.queue.delete(readable)

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:  # noqa: ARG002 - all are of one kind
        """See `Ledger.next_due`: what else is due somewhere is not for this invocation."""
        return None if self._handed.is_empty else ZERO

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """See `Ledger.reclaim`: nothing, unless this is the sweep. That goes on, round for round, as long as there is more and time."""
        found: list[Claim] = []
        more = self._sweeps
        while more and len(found) < limit and not self._handed.is_closing():
            found += await super().reclaim(limit - len(found), lease, kinds=kinds)
            more = self._sweep_at == -math.inf  # a round that leaves work says so
        return found

    @contextmanager
    def waiter(self) -> Iterator["Sleeper"]:  # type: ignore[override]
        """See `Ledger.waiter`: no message will come."""
        yield Sleeper()


class Sleeper:
    """Waits for nothing but the time."""

    hears_due = False

    def clear(self) -> bool:
        """Nothing to forget."""
        return False

    async def wait(self, timeout: timedelta) -> bool:
        """Let the time pass."""
        await asyncio.sleep(timeout.total_seconds())
        return False


def hand_over(
    ledger: Ledger, bodies: Sequence[tuple[str, str]], *, is_closing: IsClosing, sweeps: bool = False
) -> tuple[HandedLedger, HandedQueue]:
    """A ledger for these messages, (receipt, body), and the queue that knows afterwards which of them must come again."""
    assert isinstance(ledger, DynamoLedger), "only a ledger over items is told of its tasks by messages"
    messages = [ReceivedMessage(receipt, from_body(body)) for receipt, body in bodies]
    queue = HandedQueue(ledger.queue, messages, is_closing)
    return HandedLedger(ledger, queue, sweeps=sweeps), queue
