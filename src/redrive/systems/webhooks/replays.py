"""Signed bodies that came before, kept for a while: the same one under another identity is a replay.

Where the sender's identity stands in a header that its signature does not cover, whoever has read a signed body can send it again
under an identity of their own. The body itself they cannot change. So it is remembered by its hash, with the key that it first came with, and
whoever sends it again gets that key, which the inbox knows.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from redrive.extend import Database, OnDatabase, writes
from redrive.sql import Gather
from redrive.systems.webhooks.tables import bodies


class Signed(NamedTuple):
    """A body whose signature was right, by its hash, and the key that it came with."""

    source: str
    sha256: str
    key: str
    window: timedelta
    """For how long it is remembered."""


def signed(source: str, body: bytes, key: str, window: timedelta) -> Signed:
    """The body of a webhook, to be remembered."""
    return Signed(source, hashlib.sha256(body).hexdigest(), key, window)


class Replays(OnDatabase):
    """The bodies of one inbox, shared by all its processes."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._first_keys = Gather(self._remember)

    async def first_key(self, one: Signed) -> str:
        """The key that this body first came with, within its window: its own if it is new."""
        [key] = await self._first_keys([one])
        return key

    @writes
    def _remember(self, connection: Connection, given: Sequence[Signed]) -> list[str]:
        c, now = bodies.c, self._database.present(connection)
        first: dict[tuple[str, str], Signed] = {}
        for one in given:
            first.setdefault((one.source, one.sha256), one)
        # What was forgotten by now goes on the occasion. In one order: two processes then never wait in a circle.
        connection.execute(delete(bodies).where(c.forget_at <= now))
        insert = self._database.insert(bodies)
        rows = [
            {"source": one.source, "sha256": one.sha256, "idempotency_key": one.key, "forget_at": now + one.window}
            for _, one in sorted(first.items())
        ]
        connection.execute(insert.on_conflict_do_nothing(), rows)
        hashes = select(c.source, c.sha256, c.idempotency_key).where(c.sha256.in_({one.sha256 for one in given}))
        known = {(row.source, row.sha256): str(row.idempotency_key) for row in connection.execute(hashes)}
        return [known.get((one.source, one.sha256), one.key) for one in given]
