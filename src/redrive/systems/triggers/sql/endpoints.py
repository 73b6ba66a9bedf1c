"""EndpointStore in their table, with their health and the notices that their owners read."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from redrive.extend import Database, OnDatabase, reads, writes
from redrive.sql import Gather
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers import endpoints as rules
from redrive.systems.triggers.endpoints import (
    BY_OWNER,
    ENDPOINTS_PER_USER_MAX,
    OLD_SECRET_LASTS,
    SWITCHED_ON,
    TooManyEndpointsError,
    disable_notice,
    switched_off,
)
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.beside import EventStatus
from redrive.systems.triggers.values import Endpoint, Notice

CANCELLED_AT_ONCE = 500


def read_endpoint(row: Any) -> Endpoint:
    """An endpoint from its row."""
    return endpoint_of(row._asdict())


def endpoint_of(cells: Mapping[str, Any]) -> Endpoint:
    """An endpoint from its columns."""
    return Endpoint(**{**cells, "event_types": tuple(cells["event_types"])})


class SqlEndpoints(OnDatabase):
    """See `EndpointStore`."""

    def __init__(
        self,
        database: Database,
        status: EventStatus,
        keeper: SecretKeeper,
        ledger: Callable[[], Awaitable[Any]],
    ) -> None:
        super().__init__(database)
        self._ledger = ledger
        self._status = status
        self._keeper = keeper
        self._healths: Gather[tuple[str, bool], None] = Gather(self._note)

    async def create(self, values: Mapping[str, Any]) -> Endpoint:
        """See `EndpointStore.create`."""
        made = await self._create({**values, "secret": self._keeper.seal(values["secret"])})
        return replace(made, secret=values["secret"])

    @writes
    def _create(self, connection: Connection, values: Mapping[str, Any]) -> Endpoint:
        e = t.endpoints
        now = self._database.present(connection)
        held = connection.execute(select(func.count()).where(e.c.user_id == values["user_id"])).scalar_one()
        if held >= ENDPOINTS_PER_USER_MAX:
            raise TooManyEndpointsError
        row = {**values, "id": new_id(now), "created_at": now, "updated_at": now}
        if not values["enabled"]:
            row |= switched_off(now, BY_OWNER, by=values["user_id"])
        return read_endpoint(connection.execute(insert(e).values(row).returning(*e.c)).one())

    @reads
    def some_secret(self, connection: Connection) -> str | None:
        """See `EndpointStore.some_secret`."""
        return connection.execute(select(t.endpoints.c.secret).limit(1)).scalar()

    @reads
    def of_user(self, connection: Connection, user_id: str) -> list[Endpoint]:
        """See `EndpointStore.of_user`."""
        e = t.endpoints
        return [
            read_endpoint(row) for row in connection.execute(select(e).where(e.c.user_id == user_id).order_by(e.c.id))
        ]

    @reads
    def get(self, connection: Connection, user_id: str, id: str) -> Endpoint | None:
        """See `EndpointStore.get`."""
        e = t.endpoints
        row = connection.execute(select(e).where(e.c.id == id, e.c.user_id == user_id)).first()
        return None if row is None else read_endpoint(row)

    async def change(self, user_id: str, id: str, values: Mapping[str, Any], *, rotate: bool) -> Endpoint | None:
        """See `EndpointStore.change`."""
        if "secret" not in values:
            return await self._change(user_id, id, values, rotate=rotate)
        changed = await self._change(
            user_id, id, {**values, "secret": self._keeper.seal(values["secret"])}, rotate=rotate
        )
        return None if changed is None else replace(changed, secret=values["secret"])

    @writes
    def _change(
        self, connection: Connection, user_id: str, id: str, values: Mapping[str, Any], *, rotate: bool
    ) -> Endpoint | None:
        e = t.endpoints
        now = self._database.present(connection)
        mine = (e.c.id == id, e.c.user_id == user_id)
        row = {**values, "updated_at": now}
        if rotate:
            row |= {"old_secret": e.c.secret, "old_secret_until": now + OLD_SECRET_LASTS}
        if "enabled" in values:
            row |= SWITCHED_ON if values["enabled"] else switched_off(now, BY_OWNER, by=user_id)
        changed = connection.execute(update(e).where(*mine).values(row).returning(*e.c)).first()
        return None if changed is None else read_endpoint(changed)

    async def delete(self, user_id: str, id: str) -> bool:
        """See `EndpointStore.delete`: in blocks, each in a commit of its own."""
        e = t.endpoints
        mine = delete(e).where(e.c.id == id, e.c.user_id == user_id)
        if not await self._database.write(lambda connection: connection.execute(mine).rowcount):
            return False
        after: str | None = ""
        while after is not None:
            after = await self._database.write(self._cancel_some, id, after)
        await (await self._ledger()).forget_gates([id])
        return True

    def _cancel_some(self, connection: Connection, endpoint_id: str, after: str) -> str | None:
        """Cancel a block of what waits for an endpoint; the last of it, None if there was nothing left."""
        d = t.deliveries
        waiting = (d.c.endpoint_id == endpoint_id, d.c.status == "waiting", d.c.lease_until.is_(None), d.c.id > after)
        some = select(d.c.id, d.c.event_id).where(*waiting).order_by(d.c.id).limit(CANCELLED_AT_ONCE)
        found = connection.execute(some.with_for_update()).all()
        if not found:
            return None
        now = self._database.present(connection)
        ended = {"status": "cancelled", "due_at": None, "ended_at": now, "updated_at": now}
        those = update(d).where(d.c.id.in_([row.id for row in found]))
        connection.execute(those.values(ended | {"last_error": "the endpoint was deleted"}))
        self._status.follow(connection, {row.id: row.event_id for row in found})
        return str(found[-1].id)

    # --- how it is doing ------------------------------------------------------------------------------------------

    async def note(self, endpoint: Endpoint, *, delivered: bool) -> None:
        """See `EndpointStore.note`."""
        if delivered != (endpoint.failing_since is None):
            await self._healths([(endpoint.id, delivered)])

    @writes
    def _note(self, connection: Connection, notes: Sequence[tuple[str, bool]]) -> list[None]:
        e, delivered = t.endpoints, dict(notes)
        well = sorted(id_ for id_, success in delivered.items() if success)
        unwell = sorted(id_ for id_, success in delivered.items() if not success)
        if well:
            connection.execute(update(e).where(e.c.id.in_(well)).values(failing_since=None))
        if unwell:
            since = {"failing_since": self._database.present(connection)}
            connection.execute(update(e).where(e.c.id.in_(unwell), e.c.failing_since.is_(None)).values(since))
        return [None] * len(notes)

    @writes
    def disable(
        self, connection: Connection, endpoint: Endpoint, reason: str, *, failing_since: datetime | None = None
    ) -> bool:
        """See `EndpointStore.disable`."""
        e = t.endpoints
        now = self._database.present(connection)
        still = [e.c.id == endpoint.id, e.c.enabled.is_(True)]
        if failing_since is not None:
            still.append(e.c.failing_since <= failing_since)
        off = switched_off(now, reason) | {"updated_at": now}
        disabled = connection.execute(update(e).where(*still).values(off).returning(e.c.id)).first()
        if disabled is None:
            return False
        leave_notices(connection, [(endpoint, disable_notice(endpoint.url, reason))], now)
        return True

    @reads
    def notices(self, connection: Connection, user_id: str) -> list[Notice]:
        """See `EndpointStore.notices`."""
        n = t.notices
        mine = select(*(n.c[name] for name in Notice._fields)).where(n.c.user_id == user_id)
        newest = mine.order_by(n.c.id.desc()).limit(rules.NOTICES_PER_USER_MAX)
        return [Notice(*row) for row in connection.execute(newest)]


def leave_notices(connection: Connection, told: Sequence[tuple[Any, str]], now: datetime) -> None:
    """Tell the owners of endpoints, who read it at `/v1/notices`; older ones than the newest hundred are forgotten."""
    n = t.notices
    rows = [{"user_id": one.user_id, "endpoint_id": one.id, "at": now, "message": message} for one, message in told]
    connection.execute(insert(n), rows)
    for user_id in sorted({row["user_id"] for row in rows}):
        mine = n.c.user_id == user_id
        older = select(n.c.id).where(mine).order_by(n.c.id.desc()).offset(rules.NOTICES_PER_USER_MAX).limit(1)
        connection.execute(delete(n).where(mine, n.c.id <= older.scalar_subquery()))
