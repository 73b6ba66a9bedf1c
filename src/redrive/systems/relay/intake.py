"""From arrivals to rows: many messages in one statement, however long the database is away.

A `message_id` that is known is the same story. Its row goes back to waiting if it has ended, is left alone if it waits, and is
held for a moment if it is being published.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, DateTime, Interval, Text, bindparam, func, select, type_coerce, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from redrive import Policy
from redrive.errors import LedgerError, TooSlowError
from redrive.events import TaskAdded
from redrive.extend import Database, NamedGate
from redrive.lane import Actor, Lane
from redrive.operator.words import describe_error
from redrive.queues import Return
from redrive.sql import Batch, Compiled
from redrive.systems.kit.gates import GatesWhenSet
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.broker import pause
from redrive.systems.relay.logs import RelayLog, RelayMetrics
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue
from redrive.systems.relay.values import Arrival, Stored

RELAY = Actor(name="relay", reason="it failed again and came back")
PAUSE_CAP_SECONDS = 2.0
TELL_EVERY_TRIES = 30
"""How often, in tries, it is told that the database does not store: about once a minute."""
SOON = timedelta(milliseconds=200)
WAKE_SECONDS = 0.1
"""What is due later than `SOON` wakes the worker at most this often: it only has to hear of it before it is due."""
_CONTENT_CLASSES = ("22", "23", "54")
"""SQLSTATE: data that cannot be, constraints that do not hold, limits of the database."""
_WORDS = RETRY_QUEUE.words
_c = retry_queue.c
_CONTENT = (
    "original_payload",
    "original_queue",
    "error_reason",
    "max_retries",
    "headers",
    "content_type",
    "trace",
    "gate",
)

_STORED = ("message_id", "retry_count", *(name for name in _CONTENT if name != "headers"))

_HEADERS = len(_STORED)
_NOT_NEW = (None, None)

_message_ids: Any = bindparam("message_ids", expanding=True)
_FIND = select(
    _c.id, _c.message_id, _c.status, _c.lease_until, _c.retry_count, _c.content_type,
    type_coerce(_c.headers, Text).label("headers"),  # as text: one row that others spoilt must not stop all
).where(_c.message_id.in_(_message_ids))  # fmt: skip
_REFRESH = (
    update(retry_queue)
    .where(_c.id == bindparam("returned_id"))
    .values({name: bindparam(f"new_{name}", type_=_c[name].type) for name in _CONTENT} | {"last_error": None})
)
"""What has come back is what failed last: dropping it for what was stored before would lose it. What it does not say again stays."""


class RelayIntake:
    """The table of the relay, from the side of what arrives."""

    def __init__(self, database: Database, lane: Lane, policy: Policy, log: RelayLog, metrics: RelayMetrics) -> None:
        self._database = database
        self._lane = lane
        self._policy = policy
        self._log = log
        self._metrics = metrics
        self._insert = _inserting(database)
        self._waking: asyncio.TimerHandle | None = None
        self.gates = GatesWhenSet(lane, database, retry_queue, _c.original_queue, _c.status == _WORDS.waiting)

    async def keep(self, arrivals: list[Arrival]) -> tuple[Stored, dict[str, str]]:
        """Store, however long the database is away; what it refuses for good comes back by id with its words."""
        stored, tries = Stored(), 0
        while True:
            try:
                return await self.store(arrivals, stored), {}
            except (StatementError, TooSlowError) as error:
                if isinstance(error, StatementError) and _is_about_content(error):
                    if len(arrivals) == 1:
                        return stored, {arrivals[0].message_id: describe_error(error)}
                    return await self._keep_apart(arrivals, stored)
                # A time limit, a deadlock, a right or a table that is missing: not what the messages hold, so they wait.
                if tries % TELL_EVERY_TRIES == 0:
                    self._log.unstored(describe_error(error))
            except LedgerError:  # away, or not migrated yet: the worker of the lane tells
                pass
            tries += 1
            await pause(tries, cap_seconds=PAUSE_CAP_SECONDS)

    async def _keep_apart(self, arrivals: list[Arrival], stored: Stored) -> tuple[Stored, dict[str, str]]:
        """One by one: a message that cannot be stored must not keep the others from it."""
        there = {id(one) for _, one, _ in stored.new}
        refused: dict[str, str] = {}
        for one in arrivals:
            if id(one) not in there:
                alone, failed = await self.keep([one])
                stored.add(alone)
                refused |= failed
        return stored, refused

    async def store(self, arrivals: Sequence[Arrival], stored: Stored | None = None) -> Stored:
        """Store a batch; when this returns it is durable. Of two with one id the first counts.

        `stored` has what an earlier try has stored of it, and gets what this one stores, also where the rest then fails.
        """
        ledger = await self._lane.ledger()
        await self.gates.look()
        stored = Stored() if stored is None else stored
        first: dict[str, Arrival] = {}
        for arrival in arrivals:
            first.setdefault(arrival.message_id, arrival)
        # In the order of their ids: two relays that store the same messages then never wait in a circle.
        left = sorted(first.keys() - {one.message_id for _, one, _ in stored.new})
        if left:
            new = await self._store_new([first[message_id] for message_id in left], ledger)
            stored.new += new
            there = {one.message_id for _, one, _ in new}
            if again := [first[message_id] for message_id in left if message_id not in there]:
                stored.add(await self._database.write(self._store_again, again, ledger))
        held = {arrival.message_id for arrival in stored.held}
        for arrival in arrivals:
            if first[arrival.message_id] is not arrival:
                (stored.held if arrival.message_id in held else stored.known).append(arrival)
        return stored

    async def _store_new(self, arrivals: Sequence[Arrival], ledger: Any) -> list[tuple[Any, Arrival, timedelta]]:
        """Those whose row is not there yet. Where no gate is in use, one statement does it, and commits with it."""
        if all(self.gates.name(one.queue) is None for one in arrivals):
            return await self._database.statement(self._insert_new, arrivals)

        def insert_gated(connection: Connection) -> list[tuple[Any, Arrival, timedelta]]:
            new = self._insert_new(connection, arrivals)
            self._make_gates(connection, ledger, new)
            return new

        return await self._database.write(insert_gated)

    def _insert_new(self, connection: Connection, arrivals: Sequence[Arrival]) -> list[tuple[Any, Arrival, timedelta]]:
        rows = [self._row(one) for one in arrivals]
        new = {message_id: (id_, delay) for id_, message_id, delay in self._insert(connection, rows)}
        return [(id_, one, delay) for one in arrivals for id_, delay in [new.get(one.message_id, _NOT_NEW)] if id_]

    def _make_gates(self, connection: Connection, ledger: Any, found: Sequence[tuple[Any, Arrival, timedelta]]) -> None:
        """Make the gates of what waits now: last, since the commit follows at once."""
        queues = {one.queue for _, one, _ in found}
        named = sorted(queue for queue in queues if self.gates.name(queue) is not None)
        if named:
            ledger.make_gates(connection, [NamedGate(gate, None, "") for gate in named])

    def _store_again(self, connection: Connection, arrivals: list[Arrival], ledger: Any) -> Stored:
        """Messages whose row is there already."""
        stored, now = Stored(), self._database.present(connection)
        asked = {"message_ids": [one.message_id for one in arrivals]}
        found = {row.message_id: row for row in connection.execute(_FIND, asked)}
        back: list[tuple[Any, Arrival, timedelta]] = []
        for one in arrivals:
            row = found.get(one.message_id)
            if row is None or row.lease_until is not None:  # held by a worker, or deleted a moment ago
                stored.held.append(one)
            elif row.status == _WORDS.waiting:
                stored.known.append(one)
            else:
                back.append((row.id, one, _longer(*self.delay(one, max(one.retry_count, row.retry_count)), now)))
        returns = [Return(id=id_, failures=one.retry_count, delay=delay) for id_, one, delay in back]
        changed = set(ledger.return_sync(returns, RELAY, within=connection))
        stored.returned = [each for each in back if each[0] in changed]
        stored.held += [one for id_, one, _ in back if id_ not in changed]  # another relay was quicker
        if stored.returned:
            refreshed = [
                {"returned_id": id_}
                | {
                    f"new_{name}": value
                    for name, value in self._content(_continued(one, found[one.message_id])).items()
                }
                for id_, one, _ in stored.returned
            ]
            connection.execute(_REFRESH, refreshed)
        self._make_gates(connection, ledger, stored.returned)
        return stored

    def delay(self, arrival: Arrival, count: int) -> tuple[timedelta, datetime | None]:
        """How long a message waits that was published so often, and until when at least: not at all if its retries are spent."""
        if count >= arrival.max_retries:
            return timedelta(0), None
        return self._policy.delay(count + 1, arrival.message_id), arrival.not_before

    def _row(self, arrival: Arrival) -> dict[str, Any]:
        delay, not_before = self.delay(arrival, arrival.retry_count)
        return {
            "message_id": arrival.message_id,
            "retry_count": arrival.retry_count,
            **self._content(arrival),
            "delay": delay,
            "not_before": not_before,
        }

    def _content(self, arrival: Arrival) -> dict[str, Any]:
        return _content(arrival) | {"gate": self.gates.name(arrival.queue)}

    # --- what is told -----------------------------------------------------------------------------------------------

    def tell(self, stored: Stored) -> None:
        """A batch is durable: count it, tell it, and let the worker know when to look."""
        self._metrics.stored(stored)
        self._log.stored(stored)
        if stored.new and self._lane.observers:
            name = self._lane.name
            self._lane.tell([TaskAdded(name, name, one.message_id, id_, True) for id_, one, _ in stored.new])
        delays = [delay for _, _, delay in (*stored.new, *stored.returned)]
        if delays and min(delays) <= SOON:
            self._wake()
        elif delays and self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wake)

    def _wake(self) -> None:
        self.stop_waking()
        self._database.wake(self._lane.name)

    def stop_waking(self) -> None:
        """Forget the wake-up that is still to come, if there is one."""
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None


def _inserting(database: Database) -> Callable[[Connection, list[dict[str, Any]]], Sequence[Any]]:
    """What stores rows whose `message_id` is new, and says of each its id, its `message_id` and how long it waits."""
    insert, dialect = database.insert(retry_queue), database.dialect
    if not dialect.batches_bytes:
        plain = insert.on_conflict_do_nothing(index_elements=[_c.message_id]).returning(_c.id, _c.message_id)

        def store_plain(connection: Connection, rows: list[dict[str, Any]]) -> Sequence[Any]:
            now = database.present(connection)
            delays = {row["message_id"]: _longer(row.pop("delay"), row.pop("not_before"), now) for row in rows}
            times = {"created_at": now, "updated_at": now}
            timed = [row | times | {"next_retry_at": now + delays[row["message_id"]]} for row in rows]
            return [(id_, message_id, delays[message_id]) for id_, message_id in connection.execute(plain, timed)]

        return store_plain
    types = {name: _c[name].type for name in _STORED}
    types |= {"headers": Text(), "delay": dialect.span_type(_c.next_retry_at), "not_before": DateTime(timezone=True)}
    batch = Batch(dialect, types, joined=False)
    given = batch.rows.c
    values = {name: given[name] for name in _STORED} | {
        "headers": dialect.json(given.headers, _c.headers.type),
        "next_retry_at": func.greatest(dialect.later(given.delay, _c.next_retry_at), given.not_before),
        "created_at": dialect.now(_c.created_at),
        "updated_at": dialect.now(_c.updated_at),
    }
    wait = type_coerce(_c.next_retry_at - _c.created_at, Interval()).label("wait")
    many = Compiled(
        insert.from_select(list(values), select(*values.values()), include_defaults=False)
        .on_conflict_do_nothing(index_elements=[_c.message_id])
        .returning(_c.id, _c.message_id, wait)
    )

    def store(connection: Connection, rows: list[dict[str, Any]]) -> Sequence[Any]:
        now = None if database.server_clock else database.now()
        columns = [list(map(itemgetter(name), rows)) for name in types]
        columns[_HEADERS] = list(map(json.dumps, columns[_HEADERS]))
        return many.rows(connection, batch.of_columns(columns) | dialect.times(now))

    return store


def _longer(delay: timedelta, not_before: datetime | None, now: datetime) -> timedelta:
    """How long it is until both have passed."""
    return delay if not_before is None else max(delay, not_before - now)


def _content(arrival: Arrival) -> dict[str, Any]:
    """What a message that has come back replaces."""
    return {
        "original_payload": arrival.payload,
        "original_queue": arrival.queue,
        "error_reason": arrival.error_reason,
        "max_retries": arrival.max_retries,
        "headers": arrival.headers,
        "content_type": arrival.content_type,
        "trace": amqp.trace_of(arrival.headers),
    }


def _continued(arrival: Arrival, row: Any) -> Arrival:
    """A message that came back, with the content type and the headers of its last round where it brings none of its own."""
    stored = row.headers
    if isinstance(stored, str):  # as SQLite has it
        try:
            stored = json.loads(stored)
        except ValueError:
            stored = None
    headers = amqp.carried(stored, arrival.headers) if isinstance(stored, dict) and stored else arrival.headers
    return replace(arrival, headers=headers, content_type=arrival.content_type or row.content_type)


def _is_about_content(error: StatementError) -> bool:
    """Whether the database refuses what a message holds, and will whenever it is asked."""
    if not isinstance(error, DBAPIError):
        return True  # it was not even sent: a value cannot be bound
    state = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or "")
    if state:
        return state.startswith(_CONTENT_CLASSES)
    # SQLite has no states; the driver of PostgreSQL calls a value that it cannot encode an interface error.
    return isinstance(error, IntegrityError | DataError) or "invalid input for query argument" in str(error.orig)
