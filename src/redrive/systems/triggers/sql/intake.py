"""Taking events in: stored with their deliveries in one commit, which many posts share."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, literal_column, select, true, tuple_

from redrive.errors import LedgerAwayError
from redrive.extend import Database, Gated, NamedGate, OnDatabase
from redrive.sql import Batch, Compiled, Gather, one_of, portions
from redrive.systems.triggers.endpoints import matches
from redrive.systems.triggers.ids import new_id, new_ids
from redrive.systems.triggers.ledger import DELIVERIES
from redrive.systems.triggers.settings import RETRIES_MAX
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.beside import EventStatus
from redrive.systems.triggers.sql.endpoints import endpoint_of
from redrive.systems.triggers.values import Endpoint, NewEvent, Taken

_GIVEN = ("id", "user_id", "event_type", "payload", "idempotency_key", "correlation_id")
_STAMPED = ("created_at", "updated_at")


class _Fans(NamedTuple):
    """How many deliveries each event has, and the gates that they are for."""

    amounts: Counter[str]
    gates: set[NamedGate]
    ways: Sequence[tuple[str, str]]
    """Each event with each endpoint that it goes to."""


class SqlIntake(OnDatabase):
    """See `Intake`."""

    payload_bytes_max: int | None = None

    def __init__(
        self, database: Database, status: EventStatus, ledger: Callable[[], Awaitable[Gated]],
        *, retries_max: int = RETRIES_MAX,
    ) -> None:  # fmt: skip
        """`ledger` is that of the deliveries, opened when it is first asked for."""
        super().__init__(database)
        self._status = status
        self._ledger = ledger
        self._retries_max = retries_max
        self._takes: Gather[NewEvent, Taken] = Gather(self._store, items_max=200)
        e, p = t.events, t.endpoints
        one = select(literal_column("1")).subquery()
        wanted = and_(one_of(p.c.user_id, "users"), p.c.enabled.is_(True))
        # One look instead of two: the present is there once for each endpoint, and once where there is none.
        self._look = Compiled(
            select(database.dialect.now().label("present"), p).select_from(one.outerjoin(p, wanted)).order_by(p.c.id)
        )
        self._new = Batch(database.dialect, {name: e.c[name].type for name in _GIVEN})
        at = [bindparam("at", type_=e.c[name].type).label(name) for name in _STAMPED]
        # SQLite takes ON CONFLICT for a join without a condition before it.
        row = select(*(self._new.rows.c[name] for name in _GIVEN), *at).where(true())
        self._insert = Compiled(
            database.insert(e)
            .from_select([*_GIVEN, *_STAMPED], row, include_defaults=False)
            .on_conflict_do_nothing(
                index_elements=["user_id", "idempotency_key"], index_where=e.c.idempotency_key.is_not(None)
            )
        )
        self._which = Compiled(select(e.c.id).where(one_of(e.c.id, "ids")))

    async def take(self, events: Sequence[NewEvent]) -> list[Taken]:
        """See `Intake.take`: all or nothing."""
        taken = await self._takes(events)
        if any(one.deliveries for one in taken):
            self._database.wake(DELIVERIES)
        return taken

    async def _store(self, events: Sequence[NewEvent]) -> list[Taken]:
        made: list[str] = []
        ledger = await self._ledger()
        try:
            return await self._database.write(self._take, events, made, ledger)
        finally:
            self._status.order.heard(made)

    def _take(self, connection: Connection, events: Sequence[NewEvent], made: list[str], ledger: Gated) -> list[Taken]:
        now, endpoints = self._enabled(connection, {event.user_id for event in events})
        ids = new_ids(now, len(events))
        made += ids
        self._status.order.expect(ids)
        rows = [
            {
                "id": id_, "user_id": event.user_id, "event_type": event.event_type, "payload": event.payload,
                "idempotency_key": event.idempotency_key, "correlation_id": event.correlation_id,
                "created_at": now, "updated_at": now,
            }
            for id_, event in zip(ids, events, strict=True)
        ]  # fmt: skip
        new = self._insert_new(connection, rows, now)
        stored = [row for row in rows if row["id"] in new]
        fans = self._fan_out(connection, stored, endpoints, now)
        there = _taken_before(connection, [row for row in rows if row["id"] not in new])
        parked = set[str]()
        if fans.gates:
            # Late, since claims pass a gate by that somebody has locked; and before the counters, as settlements have it.
            shut = ledger.make_gates(connection, fans.gates).shut
            parked = {event_id for event_id, endpoint_id in fans.ways if endpoint_id in shut} if shut else parked
        taken = []
        for id_, event in zip(ids, events, strict=True):
            if id_ in new:
                taken.append(Taken(id_, "queued" if id_ in parked else "received", now, True, fans.amounts[id_]))
            else:
                before = there.get((event.user_id, event.idempotency_key or ""))
                if before is None:
                    raise LedgerAwayError("the event of this idempotency key was deleted meanwhile: send it again")
                taken.append(before)
        self._status.took(connection, stored)
        if parked:
            self._status.park(connection, parked, now)
        return taken

    def _insert_new(self, connection: Connection, rows: Sequence[dict[str, Any]], now: datetime) -> set[str]:
        """The ids of those that are new. They are ours: how many there are is all that is asked where all are."""
        new, amount = {row["id"] for row in rows}, 0
        for portion in portions(len(row["payload"]) for row in rows):
            given = self._new.parameters([row[name] for name in _GIVEN] for row in rows[portion])
            amount += self._insert.changed(connection, given | {"at": now})
        if amount == len(new):
            return new
        return {row[0] for row in self._which.rows(connection, {"ids": sorted(new)})}

    def _enabled(self, connection: Connection, users: Collection[str]) -> tuple[datetime, Mapping[str, list[Endpoint]]]:
        """The present, and the enabled endpoints of each of the users."""
        own = None if self._database.server_clock else self._database.now()
        by_user: dict[str, list[Endpoint]] = defaultdict(list)
        found = self._look.named(connection, {"users": sorted(users), **self._database.dialect.times(own)})
        for row in found:
            if row.id is not None:
                cells = row._asdict()
                del cells["present"]
                by_user[row.user_id].append(endpoint_of(cells))
        return own or found[0].present, by_user

    def _fan_out(
        self,
        connection: Connection,
        rows: Sequence[dict[str, Any]],
        by_user: Mapping[str, list[Endpoint]],
        now: datetime,
    ) -> _Fans:
        """One delivery for each new event and each enabled endpoint that wants it."""
        deliveries = [
            {
                "id": new_id(now), "event_id": row["id"], "endpoint_id": endpoint.id, "user_id": row["user_id"],
                "correlation_id": row["correlation_id"], "created_at": now, "updated_at": now,
                "retries_max": min(endpoint.policy.get("max_retries", RETRIES_MAX), self._retries_max),
            }
            for row in rows
            for endpoint in by_user.get(row["user_id"], ())
            if matches(endpoint.event_types, row["event_type"])
        ]  # fmt: skip
        if deliveries:
            connection.execute(t.deliveries.insert(), deliveries)
            self._database.announce(connection, DELIVERIES, soon=True)
        return _Fans(
            Counter(row["event_id"] for row in deliveries),
            {NamedGate(row["endpoint_id"], None, row["user_id"]) for row in deliveries},
            [(row["event_id"], row["endpoint_id"]) for row in deliveries],
        )


def _taken_before(connection: Connection, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Taken]:
    if not rows:
        return {}
    e = t.events
    asked = [(row["user_id"], row["idempotency_key"]) for row in rows]
    found = connection.execute(
        select(e.c.user_id, e.c.idempotency_key, e.c.id, e.c.status, e.c.created_at).where(
            tuple_(e.c.user_id, e.c.idempotency_key).in_(asked)
        )
    )
    return {(row[0], row[1]): Taken(row[2], row[3], row[4], False) for row in found}
