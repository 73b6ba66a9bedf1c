"""Waking workers: `NOTIFY` in the commits that bring work due now, and one connection that listens for it.

While nobody listens, workers find work by their safety poll.

The connection that listens is also the one that notices a server which has gone without a word, as a machine without power
does: it asks now and then, and if no answer comes but another server takes its place, whoever waits for the old one is told.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Text, func, literal, literal_column, select

from redrive.ledgers.postgres.address import PostgresAddress
from redrive.ledgers.postgres.connect import connect
from redrive.ledgers.postgres.limits import lift
from redrive.ledgers.sql.waiters import Waiters, WakeUps

CHANNEL = "redrive"
_HOME = "public"
_CHARS_MAX = 63
_CHANNEL_HERE = (
    f"CASE coalesce(current_schema(), '{_HOME}') WHEN '{_HOME}' THEN '{CHANNEL}'"
    f" ELSE left('{CHANNEL}_' || current_schema(), {_CHARS_MAX}) END"
)
"""Channels are the database's own. Applications in other schemas have another one each, and do not wake each other."""
ANNOUNCE_EVERY_SECONDS = 0.007
"""NOTIFY takes a lock that all commits share, so a busy adder announces at most this often. A worker that was woken
looks again after twice this time (`engine.worker.LOOK_AGAIN`), which covers what was added in between."""

ASK_EVERY_SECONDS = 5.0
"""How often the server is asked whether it is still there."""
ANSWER_SECONDS = 5.0
"""How long its answer is waited for."""
_WHICH_SERVER = "SELECT pg_postmaster_start_time()"


class WakeUp:
    """Announcements of one database, heard in one event loop."""

    def __init__(
        self,
        find: Callable[[], Awaitable[PostgresAddress | None]],
        leave: Callable[[], Callable[[], None]],
        schema: str | None = None,
    ) -> None:
        """`leave` notes what is open now, and returns what gives it up."""
        self._find = find
        self._leave = leave
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
        server: datetime | None = None
        leave: Callable[[], None] | None = None
        while True:
            try:
                address = await self._find()
                if address is None:  # a pooler stands before the server, and nobody has named a way around it
                    return
                connection = await connect(address, **address.arguments("listen", pooled=False))
            except Exception:  # whatever it is, the server may be well again later
                await asyncio.sleep(random.uniform(0.5, 1))
                continue
            gone = asyncio.Event()
            try:
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                await lift(connection)
                channel = await connection.fetchval(f"SELECT {_CHANNEL_HERE}", timeout=ANSWER_SECONDS)
                await connection.add_listener(channel, lambda *heard: self.wake(heard[3]))
                before, server = server, await connection.fetchval(_WHICH_SERVER, timeout=ANSWER_SECONDS)
                if leave is not None and server != before:
                    leave()
                leave = None
                self._waiters.wake_all()  # what was announced while nobody listened
                while not await _within(ASK_EVERY_SECONDS, gone):
                    await connection.fetchval(_WHICH_SERVER, timeout=ANSWER_SECONDS)
            except TimeoutError:
                leave = leave or self._leave()
            except Exception:  # also asyncpg's InternalClientError, where the connection broke in mid-statement
                await asyncio.sleep(random.uniform(0.1, 0.5))
            finally:
                connection.terminate()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether it happens in this time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
