"""API keys: who may do what over HTTP. A key is shown once, when it is made; only its SHA-256 is kept.

Nothing is cached: a key that is revoked or has expired is refused by the very next request.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from redrive.core.durations import read_span
from redrive.core.task import check_text
from redrive.errors import UsageError
from redrive.ledgers.sql.lists import one_of
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.schema import deed as deeds
from redrive.ledgers.sql.schema import key as table
from redrive.ports import Actor

PREFIX = "rdk_"
OWNER_CHARS_MAX = 200
KEYS_LISTED_MAX = 10_000
_FIRST_ID = "first"
_ENVIRONMENT_PREFIX = "env-"
"""The ids of keys that came from the environment; ids made here are hexadecimal."""
_CURRENT = table.c.revoked_at.is_(None)


PROGRAM = Actor(name="a program")
"""Who acts, where nobody said who."""
AUDITED = table.name
"""What the audit calls keys."""


class Scope(StrEnum):
    """What a key may be good for."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    EVENTS_WRITE = "events:write"
    EVENTS_READ = "events:read"
    ENDPOINTS = "endpoints"
    WEBHOOKS_WRITE = "webhooks:write"


IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.ADMIN: frozenset(Scope),
    Scope.OPERATOR: frozenset({Scope.OPERATOR, Scope.VIEWER}),
}
"""What a scope includes besides itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key; not the key itself."""

    id: str
    owner: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def allows(self, scope: Scope) -> bool:
        """Whether the key is good for this scope, by name or by a scope that includes it."""
        return any(scope is held or scope in IMPLIED.get(held, ()) for held in self.scopes)

    def is_valid(self, now: datetime) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made: the one moment at which its text is known."""

    secret: str
    key: ApiKey

    def __repr__(self) -> str:
        return f"NewKey(key={self.key!r})"


class Keys(OnDatabase):
    """The keys of one database."""

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
        """Make a key; `expires` is how long it is good for, None for ever. Who made it is recorded, as are all changes."""
        check_text("owner", owner, OWNER_CHARS_MAX)
        if expires is not None and not read_span("expires", expires):
            raise UsageError("a key must be good for some time: give a longer span than zero")
        now = self._database.now()
        made = NewKey(
            secret=PREFIX + secrets.token_urlsafe(32),
            key=ApiKey(
                id=secrets.token_hex(6),
                owner=owner,
                scopes=read_scopes(scopes),
                created_at=now,
                expires_at=None if expires is None else now + expires,
            ),
        )
        self._insert(connection, made.key, digest(made.secret))
        _record(connection, made.key, "created", now, by)
        return made

    @reads
    def list(self, connection: Connection) -> list[ApiKey]:
        """All keys, oldest first, the revoked ones too."""
        rows = connection.execute(select(table).order_by(table.c.created_at, table.c.id).limit(KEYS_LISTED_MAX))
        return [key_of_row(row) for row in rows]

    @writes
    def revoke(self, connection: Connection, id: str, *, by: Actor = PROGRAM) -> ApiKey | None:
        """Refuse the key from now on; None if there is no such key. Revoking twice changes nothing."""
        row = connection.execute(select(table).where(table.c.id == id)).first()
        if row is None or row.revoked_at is not None:
            return None if row is None else key_of_row(row)
        key, now = key_of_row(row), self._database.now()
        connection.execute(update(table).where(table.c.id == id).values(revoked_at=now))
        _record(connection, key, "revoked", now, by)
        return replace(key, revoked_at=now)

    @reads
    def find(self, connection: Connection, secret: str) -> ApiKey | None:
        """The valid key with this text; None if it is unknown, revoked or expired."""
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
        """Keys that are not revoked, of one owner or of all, in the order of their ids, from behind `after` on."""
        asked = select(table).where(_CURRENT)
        if owner is not None:
            asked = asked.where(table.c.owner == owner)
        if after is not None:
            asked = asked.where(table.c.id > after)
        return [key_of_row(row) for row in connection.execute(asked.order_by(table.c.id).limit(limit))]

    @reads
    def get(self, connection: Connection, id: str) -> ApiKey | None:
        """The key with this id, if it is not revoked."""
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
        """Change what a key is good for, or until when; None if there is no such key or it is revoked."""
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
        """See that there is an admin key; returns the text of one that was made here, to be shown once.

        A `given` key is stored, and one that was given at an earlier start is forgotten if it is another. Without it a key
        is made only where there is none at all.
        """
        now = self._database.now()
        if given is not None:
            hashed = digest(given)
            id_ = _ENVIRONMENT_PREFIX + hashed[:12]
            key = ApiKey(id=id_, owner="REDRIVE_ADMIN_KEY", scopes=(Scope.ADMIN,), created_at=now)
            self._insert(connection, key, hashed)
            earlier = table.c.id.startswith(_ENVIRONMENT_PREFIX, autoescape=True)
            # Deleted, not revoked: who sets an earlier key again means it. One that a person revoked stays revoked.
            connection.execute(delete(table).where(earlier, table.c.sha256 != hashed, _CURRENT))
            return None
        if connection.execute(select(func.count()).select_from(table)).scalar_one():
            return None
        # Two processes that start at once both find no key; the fixed id lets only one of them store its own.
        secret = PREFIX + secrets.token_urlsafe(32)
        key = ApiKey(id=_FIRST_ID, owner="first start", scopes=(Scope.ADMIN,), created_at=now)
        return secret if self._insert(connection, key, digest(secret)) else None

    def _insert(self, connection: Connection, key: ApiKey, hashed: str) -> bool:
        """Store a key; whether it is new."""
        values = {field.name: getattr(key, field.name) for field in fields(key)} | {"sha256": hashed}
        statement = self._database.insert(table).values(values | {"scopes": [scope.value for scope in key.scopes]})
        return connection.execute(statement.on_conflict_do_nothing().returning(table.c.id)).first() is not None


def digest(secret: str) -> str:
    """The SHA-256 of a key. Keys are long and random, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def read_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes with these names, each once, or a `UsageError` that lists what there is."""
    scopes = []
    for name in dict.fromkeys(names):
        try:
            scopes.append(Scope(name))
        except ValueError:
            raise UsageError(f"unknown scope {name!r}: use {', '.join(Scope)}") from None
    if not scopes:
        raise UsageError(f"a key needs at least one scope: {', '.join(Scope)}")
    return tuple(scopes)


def _record(connection: Connection, key: ApiKey, act: str, now: datetime, by: Actor) -> None:
    """Write down who did it, in the same commit."""
    told = f"for {key.owner}: {', '.join(key.scopes)}" + (f"; {by.reason}" if by.reason else "")
    said = {"ledger": AUDITED, "task_id": key.id, "at": now, "act": act, "actor": by.name, "reason": told}
    connection.execute(insert(deeds), said)


def read_keys(connection: Connection, hashes: Sequence[str]) -> dict[str, ApiKey]:
    """The keys with these hashes, whether valid or not, by their hash: one statement for however many ask at once."""
    rows = connection.execute(_KEYS_BY_HASH, {"hashes": list(hashes)})
    return {row.sha256: key_of_row(row) for row in rows}


_KEYS_BY_HASH = select(table).where(one_of(table.c.sha256, "hashes"))


def key_of_row(row: Any) -> ApiKey:
    """The key that a row stands for; the row has the columns of the table by name."""
    # A scope that this version does not know grants nothing.
    known = tuple(Scope(name) for name in row.scopes if name in list(Scope))
    return ApiKey(
        id=row.id, owner=row.owner, scopes=known,
        created_at=row.created_at, expires_at=row.expires_at, revoked_at=row.revoked_at,
    )  # fmt: skip
