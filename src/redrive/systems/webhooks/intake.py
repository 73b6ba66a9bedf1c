"""Taking webhooks in: many senders share one commit, a full queue refuses before anything is written, a known key is known.

What comes in while one commit is under way is taken in by the next (`Gather`). In that one transaction, in this order: the
keys that are there already are looked up, the queue is counted, and as many new webhooks are stored as it has room for. So a
refused webhook leaves no row, and a known key is answered even when the queue is full. Types that no worker handles have a queue of
their own: only where there is no room is it looked at what waits for whom.

On SQLite the count and the insert are one with respect to all processes. On PostgreSQL processes do not wait for each other
here: the queue may grow past its size by what the other processes are storing at that very moment.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Text, bindparam, func, literal_column, select

from redrive.errors import KeyTakenError, LedgerError
from redrive.events import TaskAdded
from redrive.extend import Database, When
from redrive.lane import Lane, NewTask
from redrive.sql import Batch, Compiled, Gather, comparable
from redrive.systems.kit.gates import GatesWhenSet
from redrive.systems.webhooks.handled import HandledTypes
from redrive.systems.webhooks.logs import WebhookLogs
from redrive.systems.webhooks.room import Room
from redrive.systems.webhooks.tables import due_since, events

GATHERED_MAX = 1000
"""How many webhooks one commit takes in, at most."""

_DUE_BY_TYPE = (
    select(events.c.event_type, func.count())
    .where(events.c.status == literal_column("'pending'"), due_since <= comparable(bindparam("now", type_=When)))
    .group_by(events.c.event_type)
)
"""How many rows wait and are due, by type. All are looked at, which are two queues full at most while handlers stay what they are."""


class Receipt(NamedTuple):
    """What became of a webhook: its row, and whether it is new."""

    id: str
    idempotency_key: str
    event_type: str
    status: str
    created_at: datetime
    new: bool


class WebhookInbox:
    """The door of the table `events`."""

    def __init__(
        self, database: Database, lane: Lane, handled: HandledTypes, logs: WebhookLogs, queue_maxsize: int
    ) -> None:
        self._database = database
        self._lane = lane
        self._handled = handled
        self._logs = logs
        self._queue_maxsize = queue_maxsize
        self._room = Room(database, queue_maxsize)
        self._keys = Batch(database.dialect, {"key": Text()})
        c = events.c
        self._known = Compiled(
            select(c.id, c.idempotency_key, c.event_type, c.status, c.created_at).where(
                self._keys.match("key", c.idempotency_key)
            )
        )
        self._taking = Gather(self._take_in, items_max=GATHERED_MAX)
        self.gates = GatesWhenSet(lane, database, events, c.event_type, c.status == literal_column("'pending'"))

    async def accept(self, task: NewTask) -> Receipt | None:
        """Store a webhook unless its key is known; None if the queue is full. When this returns it is durable."""
        [receipt] = await self._taking([task])
        if receipt is None:
            self._logs.queue_full(task, queue_maxsize=self._queue_maxsize)
            return None
        self._lane.tell([TaskAdded(self._lane.name, task.kind, task.key, receipt.id, receipt.new)])
        if receipt.event_type != task.kind:
            self._logs.key_reused(task, event_id=receipt.id, known_event_type=receipt.event_type)
        return receipt

    async def depth(self, counted_max: int) -> int:
        """How many webhooks are due and not processed, counted up to a limit."""
        return await self._database.read(self._room.due, counted_max)

    async def _take_in(self, tasks: Sequence[NewTask]) -> list[Receipt | None]:
        ledger = await self._lane.ledger()
        await self.gates.look()
        tasks = [self._behind_gate(task) for task in tasks]
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
        first: dict[str, NewTask] = {}
        for task in tasks:
            first.setdefault(task.key, task)
        fresh = [task for key, task in first.items() if key not in found]
        new: set[str] = set()
        if fresh:
            fitting = fresh if self._room.is_for(connection, len(fresh)) else self._fitting(connection, fresh)
            # In the order of their keys: two processes that store the same ones then never wait in a circle.
            taken = sorted(fitting, key=lambda task: task.key)
            new = {one.key for one in ledger.add_sync(taken, within=connection, soon=True) if one.new}
            found |= self._find(connection, [task.key for task in taken])
            if not all(task.key in found for task in taken):
                raise LedgerError("a webhook was deleted while it was stored: send it again")
        return [
            Receipt._make((*found[task.key], task.key in new and first[task.key] is task))
            if task.key in found
            else None
            for task in tasks
        ]

    def _behind_gate(self, task: NewTask) -> NewTask:
        gate = self.gates.name(task.kind)
        return task if gate is None else task.behind(gate, None)

    def _fitting(self, connection: Connection, fresh: Sequence[NewTask]) -> list[NewTask]:
        """Those that fit into their queue: that of all types that are handled, or that of all others.

        What is behind a gate belongs to the others: while it is kept back it must not fill the queue for all.
        """
        found = connection.execute(_DUE_BY_TYPE, {"now": self._database.present(connection)})
        due: dict[str, int] = {row[0]: row[1] for row in found}
        handled = self._handled.among(connection, {*due, *(task.kind for task in fresh)})
        handled = {one for one in handled if self.gates.name(one) is None}
        rooms = dict.fromkeys((True, False), self._queue_maxsize + 1)
        for event_type, amount in due.items():
            rooms[event_type in handled] -= amount
        fitting = []
        for task in fresh:
            queue = task.kind in handled
            if rooms[queue] > 0:
                rooms[queue] -= 1
                fitting.append(task)
        return fitting

    def _find(self, connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
        if not keys:
            return {}
        return {row[1]: row for row in self._known.rows(connection, self._keys.parameters([key] for key in keys))}
