"""Taking webhooks in: many senders share one commit, a full queue refuses before anything is written, a known key is known.

What comes in while one commit is under way is taken in by the next (`Gather`). In that one transaction, in this order: the
queue is counted, and if it has room for all of them, those are stored whose keys are new. Else the keys that are there already are looked
up, and as many new webhooks are stored as it has room for. So a refused webhook leaves no row, and a known key is answered even when the queue is full. Types that no worker handles have a queue of
their own: only where there is no room is it looked at what waits for whom.

On SQLite the count and the insert are one with respect to all processes. On PostgreSQL processes do not wait for each other
here: the queue may grow past its size by what the other processes are storing at that very moment.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
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
from redrive.systems.webhooks.tables import WORDS, due_since, events

GATHERED_MAX = 1000
"""How many webhooks one commit takes in, at most."""
HALVED_FROM = 64
"""Of more that wait together one commit takes half. Where all of 128 senders shared one commit, everybody waited for it and nothing else was done
meanwhile: on PostgreSQL 5,751 were accepted in a second, and 7,929 in halves."""

_DUE_BY_TYPE = (
    select(events.c.event_type, func.count())
    .where(events.c.status == literal_column("'pending'"), due_since <= comparable(bindparam("now", type_=When)))
    .group_by(events.c.event_type)
)
"""How many rows wait and are due, by type. All are looked at, which are two queues full at most while handlers stay what they are."""

_UNKNOWN = object()


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
        self._at_once: Any = _UNKNOWN
        self._keys = Batch(database.dialect, {"key": Text()})
        c = events.c
        self._known = Compiled(
            select(c.id, c.idempotency_key, c.event_type, c.status, c.created_at).where(
                self._keys.match("key", c.idempotency_key)
            )
        )
        self._taking = Gather(self._take_in, items_max=GATHERED_MAX, halved_from=HALVED_FROM)
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
        first = _first_of_keys(tasks)
        found = await self._store_at_once(ledger, first.values())
        rest = [task for task in tasks if task.key not in found]
        others = iter(await self._store_rest(ledger, rest) if rest else ())
        receipts = [
            Receipt._make((*found[task.key], first[task.key] is task)) if task.key in found else next(others)
            for task in tasks
        ]
        if any(receipt is not None and receipt.new for receipt in receipts):
            self._database.wake(self._lane.name)
        return receipts

    async def _store_at_once(self, ledger: Any, tasks: Collection[NewTask]) -> dict[str, Any]:
        """Those that are new, by their keys, where one statement can look whether there is room for all of them, and store and count them."""
        if self._at_once is _UNKNOWN:
            self._at_once = ledger.adds_where(self._room.condition)
        if self._at_once is None or any(task.gate is not None for task in tasks):
            return {}
        kinds = {task.key: task.kind for task in tasks}
        stored = await ledger.add_where(_ordered(tasks), self._at_once, self._room.wanted(len(tasks)))
        return {key: (id_, key, kinds[key], WORDS.waiting, created_at) for id_, key, created_at in stored}

    async def _store_rest(self, ledger: Any, tasks: Sequence[NewTask]) -> list[Receipt | None]:
        """What needs a transaction: its keys may be known, or there may not be room for all."""
        try:
            return await self._database.write(
                self._store if self._at_once is None else self._look_and_store, ledger, tasks
            )
        except KeyTakenError:
            # A key that is known belongs to another type. Where it is looked up first it is found; unless another process stores it
            # between our look and our insert, and then it is found the next time.
            try:
                return await self._database.write(self._look_and_store, ledger, tasks)
            except KeyTakenError:
                return await self._database.write(self._look_and_store, ledger, tasks)

    def _store(self, connection: Connection, ledger: Any, tasks: Sequence[NewTask]) -> list[Receipt | None]:
        """Most often there is room for all, whether they are new or not: what is known need not be looked up first then."""
        first = _first_of_keys(tasks)
        if not self._room.is_for(connection, len(first)):
            return self._look_and_store(connection, ledger, tasks)
        if self._database.server_clock or any(task.gate is not None for task in tasks):
            new = self._add(connection, ledger, first.values())
            return _receipts(tasks, first, new, self._find(connection, first))
        now, ids = ledger.add_own(connection, _ordered(first.values()))
        found = {key: (id_, key, first[key].kind, WORDS.waiting, now) for key, id_ in ids.items()}
        found |= self._find(connection, [key for key in first if key not in ids])
        return _receipts(tasks, first, ids, found)

    def _look_and_store(self, connection: Connection, ledger: Any, tasks: Sequence[NewTask]) -> list[Receipt | None]:
        first = _first_of_keys(tasks)
        found = self._find(connection, first)
        fresh = [task for key, task in first.items() if key not in found]
        if not fresh:
            return _receipts(tasks, first, set(), found)
        fitting = fresh if self._room.is_for(connection, len(fresh)) else self._fitting(connection, fresh)
        new = self._add(connection, ledger, fitting)
        found |= self._find(connection, [task.key for task in fitting])
        refused = {task.key for task in fresh} - {task.key for task in fitting}
        return _receipts(tasks, first, new, found, refused)

    def _add(self, connection: Connection, ledger: Any, tasks: Iterable[NewTask]) -> set[str]:
        """The keys of those that are new."""
        return {one.key for one in ledger.add_sync(_ordered(tasks), within=connection, soon=True) if one.new}

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

    def _find(self, connection: Connection, keys: Collection[str]) -> dict[str, Any]:
        if not keys:
            return {}
        return {row[1]: row for row in self._known.rows(connection, self._keys.parameters([key] for key in keys))}


def _first_of_keys(tasks: Sequence[NewTask]) -> dict[str, NewTask]:
    """The first task of each key: it is the one that may be new."""
    first: dict[str, NewTask] = {}
    for task in tasks:
        first.setdefault(task.key, task)
    return first


def _ordered(tasks: Iterable[NewTask]) -> list[NewTask]:
    """By their keys: two processes that store the same ones then never wait in a circle."""
    return sorted(tasks, key=lambda task: task.key)


def _receipts(
    tasks: Sequence[NewTask],
    first: Mapping[str, NewTask],
    new: Container[str],
    found: Mapping[str, Any],
    refused: Container[str] = (),
) -> list[Receipt | None]:
    receipts: list[Receipt | None] = []
    for task in tasks:
        key = task.key
        if key in refused:
            receipts.append(None)
        elif key in found:
            receipts.append(Receipt._make((*found[key], key in new and first[key] is task)))
        else:
            raise LedgerError("a webhook was deleted while it was stored: send it again")
    return receipts
