"""Waking workers: `NOTIFY` in the commits that bring work due now, and one connection that listens for it.

While nobody listens, workers find work by their safety poll.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy import ColumnElement, Connection, Text, func, literal, literal_column, select

from redrive.ledgers.postgres.address import PostgresAddress
from redrive.ledgers.sql.waiters import Waiters, WakeUps

CHANNEL = "redrive"
_HOME = "public"
_CHARS_MAX = 63
_CHANNEL_HERE = (
    f"CASE coalesce(current_schema(), '{_HOME}') WHEN '{_HOME}' THEN '{CHANNEL}'"
    f" ELSE left('{CHANNEL}_' || current_schema(), {_CHARS_MAX}) END"
)
"""Channels are the database's own. Applications in other schemas have another one each, and do not wake each other."""
ANNOUNCE_EVERY_SECONDS = 0.01
"""NOTIFY takes a lock that all commits share, so a busy adder announces at most this often. A worker that was woken
looks again after twice this time (`engine.worker.LOOK_AGAIN`), which covers what was added in between."""


class WakeUp:
    """Announcements of one database, heard in one event loop."""

    def __init__(self, find: Callable[[], Awaitable[PostgresAddress | None]], schema: str | None = None) -> None:
        self._find = find
        # A caller's own connection may have another path, so what is known is said.
        known = None if schema is None else CHANNEL if schema == _HOME else f"{CHANNEL}_{schema}"[:_CHARS_MAX]
        self._channel: ColumnElement[str] = literal_column(_CHANNEL_HERE, Text) if known is None else literal(known)
        self._waiters = Waiters()
        self._listener: asyncio.Task[None] | None = None
        self._announced: dict[str, float] = {}

    async def close(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    @contextmanager
    def waiter(self, ledger: str) -> Iterator[WakeUps]:
        """See `Database.waiter`."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="redrive-listen")
        with self._waiters.registered(ledger, WakeUps()) as waiter:
            yield waiter

    def wake(self, ledger: str) -> None:
        """See `Database.wake`."""
        self._waiters.wake(ledger)

    def announce(self, connection: Connection, ledger: str, *, soon: bool) -> None:
        """See `Database.announce`."""
        now = time.monotonic()
        if soon and now - self._announced.get(ledger, -math.inf) < ANNOUNCE_EVERY_SECONDS:
            return
        if soon:
            self._announced[ledger] = now
        connection.execute(select(func.pg_notify(self._channel, ledger)))

    async def _listen(self) -> None:
        """Keep one connection that hears announcements; while there is none, workers find work by their safety poll."""
        while True:
            try:
                address = await self._find()
                if address is None:  # a pooler stands before the server, and nobody has named a way around it
                    return
                connection = await asyncpg.connect(**address.arguments("listen", pooled=False))
            except Exception:  # whatever it is, the server may be well again later
                await asyncio.sleep(random.uniform(0.5, 2))
                continue
            gone = asyncio.Event()
            try:
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                channel = await connection.fetchval(f"SELECT {_CHANNEL_HERE}")
                await connection.add_listener(channel, lambda *heard: self.wake(heard[3]))
                self._waiters.wake_all()  # what was announced while nobody listened
                await gone.wait()
            except Exception:  # also asyncpg's InternalClientError, where the connection broke in mid-statement
                await asyncio.sleep(random.uniform(0.1, 0.5))
            finally:
                connection.terminate()
