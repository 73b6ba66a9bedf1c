"""Endpoints as operators see them: those of all users, what they owe, switching them, and bringing back what failed.

It goes by the owners' own rules: what is written when an endpoint is switched is said in `endpoints.py`, and deliveries come back
through their lane. Secrets are not even read here. Who did what to an endpoint stands in the audit log under `LEDGER`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, update

from redrive import Filter
from redrive.errors import UsageError
from redrive.extend import DEEDS, Database
from redrive.lane import Lane
from redrive.operator.alert_rules import Alarm
from redrive.operator.cursors import Position, read_cursor, write_cursor
from redrive.operator.json_views import instant_json
from redrive.operator.sql.cursors import behind
from redrive.operator.words import redact
from redrive.systems.triggers import tables as t
from redrive.systems.triggers.endpoints import SWITCHED_ON, leave_notices, switched_off
from redrive.systems.triggers.ids import read_id
from redrive.systems.triggers.values import (
    COUNTED_MAX,
    EndpointPage,
    EndpointsActed,
    EndpointState,
    LatestFailure,
    SeenEndpoint,
)

LEDGER = t.endpoints.name
PAGE = "/systems/triggers"
ALARMS_MAX = 50
"""Endpoints that are told of one by one; how many more there are is one more alarm."""
DELIVERIES_PER_RETRY = 5000
DELIVERIES_PER_BLOCK = 500
NAME_CHARS_MAX = 80
LOOK_WITHIN = timedelta(seconds=2)

UNKNOWN = "there is no such endpoint"
MORE = f"not all of it: {DELIVERIES_PER_RETRY:,} deliveries come back at once; retry again for the rest"


class EndpointDesk:
    """All endpoints of one database."""

    def __init__(self, database: Database, lane: Lane) -> None:
        self._database = database
        self._lane = lane

    async def page(self, *, user: str | None = None, state: EndpointState | None = None, cursor: str | None = None,
                   limit: int = 50) -> EndpointPage:  # fmt: skip
        """Endpoints, newest first; those that are disabled or failing by since when, latest first."""
        after = None if cursor is None else read_cursor(cursor, _known_id)
        return await self._database.look(LOOK_WITHIN, _page, user, state, after, limit)

    async def alarms(self) -> list[Alarm]:
        """Endpoints that were disabled by their failures, and not by anybody; the oldest first.

        So one that comes later never takes the place of one that was told, which would look as if that one were well again.
        """
        found, more = await self._database.read(_given_up)
        alarms = [Alarm(f"endpoint_disabled {row.id}", _sentence(row), "endpoint_disabled") for row in found]
        if more:
            said = f"triggers: {more:,} more endpoints were disabled by their failures: see {PAGE}?state=disabled"
            alarms.append(Alarm("endpoint_disabled and more", said, "endpoint_disabled"))
        return alarms

    async def given_up(self) -> int:
        """How many endpoints were disabled by their failures, and not by anybody."""
        return await self._database.look(LOOK_WITHIN, _amount_given_up)

    async def enable(self, ids: Sequence[str], *, actor: str, reason: str) -> EndpointsActed:
        """Switch endpoints on, with a fresh start. What failed meanwhile stays failed: see `retry`."""
        return await self._database.write(_switch, True, ids, actor, reason, self._database)

    async def disable(self, ids: Sequence[str], *, actor: str, reason: str) -> EndpointsActed:
        """Switch endpoints off, also those that their failures have disabled: a person has dealt with them then.

        Their owners are told, with the reason. Deliveries that wait for them fail when they are due.
        """
        return await self._database.write(_switch, False, ids, actor, reason, self._database)

    async def retry(self, ids: Sequence[str], *, actor: str, reason: str) -> EndpointsActed:
        """Bring back what has failed for these endpoints, oldest first, as the owner's own retry does; how many deliveries.

        Each delivery that was dead at its turn comes back once, also if it dies again meanwhile.
        """
        known, refused = _sorted_out(ids)
        states = await self._database.read(_states, known)
        refused |= {id_: UNKNOWN for id_ in known if id_ not in states}
        refused |= {id_: "it is disabled: enable it first" for id_, enabled in states.items() if not enabled}
        changed = 0
        for id_ in sorted(id_ for id_, enabled in states.items() if enabled):
            after = ""
            while changed < DELIVERIES_PER_RETRY:
                dead = await self._database.read(_dead, id_, after, DELIVERIES_PER_BLOCK)
                if not dead:
                    break
                changed += len((await self._lane.redrive(Filter(ids=dead), actor=actor, reason=reason)).changed)
                after = dead[-1]
            else:
                if await self._database.read(_dead, id_, after, 1):
                    refused[id_] = MORE
        if changed:
            await self._lane.count_soon()
        return EndpointsActed(changed, refused)


# --- looking ----------------------------------------------------------------------------------------------------------


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


def _page(
    connection: Connection,
    user: str | None,
    state: EndpointState | None,
    after: Position | None,
    limit: int,
) -> EndpointPage:
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
    seen = [_seen(row, failures) for row in rows[:limit]]
    return EndpointPage(seen, write_cursor(Position(seen[-1].since, seen[-1].id)) if len(rows) > limit else None)


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
    state: EndpointState = "enabled"
    since: datetime = row.created_at
    if row.failing_since is not None:
        state, since = "failing", row.failing_since
    if row.disabled_at is not None:
        state, since = "disabled", row.disabled_at
    latest = [failures[id_] for id_ in (row.latest_waiting, row.latest_dead) if id_ in failures]
    return SeenEndpoint(
        id=row.id, user=row.user_id, url=shown_url(row.url), description=row.description,
        event_types=tuple(row.event_types), state=state, since=since, disabled_reason=row.disabled_reason,
        disabled_by=row.disabled_by, created_at=row.created_at, retrying=row.retrying, failed=row.failed,
        latest_failure=max(latest, key=lambda one: one.at, default=None),
    )  # fmt: skip


def shown_url(url: str) -> str:
    """The URL without what may be a secret: its query, and what looks like a token in its path."""
    bare, asks, _ = url.partition("#")[0].partition("?")
    scheme, _, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return redact(f"{scheme}://{host.rpartition('@')[2]}{slash}{path}") + ("?…" if asks else "")


def _host(url: str) -> str:
    return shown_url(url).partition("://")[2].partition("/")[0].removesuffix("?…")


def _known_id(text: str) -> str:
    if read_id(text) != text:
        raise UsageError("the cursor is not one of ours: begin again without it")
    return text


# --- alarms -----------------------------------------------------------------------------------------------------------


_GIVEN_UP = and_(t.endpoints.c.disabled_at.is_not(None), t.endpoints.c.disabled_by.is_(None))


def _given_up(connection: Connection) -> tuple[list[Any], int]:
    e = t.endpoints
    named = select(e.c.id, e.c.user_id, e.c.url, e.c.disabled_at, e.c.disabled_reason).where(_GIVEN_UP)
    found = connection.execute(named.order_by(e.c.disabled_at, e.c.id).limit(ALARMS_MAX)).all()
    more = _amount_given_up(connection) - len(found) if len(found) == ALARMS_MAX else 0
    return list(found), max(0, more)


def _amount_given_up(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(t.endpoints).where(_GIVEN_UP)).scalar_one()


def _sentence(row: Any) -> str:
    # Where this goes, and the log, are read by more people than the page: of the URL only the host is said.
    return (
        f"triggers: the endpoint {row.id} of {_clipped(row.user_id)} at {_clipped(_host(row.url))} was disabled at "
        f"{instant_json(row.disabled_at)}: {row.disabled_reason}. No event goes there until it is enabled: see that it "
        f"answers, enable it and retry what failed, or keep it disabled if it should stay off: {PAGE}?state=disabled"
    )


def _clipped(text: str) -> str:
    return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}…"


# --- acting -----------------------------------------------------------------------------------------------------------


def _switch(
    connection: Connection,
    enabled: bool,  # noqa: FBT001
    ids: Sequence[str],
    actor: str,
    reason: str,
    database: Database,
) -> EndpointsActed:
    e = t.endpoints
    known, refused = _sorted_out(ids)
    # Locked in one order, so that two who press at once wait for each other and not in a circle.
    there = set(
        connection.execute(select(e.c.id).where(e.c.id.in_(known)).order_by(e.c.id).with_for_update()).scalars()
    )
    now = database.present(connection)
    still: ColumnElement[bool] = e.c.enabled.is_(False)
    values = dict(SWITCHED_ON)
    if not enabled:
        still = or_(e.c.enabled.is_(True), e.c.disabled_by.is_(None))
        values = switched_off(now, f"switched off by an operator: {reason}", by=actor)
    switch = update(e).where(e.c.id.in_(known), still).values(values | {"updated_at": now})
    changed = connection.execute(switch.returning(e.c.id, e.c.user_id, e.c.url)).all()
    act = "enable" if enabled else "disable"
    if changed:
        said = "the endpoint {} was {}d by an operator: {}"
        leave_notices(connection, [(row, said.format(row.url, act, reason)) for row in changed], now)
        done = {"ledger": LEDGER, "at": now, "act": act, "actor": actor, "reason": reason}
        connection.execute(insert(DEEDS), [done | {"task_id": row.id} for row in changed])
    refused |= {id_: UNKNOWN for id_ in known if id_ not in there}
    refused |= dict.fromkeys(there - {row.id for row in changed}, f"it is {act}d already")
    return EndpointsActed(len(changed), refused)


def _sorted_out(ids: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Ids that may be there, each once, and the refusal of those that cannot."""
    known = [id_ for id_ in dict.fromkeys(ids) if read_id(id_) == id_]
    return known, {id_: UNKNOWN for id_ in ids if read_id(id_) != id_}


def _states(connection: Connection, ids: Sequence[str]) -> dict[str, bool]:
    e = t.endpoints
    return {row.id: row.enabled for row in connection.execute(select(e.c.id, e.c.enabled).where(e.c.id.in_(ids)))}


def _dead(connection: Connection, endpoint_id: str, after: str, limit: int) -> list[str]:
    d = t.deliveries
    dead = (d.c.endpoint_id == endpoint_id, d.c.status == "dead", d.c.last_error.is_not(None), d.c.id > after)
    return list(connection.execute(select(d.c.id).where(*dead).order_by(d.c.id).limit(limit)).scalars())
