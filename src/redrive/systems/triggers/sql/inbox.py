"""Events that were taken in, as their owners see them: looked at, acknowledged, deleted, found to be tried again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, delete, func, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from redrive.extend import ATTEMPTS, Database, OnDatabase, reads, writes
from redrive.sql import one_of
from redrive.systems.triggers.inbox import fitting
from redrive.systems.triggers.ledger import DELIVERIES
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.beside import EVERYBODY, EventStatus
from redrive.systems.triggers.values import (
    DeadDeliveries,
    DeliveryTry,
    FailedEvents,
    InboxPage,
    ListedEvent,
    Status,
    StoredEvent,
)

IDS_PER_STATEMENT = 500
PAGE_BYTES_MAX = 4 << 20
"""A page ends where its payloads come to this; one payload alone may be larger."""
OPEN = ("received", "queued")


class SqlInbox(OnDatabase):
    """See `Inbox`."""

    def __init__(self, database: Database, status: EventStatus) -> None:
        super().__init__(database)
        self._status = status

    # --- looking ----------------------------------------------------------------------------------------------------

    @reads
    def get(self, connection: Connection, user_id: str, id: str) -> StoredEvent | None:
        """See `Inbox.get`."""
        e = t.events
        row = connection.execute(_EVENT.where(e.c.id == id, e.c.user_id == user_id)).first()
        return None if row is None else StoredEvent(*row)

    @reads
    def page(
        self,
        connection: Connection,
        user_id: str,
        status: str,
        *,
        event_type: str | None,
        after: str | None,
        limit: int,
    ) -> InboxPage:
        """See `Inbox.page`."""
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
        sizes = select(e.c.id, ByteLength(e.c.payload)).where(*wanted).order_by(e.c.id).limit(limit + 1)
        if after is not None:
            sizes = sizes.where(e.c.id > after)
        found = [(id_, int(amount)) for id_, amount in connection.execute(sizes)]
        kept = fitting([amount for _, amount in found[:limit]], PAGE_BYTES_MAX)
        if not kept:
            return InboxPage([], "", False, total)
        # These and no others: one that comes in between must not push the last one out, which the cursor would then pass. And by their
        # ids alone: with the cursor beside them SQLite would rather walk all that is behind it.
        ids = [id_ for id_, _ in found[:kept]]
        rows = select(*(e.c[name] for name in ListedEvent._fields)).where(*wanted, e.c.id.in_(ids)).order_by(e.c.id)
        events = [ListedEvent(*row) for row in connection.execute(rows)]
        return InboxPage(events, ids[-1], len(found) > kept, total)

    @reads
    def attempts(
        self,
        connection: Connection,
        user_id: str,
        *,
        event_id: str | None = None,
        endpoint_id: str | None = None,
        limit: int = 100,
    ) -> list[DeliveryTry]:
        """See `Inbox.attempts`."""
        d, a = t.deliveries, ATTEMPTS
        # The newest deliveries first and only so many of them: each has at least one try, so no more can be needed.
        few = select(d.c.id, d.c.event_id, d.c.endpoint_id).where(d.c.user_id == user_id, d.c.claimed_at.is_not(None))
        few = few.where(d.c.event_id == event_id) if event_id is not None else few.where(d.c.endpoint_id == endpoint_id)
        latest = few.order_by(d.c.id.desc()).limit(limit).subquery("latest")
        found = (
            select(latest.c.event_id, latest.c.endpoint_id, *(a.c[name] for name in DeliveryTry._fields[2:]))
            .join(latest, a.c.task_id == latest.c.id)
            .where(a.c.ledger == DELIVERIES)
            .order_by(a.c.ended_at.desc(), a.c.task_id.desc(), a.c.number.desc())
            .limit(limit)
        )
        return [DeliveryTry(*row) for row in connection.execute(found)]

    @reads
    def totals(self, connection: Connection) -> dict[str, int]:
        """See `Inbox.totals`: at one instant."""
        c = t.counts
        asked = select(c.c.status, func.sum(c.c.amount)).where(c.c.user_id == EVERYBODY).group_by(c.c.status)
        return {status: int(amount) for status, amount in connection.execute(asked)}

    # --- acting -----------------------------------------------------------------------------------------------------

    @writes
    def acknowledge(self, connection: Connection, user_id: str, id: str) -> str | None:
        """See `Inbox.acknowledge`."""
        now = self._database.present(connection)
        e, d = t.events, t.deliveries
        mine = (e.c.id == id, e.c.user_id == user_id)
        deliveries = _lock_deliveries(connection, d.c.event_id == id, d.c.user_id == user_id)
        if deliveries:
            # One that is under way finds the event acknowledged when it is tried again.
            waiting = (d.c.event_id == id, d.c.status == "waiting", d.c.lease_until.is_(None))
            ended = {"status": "cancelled", "due_at": None, "ended_at": now, "updated_at": now}
            connection.execute(update(d).where(*waiting).values(ended))
        said = update(e).where(*mine, e.c.status.in_(OPEN)).values(acknowledged_at=now)
        if connection.execute(said).rowcount:
            self._status.follow(connection, dict.fromkeys(deliveries, id), acknowledged=id, now=now)
        status: str | None = connection.execute(select(e.c.status).where(*mine)).scalar()
        return status

    async def delete(self, user_id: str, id: str) -> bool:
        """See `Inbox.delete`."""
        return await self._database.write(self._delete, t.events.c.id == id, t.events.c.user_id == user_id) > 0

    async def forget_delivered(self, before: datetime | None, *, limit: int = IDS_PER_STATEMENT) -> int:
        """See `Inbox.forget_delivered`: nothing is ever left half deleted here."""
        if before is None:
            return 0
        e = t.events
        return await self._database.write(
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
            connection.execute(delete(a).where(a.c.ledger == DELIVERIES, a.c.task_id.in_(part)))
        connection.execute(select(e.c.id).where(e.c.id.in_(ids)).order_by(e.c.id).with_for_update()).all()
        gone = connection.execute(delete(e).where(e.c.id.in_(ids)).returning(e.c.user_id, e.c.status)).all()
        self._status.deleted(connection, [(row.user_id, row.status) for row in gone])
        return len(gone)

    @reads
    def waiting(self, connection: Connection, id: str) -> list[tuple[str, datetime | None]]:
        """See `Inbox.waiting`."""
        d = t.deliveries
        asked = select(d.c.endpoint_id, d.c.due_at).where(d.c.event_id == id, d.c.status == "waiting")
        return [(row.endpoint_id, row.due_at) for row in connection.execute(asked.order_by(d.c.id))]

    @reads
    def dead_deliveries(self, connection: Connection, user_id: str, id: str) -> DeadDeliveries:
        """See `Inbox.dead_deliveries`."""
        e, d = t.events, t.deliveries
        status = connection.execute(select(e.c.status).where(e.c.id == id, e.c.user_id == user_id)).scalar()
        if status is None:
            return DeadDeliveries(None, [])
        found = connection.execute(select(d.c.id).where(d.c.event_id == id, d.c.status == "dead").order_by(d.c.id))
        return DeadDeliveries(status, list(found.scalars()))

    @reads
    def failed(
        self,
        connection: Connection,
        user_id: str,
        *,
        event_type: str | None,
        endpoint_id: str | None,
        since: datetime | None,
        until: datetime | None,
        limit: int,
    ) -> FailedEvents:
        """See `Inbox.failed`."""
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
        bodies = (
            select(d.c.event_id, d.c.id).where(d.c.event_id.in_(list(found)), d.c.status == "dead").order_by(d.c.id)
        )
        if endpoint_id is not None:
            bodies = bodies.where(d.c.endpoint_id == endpoint_id)
        for event_id, delivery_id in connection.execute(bodies):
            found[event_id].append(delivery_id)
        return FailedEvents(found, len(ids) > limit)


def _lock_deliveries(connection: Connection, *which: ColumnElement[bool]) -> list[str]:
    """Deliveries before their event, as a settlement does: two transactions then never wait in a circle."""
    d = t.deliveries
    return list(connection.execute(select(d.c.id).where(*which).order_by(d.c.id).with_for_update()).scalars())


_EVENT = select(*(t.events.c[name] for name in StoredEvent._fields))
_STATUSES = select(t.events.c.user_id, *(t.events.c[name] for name in Status._fields)).where(
    one_of(t.events.c.id, "ids")
)


def read_statuses(connection: Connection, asked: Sequence[str]) -> dict[str, tuple[str, Status]]:
    """The statuses of these events, each with its owner."""
    found = connection.execute(_STATUSES, {"ids": asked})
    return {row[1]: (row[0], Status(*row[1:])) for row in found}


class ByteLength(FunctionElement[int]):
    """How many bytes a text in ASCII has. PostgreSQL knows that without reading them."""

    type = Integer()
    inherit_cache = True


@compiles(ByteLength)
def _octet_length(element: ByteLength, compiler: Any, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(ByteLength, "sqlite")
def _length(element: ByteLength, compiler: Any, **options: Any) -> str:
    return f"length({compiler.process(element.clauses, **options)})"
