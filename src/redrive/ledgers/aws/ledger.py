"""The ledger over items, whole: the verbs joined, how heads come in, and what is refused.

What DynamoDB and SQS cannot do is refused with one sentence: a transaction to join, tasks that are added without an event, pruning.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

from redrive.core.table import LedgerTable
from redrive.core.task import Added, NewTask
from redrive.errors import LedgerAwayError, UsageError
from redrive.ledgers.aws.acts import ItemActing
from redrive.ledgers.aws.base import GRACE, SLACK, no_transaction
from redrive.ledgers.aws.claim import SWEEP_EVERY, ItemClaiming
from redrive.ledgers.aws.client import Dynamo, RefusedError
from redrive.ledgers.aws.expressions import Action, put_new
from redrive.ledgers.aws.follow import Follower
from redrive.ledgers.aws.heads import Head, earliest, head_key, head_values, look_after
from redrive.ledgers.aws.queue import BATCH_MAX, WAIT_MAX, Queue, ReceivedMessage
from redrive.ledgers.aws.reader import ItemReading
from redrive.ledgers.aws.settle import ItemSettling
from redrive.ports import Clock, Page, Transaction, Within

WAIT_MIN = timedelta(seconds=1)


class DynamoLedger(ItemClaiming, ItemSettling, ItemActing, ItemReading):
    """Heads of a table of DynamoDB as a ledger, and its reader."""

    transactions_max = 0

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
    ) -> None:
        super().__init__(dynamo, queue, ledger_table, clock=clock, follower=follower, slack=slack, grace=grace)
        self._fences = OrderedDict()
        self._arrived = []
        self._sweep_every = sweep_every.total_seconds()

    async def take(self, head: Head, *, beside: Sequence[Action] = (), counts: Mapping[str, int] | None = None) -> None:
        """Store a new head with what belongs to it, then send its message. Item first: a sweep finds what has no message.

        Raises `RefusedError` where an action beside was refused, with the reasons in their order behind the head's own.
        """
        new = head._replace(look_at=look_after(head.parts.values(), self._slack))
        actions = [put_new(head_key(new.id), head_values(new)), *beside]
        try:
            await self.dynamo.write(actions, {new.user_id: counts or {}})
        except RefusedError as error:
            # Its id is of our own making: if it is there, the write whose answer was lost was made.
            if not (error.uncertain and error.reasons[0].refused):
                raise
        due = earliest(new.parts.values())
        if due is not None:
            with suppress(LedgerAwayError):
                await self._send([(new.id, due)])

    async def add(self, tasks: Sequence[NewTask], *, within: Within | None = None) -> list[Added]:  # noqa: ARG002
        """See `Ledger.add`: refused."""
        raise UsageError(
            f"tasks of {self.name!r} are yours to insert: post an event, and its deliveries are made with it"
        )

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """See `Ledger.transaction`: refused."""
        no_transaction()

    def return_sync(self, *_: object, **__: object) -> NoReturn:
        """Refused, as every transaction to join."""
        no_transaction()

    async def list_kinds(self, *, prefix: str = "", after: str | None = None) -> Page[str]:
        """See `Ledger.list_kinds`: there is one."""
        return Page(items=[self.name] if self.name.startswith(prefix) and after is None else [])

    @contextmanager
    def waiter(self) -> Iterator["QueueWaiter"]:
        """See `Ledger.waiter`."""
        waiter = QueueWaiter(self.queue, self._arrived)
        try:
            yield waiter
        finally:
            waiter.close()


class QueueWaiter:
    """Waits at the queue itself. What comes is kept for the next claim.

    The question to the queue outlives a nap that is cut short: a question that is taken back may have been answered, and what it took
    would be hidden from everybody for a while. A nap takes at least `WAIT_MIN`: whatever becomes due ends it by a message, and a worker
    that knows of something due whose message is late must not ask for it a hundred times a second.
    """

    def __init__(self, queue: Queue, arrived: list[ReceivedMessage]) -> None:
        self._queue = queue
        self._arrived = arrived
        self._asking: asyncio.Task[list[ReceivedMessage]] | None = None

    def clear(self) -> bool:
        """Nothing to forget: a message stays until it is claimed."""
        return False

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for messages, at most `timeout`; whether there were any."""
        if not self._arrived:
            self._asking = self._asking or asyncio.create_task(self._queue.receive(BATCH_MAX, WAIT_MAX))
            await asyncio.wait({self._asking}, timeout=max(timeout, WAIT_MIN).total_seconds())
            if self._asking.done():
                asked, self._asking = self._asking, None
                self._arrived += asked.result()
        return bool(self._arrived)

    def close(self) -> None:
        """Ask no more. What an answer under way has taken is seen again when the queue shows it again."""
        if self._asking is not None:
            self._asking.cancel()
