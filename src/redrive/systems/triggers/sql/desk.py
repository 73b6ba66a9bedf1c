"""The endpoints of all users with what they owe, counted by the index of failed deliveries; and operators who switch them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from redrive.extend import OnDatabase, looks, reads, record_act, writes
from redrive.lane import Actor
from redrive.operator.cursors import Position
from redrive.operator.sql.cursors import behind
from redrive.operator.words import redact
from redrive.systems.triggers.endpoints import (
    BY_OPERATOR,
    SWITCHED_ON,
    shown_url,
    state_of,
    switch_notice,
    switched_off,
)
from redrive.systems.triggers.ledger import ENDPOINTS
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.endpoints import leave_notices
from redrive.systems.triggers.values import (
    COUNTED_MAX,
    EndpointState,
    GivenUp,
    LatestFailure,
    SeenEndpoint,
    Switched,
)

LOOK_WITHIN = timedelta(seconds=2)


def _owed(status: str) -> ColumnElement[bool]:
    """Deliveries to the endpoint of the row that have failed before; the words of the index that serves it."""
    d = t.deliveries
    return and_(d.c.endpoint_id == t.endpoints.c.id, d.c.status == status, d.c.last_error.is_not(None))


def _amount(status: str) -> Any:
    some = select(t.deliveries.c.id).where(_owed(status)).limit(COUNTED_MAX).correlate(t.endpoints).subquery()
    return select(func.count()).select_from(some).scalar_subquery()


def _latest(status: str) -> Any:
    return select(func.max(t.deliveries.c.id)).where(_owed(status)).correlate(t.endpoints).scalar_subquery()


_ENDPOINTS = select(
    *(
        t.endpoints.c[name]
        for name in (
            "id", "user_id", "url", "description", "event_types", "failing_since",
            "disabled_at", "disabled_reason", "disabled_by", "created_at",
        )
    ),
    _amount("waiting").label("retrying"),
    _amount("dead").label("failed"),
    _latest("waiting").label("latest_waiting"),
    _latest("dead").label("latest_dead"),
)  # fmt: skip
_IN_STATE: Mapping[EndpointState, ColumnElement[bool]] = {
    "disabled": t.endpoints.c.disabled_at.is_not(None),
    "failing": and_(t.endpoints.c.failing_since.is_not(None), t.endpoints.c.disabled_at.is_(None)),
    "enabled": and_(t.endpoints.c.failing_since.is_(None), t.endpoints.c.disabled_at.is_(None)),
}
_SINCE = {"disabled": t.endpoints.c.disabled_at, "failing": t.endpoints.c.failing_since}


_GIVEN_UP = and_(t.endpoints.c.disabled_at.is_not(None), t.endpoints.c.disabled_by.is_(None))


class SqlEndpointBook(OnDatabase):
    """See `EndpointBook`."""

    @looks(LOOK_WITHIN)
    def seen(
        self,
        connection: Connection,
        *,
        user: str | None,
        state: EndpointState | None,
        after: Position | None,
        limit: int,
    ) -> tuple[list[SeenEndpoint], bool]:
        """See `EndpointBook.seen`."""
        e = t.endpoints
        wanted = _ENDPOINTS.limit(limit + 1)
        if user is not None:
            wanted = wanted.where(e.c.user_id == user)
        if state is not None:
            wanted = wanted.where(_IN_STATE[state])
        since = _SINCE.get(state) if state is not None else None
        if since is None:
            wanted = wanted.order_by(e.c.id.desc())
            if after is not None:
                wanted = wanted.where(e.c.id < after.id)
        else:
            wanted = wanted.order_by(since.desc(), e.c.id.desc())
            if after is not None:
                wanted = wanted.where(behind(since, e.c.id, after, connection, newest_first=True))
        rows = connection.execute(wanted).all()
        failures = _failures(connection, rows[:limit])
        return [_seen(row, failures) for row in rows[:limit]], len(rows) > limit

    @reads
    def given_up(self, connection: Connection, limit: int) -> tuple[list[GivenUp], int]:
        """See `EndpointBook.given_up`."""
        e = t.endpoints
        named = select(*(e.c[name] for name in GivenUp._fields)).where(_GIVEN_UP)
        found = connection.execute(named.order_by(e.c.disabled_at, e.c.id).limit(limit)).all()
        more = _amount_given_up(connection) - len(found) if len(found) == limit else 0
        return [GivenUp(*row) for row in found], max(0, more)

    @looks(LOOK_WITHIN)
    def amount_given_up(self, connection: Connection) -> int:
        """See `EndpointBook.amount_given_up`."""
        return _amount_given_up(connection)

    @writes
    def switch(self, connection: Connection, ids: Sequence[str], *, enabled: bool, actor: str, reason: str) -> Switched:
        """See `EndpointBook.switch`."""
        e = t.endpoints
        # Locked in one order, so that two who press at once wait for each other and not in a circle.
        there = set(
            connection.execute(select(e.c.id).where(e.c.id.in_(ids)).order_by(e.c.id).with_for_update()).scalars()
        )
        now = self._database.present(connection)
        still: ColumnElement[bool] = e.c.enabled.is_(False)
        values = dict(SWITCHED_ON)
        if not enabled:
            still = or_(e.c.enabled.is_(True), e.c.disabled_by.is_(None))
            values = switched_off(now, BY_OPERATOR.format(reason), by=actor)
        switch = update(e).where(e.c.id.in_(ids), still).values(values | {"updated_at": now})
        changed = connection.execute(switch.returning(e.c.id, e.c.user_id, e.c.url)).all()
        if changed:
            leave_notices(connection, [(row, switch_notice(row.url, reason, enabled=enabled)) for row in changed], now)
            act = "enable" if enabled else "disable"
            who = Actor(name=actor, reason=reason)
            record_act(connection, ledger=ENDPOINTS, act=act, things=[row.id for row in changed], actor=who, at=now)
        return Switched(there, {row.id for row in changed})

    @reads
    def states(self, connection: Connection, ids: Sequence[str]) -> dict[str, bool]:
        """See `EndpointBook.states`."""
        e = t.endpoints
        return {row.id: row.enabled for row in connection.execute(select(e.c.id, e.c.enabled).where(e.c.id.in_(ids)))}

    @reads
    def dead(self, connection: Connection, endpoint_id: str, after: str, limit: int) -> list[str]:
        """See `EndpointBook.dead`."""
        d = t.deliveries
        dead = (d.c.endpoint_id == endpoint_id, d.c.status == "dead", d.c.last_error.is_not(None), d.c.id > after)
        return list(connection.execute(select(d.c.id).where(*dead).order_by(d.c.id).limit(limit)).scalars())


def _failures(connection: Connection, rows: Sequence[Any]) -> dict[str, LatestFailure]:
    d = t.deliveries
    ids = [id_ for row in rows for id_ in (row.latest_waiting, row.latest_dead) if id_ is not None]
    # Since it was last tried somebody may have brought it back, which changes its row and not what went wrong.
    tried = func.coalesce(d.c.claimed_at, d.c.updated_at, type_=d.c.updated_at.type).label("tried_at")
    asked = select(d.c.id, tried, d.c.last_error).where(d.c.id.in_(ids))
    return {
        row.id: LatestFailure(row.id, row.tried_at, redact(row.last_error or "")) for row in connection.execute(asked)
    }


def _seen(row: Any, failures: Mapping[str, LatestFailure]) -> SeenEndpoint:
    state, since = state_of(row.created_at, row.failing_since, row.disabled_at)
    latest = [failures[id_] for id_ in (row.latest_waiting, row.latest_dead) if id_ in failures]
    return SeenEndpoint(
        id=row.id, user=row.user_id, url=shown_url(row.url), description=row.description,
        event_types=tuple(row.event_types), state=state, since=since, disabled_reason=row.disabled_reason,
        disabled_by=row.disabled_by, created_at=row.created_at, retrying=row.retrying, failed=row.failed,
        latest_failure=max(latest, key=lambda one: one.at, default=None),
    )  # fmt: skip


def _amount_given_up(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(t.endpoints).where(_GIVEN_UP)).scalar_one()
