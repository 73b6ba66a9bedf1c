"""Events in the store: taken in, looked at, acknowledged, brought back, deleted.

Functions of a connection, synchronous, as all SQL of redrive; `EventStore` runs them. What many callers ask at once is
asked once: posts share a commit, and so do looks at a status.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Text, any_, bindparam, delete, func, select, tuple_, update
from sqlalchemy.dialects import postgresql

from redrive.errors import LedgerAwayError
from redrive.extend import ATTEMPTS, Database, Gather
from redrive.systems.triggers import tables as t
from redrive.systems.triggers.beside import EventStatus
from redrive.systems.triggers.endpoints import Endpoint, matches, read_endpoint
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.settings import RETRIES_MAX

LEDGER = t.TRIGGER_DELIVERIES.name
IDS_PER_STATEMENT = 500
PAGE_BYTES_MAX = 4 << 20
"""A page of the inbox ends where its payloads come to this; one payload alone may be larger."""
OPEN = ("received", "queued")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to be taken in; its payload is JSON text."""

    user_id: str
    event_type: str
    payload: str
    correlation_id: str
    idempotency_key: str | None = None


class Taken(NamedTuple):
    """An event that is stored, now or before under the same idempotency key."""

    id: str
    status: str
    created_at: datetime
    new: bool


class Status(NamedTuple):
    """What the status of an event tells."""

    id: str
    status: str
    retry_attempts: int
    last_retry_at: datetime | None
    failed_at: datetime | None
    next_retry_at: datetime | None


class InboxPage(NamedTuple):
    """A page of the inbox, and whether there is more behind it."""

    events: list[Any]
    last: str
    """The id that the next page begins behind, if there is more."""
    has_more: bool
    total: int | None


