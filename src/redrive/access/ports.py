"""What is asked of a store about who may come in. Each promise holds for every store."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from redrive.access.keys import PROGRAM, ApiKey, NewKey
from redrive.ports import Actor


class Keys(Protocol):
    """The keys of one store. Who made, changed or revoked one is recorded in the same commit."""

    async def create(
        self, owner: str, scopes: Iterable[str], *, expires: timedelta | None = None, by: Actor = PROGRAM
    ) -> NewKey:
        """Make a key; `expires` is how long it is good for, None for ever."""
        ...

    async def list(self) -> list[ApiKey]:
        """All keys, oldest first, the revoked ones too."""
        ...

    async def revoke(self, id: str, *, by: Actor = PROGRAM) -> ApiKey | None:
        """Refuse the key from now on; None if there is no such key. Revoking twice changes nothing."""
        ...

    async def find(self, secret: str) -> ApiKey | None:
        """The valid key with this text; None if it is unknown, revoked or expired."""
        ...

    async def page(self, *, owner: str | None = None, after: str | None = None, limit: int = 100) -> Sequence[ApiKey]:
        """Keys that are not revoked, of one owner or of all, in the order of their ids, from behind `after` on."""
        ...

    async def get(self, id: str) -> ApiKey | None:
        """The key with this id, if it is not revoked."""
        ...

    async def change(
        self,
        id: str,
        *,
        scopes: Iterable[str] | None = None,
        expires_at: datetime | None = None,
        forever: bool = False,
        by: Actor = PROGRAM,
    ) -> ApiKey | None:
        """Change what a key is good for, or until when; None if there is no such key or it is revoked."""
        ...

    async def ensure_first(self, given: str | None = None) -> str | None:
        """See that there is an admin key; returns the text of one that was made here, to be shown once.

        A `given` key is stored, and one that was given at an earlier start is forgotten if it is another. Without it a key
        is made only where there is none at all.
        """
        ...


class Sessions(Protocol):
    """Sessions of people who logged in with a key. Only the SHA-256 of a session's token is kept: a copy of the store opens nothing.

    Who logged in and out is recorded in the same commit.
    """

    async def start(self, token: str, key_id: str, now: datetime, expires_at: datetime, *, by: Actor = PROGRAM) -> None:
        """Keep a session; those that have ended are forgotten."""
        ...

    async def find(self, token: str) -> tuple[ApiKey, datetime] | None:
        """Whose session this token is, and until when; its key may be revoked by now."""
        ...

    async def end(self, token: str, *, by: Actor = PROGRAM) -> None:
        """Forget a session: its token opens nothing from now on."""
        ...
