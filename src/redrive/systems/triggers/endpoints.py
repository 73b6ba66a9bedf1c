"""Endpoints: where a user's events go, which of them, signed with which secret, and how the endpoint is doing."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from redrive.errors import UsageError
from redrive.extend import Database, OnDatabase, reads, writes
from redrive.sql import Gather
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers import tables as t
from redrive.systems.triggers.beside import EventStatus
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.values import Endpoint

ENDPOINTS_PER_USER_MAX = 100
NOTICES_PER_USER_MAX = 100
CANCELLED_AT_ONCE = 500
SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, not one
SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
OLD_SECRET_LASTS = timedelta(hours=24)
"""How long the secret before the current one signs too, so that a receiver can change over without a gap."""
FAILING_MAX = timedelta(days=5)
"""An endpoint that has only failed for so long is disabled."""


def read_endpoint(row: Any) -> Endpoint:
    """An endpoint from its row."""
    cells = row._asdict()
    return Endpoint(**cells | {"event_types": tuple(cells["event_types"])})


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Whether an event of this type goes to an endpoint with these patterns; `*` stands for any text."""
    return any(_fits(pattern, event_type) for pattern in patterns)


def _fits(pattern: str, text: str) -> bool:
    # Not a regular expression: a user's pattern with many stars would take it for ever.
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *middle, last = others
    if not text.startswith(first):
        return False
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - at >= len(last) and text.endswith(last)


def new_secret() -> str:
    """A new signing secret."""
    return SECRET_PREFIX + b64encode(token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: str) -> str:
    """The secret, if it can sign, else a `UsageError`."""
    try:
        raw = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raw = b""
    if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES_MIN <= len(raw) <= SECRET_BYTES_MAX:
        raise UsageError(
            f"a secret is {SECRET_PREFIX} and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes"
        )
    return secret


BY_OWNER = "switched off by its owner"
SWITCHED_ON: Mapping[str, Any] = {
    "enabled": True, "disabled_at": None, "disabled_reason": None, "disabled_by": None, "failing_since": None,
}  # fmt: skip
"""What is written when an endpoint is switched on: whoever does it means a fresh start."""


def switched_off(now: datetime, reason: str, *, by: str | None = None) -> dict[str, Any]:
    """What is written when an endpoint is switched off, by somebody or, without a name, by its failures."""
    return {"enabled": False, "disabled_at": now, "disabled_reason": reason, "disabled_by": by}


class TooManyEndpointsError(UsageError):
    """The user has as many endpoints as one may have."""


class EndpointStore(OnDatabase):
    """The endpoints of one database."""

    def __init__(self, database: Database, status: EventStatus, keeper: SecretKeeper) -> None:
        super().__init__(database)
        self._status = status
        self._keeper = keeper
        self._healths: Gather[tuple[str, bool], None] = Gather(self._note)

    async def create(self, values: Mapping[str, Any]) -> Endpoint:
        """Store a new endpoint, and give it back with its secret as it was given."""
        made = await self._create({**values, "secret": self._keeper.seal(values["secret"])})
        return replace(made, secret=values["secret"])

    @writes
    def _create(self, connection: Connection, values: Mapping[str, Any]) -> Endpoint:
        e = t.endpoints
        now = self._database.present(connection)
        held = connection.execute(select(func.count()).where(e.c.user_id == values["user_id"])).scalar_one()
        if held >= ENDPOINTS_PER_USER_MAX:
            raise TooManyEndpointsError(f"a user has at most {ENDPOINTS_PER_USER_MAX} endpoints: delete one first")
        row = {**values, "id": new_id(now), "created_at": now, "updated_at": now}
        if not values["enabled"]:
            row |= switched_off(now, BY_OWNER, by=values["user_id"])
        return read_endpoint(connection.execute(insert(e).values(row).returning(*e.c)).one())

    @reads
    def some_secret(self, connection: Connection) -> str | None:
        """One of the secrets, as it is stored; None where there is none."""
        return connection.execute(select(t.endpoints.c.secret).limit(1)).scalar()

    @reads
    def of_user(self, connection: Connection, user_id: str) -> list[Endpoint]:
        """The user's endpoints, oldest first."""
        e = t.endpoints
        return [
            read_endpoint(row) for row in connection.execute(select(e).where(e.c.user_id == user_id).order_by(e.c.id))
        ]

    @reads
    def get(self, connection: Connection, user_id: str, id: str) -> Endpoint | None:
        """The user's endpoint with this id."""
        e = t.endpoints
        row = connection.execute(select(e).where(e.c.id == id, e.c.user_id == user_id)).first()
        return None if row is None else read_endpoint(row)

    async def change(self, user_id: str, id: str, values: Mapping[str, Any], *, rotate: bool) -> Endpoint | None:
        """Change an endpoint. With `rotate` its secret so far goes on signing for a while. A new secret comes back as it was given."""
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
        """Forget an endpoint and cancel what waits for it; whether it was there.

        In blocks, each in a commit of its own: what a crash leaves waiting is cancelled when it is due.
        """
        e = t.endpoints
        mine = delete(e).where(e.c.id == id, e.c.user_id == user_id)
        if not await self._database.write(lambda connection: connection.execute(mine).rowcount):
            return False
        after: str | None = ""
        while after is not None:
            after = await self._database.write(self._cancel_some, id, after)
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
        """Keep since when an endpoint has only failed; written only when that changes."""
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
        """Switch an endpoint off and leave its owner a notice; False if it is off already.

        With `failing_since` only if it has failed ever since then: what was read before a delivery may be old by now.
        """
        e = t.endpoints
        now = self._database.present(connection)
        still = [e.c.id == endpoint.id, e.c.enabled.is_(True)]
        if failing_since is not None:
            still.append(e.c.failing_since <= failing_since)
        off = switched_off(now, reason) | {"updated_at": now}
        disabled = connection.execute(update(e).where(*still).values(off).returning(e.c.id)).first()
        if disabled is None:
            return False
        leave_notices(connection, [(endpoint, f"the endpoint {endpoint.url} was disabled: {reason}")], now)
        return True

    @reads
    def notices(self, connection: Connection, user_id: str) -> list[Any]:
        """What the user must be told, newest first."""
        n = t.notices
        mine = select(n.c.endpoint_id, n.c.at, n.c.message).where(n.c.user_id == user_id)
        return list(connection.execute(mine.order_by(n.c.id.desc()).limit(NOTICES_PER_USER_MAX)))


def leave_notices(connection: Connection, told: Sequence[tuple[Any, str]], now: datetime) -> None:
    """Tell the owners of endpoints, who read it at `/v1/notices`; older ones than the newest hundred are forgotten."""
    n = t.notices
    rows = [{"user_id": one.user_id, "endpoint_id": one.id, "at": now, "message": message} for one, message in told]
    connection.execute(insert(n), rows)
    for user_id in sorted({row["user_id"] for row in rows}):
        mine = n.c.user_id == user_id
        older = select(n.c.id).where(mine).order_by(n.c.id.desc()).offset(NOTICES_PER_USER_MAX).limit(1)
        connection.execute(delete(n).where(mine, n.c.id <= older.scalar_subquery()))