class EventStore:
    """The events of one database."""

    def __init__(self, database: Database, status: EventStatus, *, retries_max: int = RETRIES_MAX) -> None:
        self.database = database
        self._status = status
        self._retries_max = retries_max
        self._takes: Gather[NewEvent, Taken] = Gather(self._take_gathered, items_max=200)

    # --- in ---------------------------------------------------------------------------------------------------------

    async def take(self, events: Sequence[NewEvent]) -> list[Taken]:
        """Store the events with their deliveries, all or nothing; when this returns they are durable."""
        taken = await self._takes(events)
        self.database.wake(LEDGER)
        return taken

    async def _take_gathered(self, events: Sequence[NewEvent]) -> list[Taken]:
        return await self.database.write(self._take, events)

    def _take(self, connection: Connection, events: Sequence[NewEvent]) -> list[Taken]:
        now = self.database.present(connection)
        ids = [new_id(now) for _ in events]
        rows = [
            {
                "id": id_, "user_id": event.user_id, "event_type": event.event_type, "payload": event.payload,
                "idempotency_key": event.idempotency_key, "correlation_id": event.correlation_id,
                "created_at": now, "updated_at": now,
            }
            for id_, event in zip(ids, events, strict=True)
        ]  # fmt: skip
        statement = self.database.insert(t.events).on_conflict_do_nothing(
            index_elements=["user_id", "idempotency_key"], index_where=t.events.c.idempotency_key.is_not(None)
        )
        new = set(connection.execute(statement.returning(t.events.c.id), rows).scalars())
        stored = [row for row in rows if row["id"] in new]
        self._fan_out(connection, stored, now)
        there = _taken_before(connection, [row for row in rows if row["id"] not in new])
        taken = []
        for id_, event in zip(ids, events, strict=True):
            if id_ in new:
                taken.append(Taken(id_, "received", now, True))
            else:
                before = there.get((event.user_id, event.idempotency_key or ""))
                if before is None:
                    raise LedgerAwayError("the event of this idempotency key was deleted meanwhile: send it again")
                taken.append(before)
        self._status.took(connection, stored)
        return taken

    def _fan_out(self, connection: Connection, rows: Sequence[dict[str, Any]], now: datetime) -> None:
        """One delivery for each new event and each enabled endpoint that wants it."""
        if not rows:
            return
        e = t.endpoints
        users = sorted({row["user_id"] for row in rows})
        wanted = select(e).where(e.c.user_id.in_(users), e.c.enabled.is_(True)).order_by(e.c.id)
        by_user: dict[str, list[Endpoint]] = defaultdict(list)
        for found in connection.execute(wanted):
            by_user[found.user_id].append(read_endpoint(found))
        deliveries = [
            {
                "id": new_id(now), "event_id": row["id"], "endpoint_id": endpoint.id, "user_id": row["user_id"],
                "correlation_id": row["correlation_id"], "created_at": now, "updated_at": now,
                "retries_max": min(endpoint.policy.get("max_retries", RETRIES_MAX), self._retries_max),
            }
            for row in rows
            for endpoint in by_user[row["user_id"]]
            if matches(endpoint.event_types, row["event_type"])
        ]  # fmt: skip
        if deliveries:
            connection.execute(t.deliveries.insert(), deliveries)
            self.database.announce(connection, LEDGER, soon=True)

    # --- looking ----------------------------------------------------------------------------------------------------

    async def get(self, user_id: str, id: str) -> Any | None:
        """The user's event with this id."""
        return await self.database.read(_get, user_id, id)

    async def page(
        self, user_id: str, status: str, *, event_type: str | None, after: str | None, limit: int
    ) -> InboxPage:
        """Events of a status, oldest first, from behind `after` on; fewer than `limit` where payloads are large."""
        return await self.database.read(_page, user_id, status, event_type, after, limit)

    async def attempts(self, user_id: str, *, event_id: str | None = None, endpoint_id: str | None = None,
                       limit: int = 100) -> list[Any]:  # fmt: skip
        """Tries, newest first: the latest of an event's deliveries, or those of the latest deliveries to an endpoint."""
        return await self.database.read(_attempts, user_id, event_id, endpoint_id, limit)

    async def totals(self) -> dict[str, int]:
        """How many events there are in each status, of all users."""
        return await self.database.read(_totals)

    # --- acting -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, user_id: str, id: str) -> str | None:
        """Acknowledge an event; the status that it has then, None if there is no such event."""
        return await self.database.write(self._acknowledge, user_id, id)

    def _acknowledge(self, connection: Connection, user_id: str, id: str) -> str | None:
        now = self.database.present(connection)
        e, d = t.events, t.deliveries
        mine = (e.c.id == id, e.c.user_id == user_id)
        if _lock_deliveries(connection, d.c.event_id == id, d.c.user_id == user_id):
            # One that is under way finds the event acknowledged when it is tried again.
            cancel_waiting(connection, now, d.c.event_id == id)
        said = update(e).where(*mine, e.c.status.in_(OPEN)).values(acknowledged_at=now)
        if connection.execute(said).rowcount:
            self._status.follow(connection, [id], now=now)
        status: str | None = connection.execute(select(e.c.status).where(*mine)).scalar()
        return status

    async def delete(self, user_id: str, id: str) -> bool:
        """Forget an event, its deliveries and their history; whether it was there."""
        return await self.database.write(self._delete, t.events.c.id == id, t.events.c.user_id == user_id) > 0

    async def forget_delivered(self, before: datetime, *, limit: int = IDS_PER_STATEMENT) -> int:
        """Delete events that were delivered before an instant; how many it were."""
        e = t.events
        return await self.database.write(
            self._delete, e.c.status == "delivered", e.c.delivered_at < before, limit=limit
        )

    def _delete(self, connection: Connection, *which: ColumnElement[bool], limit: int = 1) -> int:
        e, d, a = t.events, t.deliveries, ATTEMPTS
        ids = list(connection.execute(select(e.c.id).where(*which).limit(limit)).scalars())
        if not ids:
            return 0
        tried = _lock_deliveries(connection, d.c.event_id.in_(ids))
        for start in range(0, len(tried), IDS_PER_STATEMENT):
            part = tried[start : start + IDS_PER_STATEMENT]
            connection.execute(delete(a).where(a.c.ledger == LEDGER, a.c.task_id.in_(part)))
        connection.execute(select(e.c.id).where(e.c.id.in_(ids)).order_by(e.c.id).with_for_update()).all()
        gone = connection.execute(delete(e).where(e.c.id.in_(ids)).returning(e.c.user_id, e.c.status)).all()
        self._status.deleted(connection, [(row.user_id, row.status) for row in gone])
        return len(gone)

    async def dead_deliveries(self, user_id: str, id: str) -> tuple[str | None, list[str]]:
        """An event's status, None if there is no such event, and its deliveries that can be brought back."""
        return await self.database.read(_dead_deliveries, user_id, id)

    async def failed(
        self, user_id: str, *, event_type: str | None, endpoint_id: str | None, since: datetime | None,
        until: datetime | None, limit: int,
    ) -> tuple[dict[str, list[str]], bool]:  # fmt: skip
        """Failed events that can be brought back, oldest first, each with its dead deliveries; whether there are more."""
        return await self.database.read(_failed, user_id, event_type, endpoint_id, since, until, limit)


