"""The ledger over items, whole: the verbs joined, how heads come in, and what is refused.

What DynamoDB and SQS cannot do is refused with one sentence: a transaction to join, tasks that are added without an event, pruning.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import NoReturn

from redrive.core.effect_mark import EffectAnswer
from redrive.core.stop import Stop
from redrive.core.task import Added, NewTask, TaskId
from redrive.errors import UsageError
from redrive.ledgers.aws.acts import ItemActing
from redrive.ledgers.aws.arrivals import QueueWaiter
from redrive.ledgers.aws.base import no_transaction
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Action, put_new
from redrive.ledgers.aws.heads import Head, earliest, head_key, head_values, look_after
from redrive.ledgers.aws.history import counted
from redrive.ledgers.aws.owner import ItemOwning
from redrive.ledgers.aws.reader import ItemReading
from redrive.ledgers.aws.settle import ItemSettling
from redrive.ledgers.aws.sweep import ItemSweeping
from redrive.ports import Actor, Page, Transaction, Within


class DynamoLedger(ItemSweeping, ItemSettling, ItemActing, ItemReading, ItemOwning):
    """Heads of a table of DynamoDB as a ledger, and its reader."""

    transactions_max = 0
    effects = None
    """See `Ledger.effects`: a queue hands tasks out again by itself."""

    progress = None
    """See `Ledger.progress`: a delivery is one request, and there is nothing to tell of it."""

    async def stops_asked(self) -> list[Stop]:
        """See `Ledger.stops_asked`: nobody can ask."""
        return []

    async def ask_to_stop(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:  # noqa: ARG002
        """See `OperatorLedger.ask_to_stop`: refused."""
        raise UsageError(
            f"{self.name!r} is kept in DynamoDB, where a delivery that runs cannot be cancelled: let it end"
        )

    async def answer(self, ids: Sequence[TaskId], answer: EffectAnswer, actor: Actor) -> list[TaskId]:  # noqa: ARG002
        """See `OperatorLedger.answer`: refused."""
        raise UsageError(
            f"{self.name!r} is kept in DynamoDB, which keeps no marks of effects: there is nothing to answer"
        )

    async def take(self, head: Head, *, beside: Sequence[Action] = (), counts: Mapping[str, int] | None = None) -> None:
        """Store a new head with what belongs to it, then send its message. Item first: a sweep finds what has no message.

        Raises `RefusedError` where an action beside was refused, with the reasons in their order behind the head's own.
        """
        new = head._replace(look_at=look_after(head.parts.values(), self._slack))
        actions = [put_new(head_key(new.id), head_values(new)), *beside]
        try:
            await self.dynamo.write(actions, {new.user_id: {**counted({}, new.parts), **(counts or {})}})
        except RefusedError as error:
            # Its id is of our own making: if it is there, the write whose answer was lost was made.
            if not (error.uncertain and error.reasons[0].refused):
                raise
        due = earliest(new.parts.values())
        if due is not None:
            await self._send([(new.id, due)])

    async def add(self, tasks: Sequence[NewTask], *, within: Within | None = None) -> list[Added]:  # noqa: ARG002
        """See `Ledger.add`: refused."""
        raise UsageError(
            f"tasks of {self.name!r} are yours to insert: post an event, and its deliveries are made with it"
        )

    async def result(self, id: TaskId) -> None:
        """See `OperatorLedger.result`: none is kept here."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """See `Ledger.transaction`: refused."""
        no_transaction()

    def return_sync(self, *_: object, **__: object) -> NoReturn:
        """Refused, as every transaction to join."""
        no_transaction()

    def add_sync(self, *_: object, **__: object) -> NoReturn:
        """Refused, as every transaction to join."""
        no_transaction()

    def cancel_sync(self, *_: object, **__: object) -> NoReturn:
        """Refused, as every transaction to join."""
        no_transaction()

    async def list_kinds(self, *, prefix: str = "", after: str | None = None) -> Page[str]:
        """See `Ledger.list_kinds`: there is one."""
        return Page(items=[self.name] if self.name.startswith(prefix) and after is None else [])

    @contextmanager
    def waiter(self) -> Iterator[QueueWaiter]:
        """See `Ledger.waiter`."""
        with self._arrivals.waiting():
            yield QueueWaiter(self._arrivals)
