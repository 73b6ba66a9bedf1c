"""API keys: who may do what over HTTP. A key is shown once, when it is made; only its SHA-256 is kept.

Nothing is cached: a key that is revoked or has expired is refused by the very next request. Where keys are kept is the business of a
store: `access/ports.py` says what it promises.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from redrive.core.durations import read_span
from redrive.core.task import check_text
from redrive.errors import UsageError
from redrive.ports import Actor

PREFIX = "rdk_"
OWNER_CHARS_MAX = 200
KEYS_LISTED_MAX = 10_000
FIRST_ID = "first"
"""The id of the key that is made where there is none: of two processes that start at once only one can store it."""
ENVIRONMENT_PREFIX = "env-"
"""The ids of keys that came from the environment; ids made here are hexadecimal."""
PROGRAM = Actor(name="a program")
"""Who acts, where nobody said who."""
AUDITED = "redrive_key"
"""What the audit calls keys."""
SESSIONS_AUDITED = "redrive_session"
"""What the audit calls logging in and out; it names the key."""
SECRETS_AUDITED = "redrive_secret"
"""What the audit calls secrets that are kept encrypted."""


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


def make_key(owner: str, scopes: Iterable[str], now: datetime, *, expires: timedelta | None = None) -> NewKey:
    """A new key, which nobody has stored yet."""
    check_text("owner", owner, OWNER_CHARS_MAX)
    if expires is not None and not read_span("expires", expires):
        raise UsageError("a key must be valid for some time: give a span longer than zero")
    return NewKey(
        secret=PREFIX + secrets.token_urlsafe(32),
        key=ApiKey(
            id=secrets.token_hex(6),
            owner=owner,
            scopes=read_scopes(scopes),
            created_at=now,
            expires_at=None if expires is None else now + expires,
        ),
    )


def make_first_key(now: datetime) -> NewKey:
    """The admin key of a store that has no key at all."""
    key = ApiKey(id=FIRST_ID, owner="first start", scopes=(Scope.ADMIN,), created_at=now)
    return NewKey(secret=PREFIX + secrets.token_urlsafe(32), key=key)


def environment_key(secret: str, now: datetime) -> ApiKey:
    """The admin key that the environment gives."""
    id_ = ENVIRONMENT_PREFIX + digest(secret)[:12]
    return ApiKey(id=id_, owner="REDRIVE_ADMIN_KEY", scopes=(Scope.ADMIN,), created_at=now)


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


def known_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    """The scopes of a stored key. One that this version does not know grants nothing."""
    return tuple(Scope(name) for name in names if name in list(Scope))


def deed_of(key: ApiKey, by: Actor) -> str:
    """What the audit says of a key that was made, changed or revoked."""
    return f"for {key.owner}: {', '.join(key.scopes)}" + (f"; {by.reason}" if by.reason else "")