def cancel_waiting(
    connection: Connection, now: datetime, *which: ColumnElement[bool], error: str | None = None
) -> None:
    """End deliveries that wait; those under way end by their own settlement."""
    d = t.deliveries
    ended = {"status": "cancelled", "due_at": None, "ended_at": now, "updated_at": now}
    said = {} if error is None else {"last_error": error}
    connection.execute(update(d).where(*which, d.c.status == "waiting", d.c.lease_until.is_(None)).values(ended | said))


def _lock_deliveries(connection: Connection, *which: ColumnElement[bool]) -> list[str]:
    """Deliveries before their event, as a settlement does: two transactions then never wait in a circle."""
    d = t.deliveries
    return list(connection.execute(select(d.c.id).where(*which).order_by(d.c.id).with_for_update()).scalars())


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


# The text is the same for one id and for hundreds, so the database plans it once.
_STATUS_COLUMNS = select(t.events.c.user_id, *(t.events.c[name] for name in Status._fields))
_listed = func.json_each(bindparam("ids", type_=Text)).table_valued("value", name="asked")
_STATUSES = {
    "sqlite": _STATUS_COLUMNS.where(t.events.c.id.in_(select(_listed.c.value))),
    "postgresql": _STATUS_COLUMNS.where(t.events.c.id == any_(bindparam("ids", type_=postgresql.ARRAY(Text)))),
}


def read_statuses(connection: Connection, asked: Sequence[str]) -> dict[str, tuple[str, Status]]:
    """The statuses of these events, each with its owner."""
    found = connection.execute(_STATUSES[connection.dialect.name], {"ids": _as_parameter(connection, asked)})
    return {row[1]: (row[0], Status(*row[1:])) for row in found}


def _as_parameter(connection: Connection, ids: Sequence[str]) -> Any:
    return json.dumps(list(ids)) if connection.dialect.name == "sqlite" else list(ids)


def _get(connection: Connection, user_id: str, id: str) -> Any | None:
    return connection.execute(select(t.events).where(t.events.c.id == id, t.events.c.user_id == user_id)).first()


def _page(
    connection: Connection, user_id: str, status: str, event_type: str | None, after: str | None, limit: int
) -> InboxPage:
    e = t.events
    wanted = [e.c.user_id == user_id, e.c.status == status]
    total: int | None = None
    if event_type is not None:
        wanted.append(e.c.event_type == event_type)
    else:
        c = t.counts
        counted = select(func.sum(c.c.amount)).where(c.c.user_id == user_id, c.c.status == status)
        total = int(connection.execute(counted).scalar() or 0)
    # Sizes first: a hundred of the largest payloads together would be more than a process should hold for one request.
    # Payloads are ASCII, and PostgreSQL knows how many bytes there are without reading them.
    size = func.length if connection.dialect.name == "sqlite" else func.octet_length
    sizes = select(e.c.id, size(e.c.payload)).where(*wanted).order_by(e.c.id).limit(limit + 1)
    if after is not None:
        sizes = sizes.where(e.c.id > after)
    found = [(id_, int(amount)) for id_, amount in connection.execute(sizes)]
    kept = _fitting([amount for _, amount in found[:limit]])
    if not kept:
        return InboxPage([], "", False, total)
    # These and no others: one that comes in between must not push the last one out, which the cursor would then pass. And by their
    # ids alone: with the cursor beside them SQLite would rather walk all that is behind it.
    ids = [id_ for id_, _ in found[:kept]]
    rows = select(e.c.id, e.c.event_type, e.c.created_at, e.c.payload).where(*wanted, e.c.id.in_(ids)).order_by(e.c.id)
    return InboxPage(list(connection.execute(rows)), ids[-1], len(found) > kept, total)


