"""Taking webhooks in: many senders share one commit, a full queue refuses before anything is written, a known key is known.

What comes in while one commit is under way is taken in by the next (`Gather`). In that one transaction, in this order: the
keys that are there already are looked up, the queue is counted, and as many new webhooks are stored as it has room for. So a
refused webhook leaves no row, and a known key is answered even when the queue is full.

On SQLite the count and the insert are one with respect to all processes. On PostgreSQL processes do not wait for each other
here: the queue may grow past its size by what the other processes are storing at that very moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Connection, Select, Text, any_, bindparam, func, literal_column, select

from redrive.errors import KeyTakenError, LedgerError
from redrive.events import TaskAdded
from redrive.extend import Database, Gather
from redrive.lane import Lane, NewTask
from redrive.systems.webhooks.tables import due_since, instant, make_table

GATHERED_MAX = 1000
"""How many webhooks one commit takes in, at most."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a webhook: its row, and whether it is new."""

    id: str
    idempotency_key: str
    event_type: str
    status: str
    created_at: datetime
    new: bool


class Inbox:
    """The door of the table `events`."""

    def __init__(self, database: Database, lane: Lane, queue_maxsize: int) -> None:
        self._database = database
        self._lane = lane
        self._queue_maxsize = queue_maxsize
        self._table = make_table(database.dialect.name)
        self._known = self._known_statement()
        self._due = self._due_statement()
        self._taking = Gather(self._take_in, items_max=GATHERED_MAX)

    async def accept(self, task: NewTask) -> Receipt | None:
        """Store a webhook unless its key is known; None if the queue is full. When this returns it is durable."""
        [receipt] = await self._taking([task])
        if receipt is not None:
            self._lane.tell([TaskAdded(self._lane.name, task.kind, task.key, receipt.id, receipt.new)])
        return receipt

    async def depth(self, counted_max: int) -> int:
        """How many webhooks are due and not processed, counted up to a limit."""
        return await self._database.read(self._count_due, counted_max)

    async def _take_in(self, tasks: Sequence[NewTask]) -> list[Receipt | None]:
        ledger = await self._lane.ledger()
        try:
            receipts = await self._database.write(self._store, ledger, tasks)
        except KeyTakenError:
            # Another process has stored the key with another type between our look and our insert. Now it is found.
            receipts = await self._database.write(self._store, ledger, tasks)
        if any(receipt is not None and receipt.new for receipt in receipts):
            self._database.wake(self._lane.name)
        return receipts

    def _store(self, connection: Connection, ledger: Any, tasks: Sequence[NewTask]) -> list[Receipt | None]:
        found = self._find(connection, [task.key for task in tasks])
        first = {task.key: task for task in reversed(tasks)}
        fresh = [task for key, task in first.items() if key not in found]
        new: set[str] = set()
        if fresh:
            # Refused while more than the size are due: so one more than the size fits in.
            room = self._queue_maxsize + 1 - self._count_due(connection, self._queue_maxsize + 1)
            taken = fresh[::-1][:room]  # in the order in which they came
            if self._database.dialect.name == "postgresql":
                taken.sort(key=lambda task: task.key)  # two processes that store the same keys never wait in a circle
            new = {one.key for one in ledger.add_sync(taken, within=connection, soon=True) if one.new}
            found |= self._find(connection, [task.key for task in taken])
            if not all(task.key in found for task in taken):
                raise LedgerError("a webhook was deleted while it was stored: send it again")
        receipts: list[Receipt | None] = []
        for task in tasks:
            row = found.get(task.key)
            is_new = task.key in new and first[task.key] is task
            receipts.append(
                None
                if row is None
                else Receipt(row.id, row.idempotency_key, row.event_type, row.status, row.created_at, is_new)
            )
        return receipts

    def _find(self, connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
        rows = connection.execute(self._known, {"keys": keys}) if keys else ()
        return {row[1]: row for row in rows}

    def _count_due(self, connection: Connection, counted_max: int) -> int:
        bound: dict[str, Any] = {"counted_max": counted_max}
        if not self._database.server_clock:
            bound["now"] = self._database.now()
        counted: int = connection.execute(self._due, bound).scalar_one()
        return counted

    def _known_statement(self) -> Select[Any]:
        """The rows of some keys, with the columns of a receipt."""
        c = self._table.c
        columns = (c.id, c.idempotency_key, c.event_type, c.status, c.created_at)
        if self._database.dialect.name == "sqlite":
            listed: Any = bindparam("keys", expanding=True)
            return select(*columns).where(c.idempotency_key.in_(listed))
        return select(*columns).where(c.idempotency_key == any_(bindparam("keys", type_=ARRAY(Text))))

    def _due_statement(self) -> Select[Any]:
        """How many rows wait and are due; no more are looked at than are counted."""
        dialect = self._database.dialect.name
        now: Any = func.statement_timestamp()
        if not self._database.server_clock:
            now = instant(bindparam("now", type_=self._table.c.created_at.type), dialect)
        waiting = self._table.c.status == literal_column("'pending'")
        few: Select[Any] = select(literal_column("1")).where(waiting, due_since(self._table, dialect) <= now)
        return select(func.count()).select_from(few.limit(bindparam("counted_max")).subquery())
