"""Keys in a table of SQL."""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from redrive.access.keys import (
    AUDITED,
    ENVIRONMENT_PREFIX,
    KEYS_LISTED_MAX,
    PROGRAM,
    ApiKey,
    NewKey,
    deed_of,
    digest,
    environment_key,
    known_scopes,
    make_first_key,
    make_key,
    read_scopes,
)
from redrive.ledgers.sql.audit_lines import record
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.lists import one_of
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.schema import key as table
from redrive.ports import Actor

_CURRENT = table.c.revoked_at.is_(None)


class SqlKeys(OnDatabase):
    """The keys of one database; see `Keys`."""

    @writes
    def create(
        self,
        connection: Connection,
        owner: str,
        scopes: Iterable[str],
        *,
        expires: timedelta | None = None,
        by: Actor = PROGRAM,
    ) -> NewKey:
        """See `Keys.create`."""
        now = self._database.now()
        made = make_key(owner, scopes, now, expires=expires)
        self._insert(connection, made.key, digest(made.secret))
        _record(connection, made.key, "created", now, by)
        return made

    @reads
    def list(self, connection: Connection) -> list[ApiKey]:
        """See `Keys.list`."""
        rows = connection.execute(select(table).order_by(table.c.created_at, table.c.id).limit(KEYS_LISTED_MAX))
        return [key_of_row(row) for row in rows]

    @writes
    def revoke(self, connection: Connection, id: str, *, by: Actor = PROGRAM) -> ApiKey | None:
        """See `Keys.revoke`."""
        row = connection.execute(select(table).where(table.c.id == id)).first()
        if row is None or row.revoked_at is not None:
            return None if row is None else key_of_row(row)
        key, now = key_of_row(row), self._database.now()
        connection.execute(update(table).where(table.c.id == id).values(revoked_at=now))
        _record(connection, key, "revoked", now, by)
        return replace(key, revoked_at=now)

    @reads
    def find(self, connection: Connection, secret: str) -> ApiKey | None:
        """See `Keys.find`."""
        hashed = digest(secret)
        row = connection.execute(select(table).where(table.c.sha256 == hashed)).first()
        # The index has compared hashes already, which tells an attacker nothing about the key. Once more in constant time,
        # so that no collation of a database can ever widen what counts as equal.
        if row is None or not hmac.compare_digest(row.sha256, hashed):
            return None
        key = key_of_row(row)
        return key if key.is_valid(self._database.now()) else None

    @reads
    def page(
        self, connection: Connection, *, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[ApiKey]:
        """See `Keys.page`."""
        asked = select(table).where(_CURRENT)
        if owner is not None:
            asked = asked.where(table.c.owner == owner)
        if after is not None:
            asked = asked.where(table.c.id > after)
        return [key_of_row(row) for row in connection.execute(asked.order_by(table.c.id).limit(limit))]

    @reads
    def get(self, connection: Connection, id: str) -> ApiKey | None:
        """See `Keys.get`."""
        row = connection.execute(select(table).where(table.c.id == id, _CURRENT)).first()
        return None if row is None else key_of_row(row)

    @writes
    def change(
        self,
        connection: Connection,
        id: str,
        *,
        scopes: Iterable[str] | None = None,
        expires_at: datetime | None = None,
        forever: bool = False,
        by: Actor = PROGRAM,
    ) -> ApiKey | None:
        """See `Keys.change`."""
        values: dict[str, Any] = {}
        if scopes is not None:
            values["scopes"] = [scope.value for scope in read_scopes(scopes)]
        if expires_at is not None or forever:
            values["expires_at"] = None if forever else expires_at
        if values:
            connection.execute(update(table).where(table.c.id == id, _CURRENT).values(values))
        row = connection.execute(select(table).where(table.c.id == id, _CURRENT)).first()
        if row is None:
            return None
        key = key_of_row(row)
        if values:
            _record(connection, key, "changed", self._database.now(), by)
        return key

    @writes
    def ensure_first(self, connection: Connection, given: str | None = None) -> str | None:
        """See `Keys.ensure_first`."""
        now = self._database.now()
        if given is not None:
            hashed = digest(given)
            self._insert(connection, environment_key(given, now), hashed)
            earlier = table.c.id.startswith(ENVIRONMENT_PREFIX, autoescape=True)
            # Deleted, not revoked: who sets an earlier key again means it. One that a person revoked stays revoked.
            connection.execute(delete(table).where(earlier, table.c.sha256 != hashed, _CURRENT))
            return None
        if connection.execute(select(func.count()).select_from(table)).scalar_one():
            return None
        # Two processes that start at once both find no key; the fixed id lets only one of them store its own.
        made = make_first_key(now)
        return made.secret if self._insert(connection, made.key, digest(made.secret)) else None

    def _insert(self, connection: Connection, key: ApiKey, hashed: str) -> bool:
        """Store a key; whether it is new."""
        values = {field.name: getattr(key, field.name) for field in fields(key)} | {"sha256": hashed}
        statement = self._database.insert(table).values(values | {"scopes": [scope.value for scope in key.scopes]})
        return connection.execute(statement.on_conflict_do_nothing().returning(table.c.id)).first() is not None


def _record(connection: Connection, key: ApiKey, act: str, now: datetime, by: Actor) -> None:
    """Write down who did it, in the same commit."""
    said = replace(by, reason=deed_of(key, by))
    record(connection, ledger=AUDITED, act=act, things=[key.id], actor=said, at=now)


def read_keys(connection: Connection, hashes: Sequence[str]) -> dict[str, ApiKey]:
    """The keys with these hashes, whether valid or not, by their hash: one statement for however many ask at once."""
    rows = _KEYS_BY_HASH.named(connection, {"hashes": list(hashes)})
    return {row.sha256: key_of_row(row) for row in rows}


_KEYS_BY_HASH = Compiled(select(table).where(one_of(table.c.sha256, "hashes")))


def key_of_row(row: Any) -> ApiKey:
    """The key that a row stands for; the row has the columns of the table by name."""
    return ApiKey(
        id=row.id, owner=row.owner, scopes=known_scopes(row.scopes),
        created_at=row.created_at, expires_at=row.expires_at, revoked_at=row.revoked_at,
    )  # fmt: skip