def _fitting(sizes: Sequence[int]) -> int:
    """How many from the first on fit into a page: at least one, or nobody would ever get past it."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if number and total > PAGE_BYTES_MAX:
            return number
    return len(sizes)


def _attempts(
    connection: Connection, user_id: str, event_id: str | None, endpoint_id: str | None, limit: int
) -> list[Any]:
    d, a = t.deliveries, ATTEMPTS
    # The newest deliveries first and only so many of them: each has at least one try, so no more can be needed.
    few = select(d.c.id, d.c.event_id, d.c.endpoint_id).where(d.c.user_id == user_id, d.c.claimed_at.is_not(None))
    few = few.where(d.c.event_id == event_id) if event_id is not None else few.where(d.c.endpoint_id == endpoint_id)
    latest = few.order_by(d.c.id.desc()).limit(limit).subquery("latest")
    found = (
        select(a, latest.c.event_id, latest.c.endpoint_id)
        .join(latest, a.c.task_id == latest.c.id)
        .where(a.c.ledger == LEDGER)
        .order_by(a.c.ended_at.desc(), a.c.task_id.desc(), a.c.number.desc())
        .limit(limit)
    )
    return list(connection.execute(found))


def _totals(connection: Connection) -> dict[str, int]:
    c = t.counts
    found = connection.execute(select(c.c.status, func.sum(c.c.amount)).group_by(c.c.status))
    return {status: int(amount) for status, amount in found}


def _dead_deliveries(connection: Connection, user_id: str, id: str) -> tuple[str | None, list[str]]:
    e, d = t.events, t.deliveries
    status = connection.execute(select(e.c.status).where(e.c.id == id, e.c.user_id == user_id)).scalar()
    if status is None:
        return None, []
    found = connection.execute(select(d.c.id).where(d.c.event_id == id, d.c.status == "dead").order_by(d.c.id))
    return status, list(found.scalars())


def _failed(
    connection: Connection, user_id: str, event_type: str | None, endpoint_id: str | None,
    since: datetime | None, until: datetime | None, limit: int,
) -> tuple[dict[str, list[str]], bool]:  # fmt: skip
    e, d = t.events, t.deliveries
    dead = select(d.c.id).where(d.c.event_id == e.c.id, d.c.status == "dead")
    if endpoint_id is not None:
        dead = dead.where(d.c.endpoint_id == endpoint_id)
    asked = select(e.c.id).where(e.c.user_id == user_id, e.c.status == "failed", dead.exists())
    if event_type is not None:
        asked = asked.where(e.c.event_type == event_type)
    if since is not None:
        asked = asked.where(e.c.failed_at >= since)
    if until is not None:
        asked = asked.where(e.c.failed_at < until)
    ids = list(connection.execute(asked.order_by(e.c.id).limit(limit + 1)).scalars())
    found: dict[str, list[str]] = {id_: [] for id_ in ids[:limit]}
    bodies = select(d.c.event_id, d.c.id).where(d.c.event_id.in_(list(found)), d.c.status == "dead").order_by(d.c.id)
    if endpoint_id is not None:
        bodies = bodies.where(d.c.endpoint_id == endpoint_id)
    for event_id, delivery_id in connection.execute(bodies):
        found[event_id].append(delivery_id)
    return found, len(ids) > limit
