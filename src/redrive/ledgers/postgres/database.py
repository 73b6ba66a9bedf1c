"""PostgreSQL: many workers, one server, through asyncpg.

Single statements run in autocommit, which saves two round trips each. The engine's own pool plans without sequential scans:
its statements are all served by indexes, and a plan cached while a table was empty would stay bad for ever. User code
gets connections from a pool of its own without that setting.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Table, func, select
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from redrive.errors import LedgerAwayError, MissingExtraError, NotMigratedError, TooSlowError
from redrive.ledgers.sql.database import OpenTransaction, call_all, run_collecting, user_transaction
from redrive.ledgers.sql.waiters import Waiter, Waiters
from redrive.ports import Clock

try:
    import asyncpg  # type: ignore[import-untyped]  # it ships no types
except ImportError as error:  # pragma: no cover - the extra is installed in every test run
    raise MissingExtraError("PostgreSQL", "postgres") from error

P = ParamSpec("P")
R = TypeVar("R")

CHANNEL = "redrive"
ANNOUNCE_EVERY_SECONDS = 0.01
"""NOTIFY takes a lock that all commits share, so a busy adder announces at most this often. A worker that was woken
looks again after twice this time (`engine.worker.LOOK_AGAIN`), which covers what was added in between."""
POOL_SIZE = 8
COMMAND_TIMEOUT_SECONDS = 60.0
"""How long a statement is waited for: whoever asks a server that is gone must hear of it. A migration may take longer."""
TRIES_MAX = 4
_PASSING = {"40001", "40P01"}
_AWAY_CLASSES = ("08", "28", "3D", "53", "57P", "58")


class PostgresDatabase:
    """A PostgreSQL database as a `Database`."""

    def __init__(self, url: URL, *, clock: Clock | None = None) -> None:
        self.url = url.render_as_string(hide_password=True)
        self._url = url.set(drivername="postgresql+asyncpg")
        self._clock = clock
        self.server_clock = clock is None
        own = {"timezone": "UTC", "application_name": "redrive", "enable_seqscan": "off", "jit": "off"}
        self._engine = self._make_engine(own, isolation_level="AUTOCOMMIT")
        self._atomic = self._engine.execution_options(isolation_level="READ COMMITTED")
        self._user_engine = self._make_engine({"timezone": "UTC", "application_name": "redrive handler"})
        self.dialect = self._engine.dialect
        self._waiters = Waiters()
        self._listener: asyncio.Task[None] | None = None
        self._announced: dict[str, float] = {}

    def now(self) -> datetime:
        """See `Database.now`."""
        return self._clock.now() if self._clock is not None else datetime.now(UTC)

    def present(self, connection: Connection) -> datetime:
        """See `Database.present`."""
        if self._clock is not None:
            return self._clock.now()
        now: datetime = connection.execute(select(func.statement_timestamp())).scalar_one()
        return now

    def insert(self, table: Table) -> Insert:
        """See `Database.insert`."""
        return insert(table)

    async def open(self) -> None:
        """See `Database.open`."""
        await self.statement(lambda connection: connection.execute(select(1)).all())

    async def close(self) -> None:
        """See `Database.close`."""
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        await self._engine.dispose()
        await self._user_engine.dispose()

    async def statement(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.statement`."""

        async def once() -> R:
            async with self._engine.connect() as connection:
                return await connection.run_sync(run, *args, **kwargs)

        return await self._patiently(once)

    async def write(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.write`."""

        async def once() -> R:
            calls: list[Callable[[], None]] = []
            async with self._atomic.begin() as connection:
                result = await connection.run_sync(run_collecting, calls, run, *args, **kwargs)
            call_all(calls)
            return result

        return await self._patiently(once)

    async def rebuild(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.rebuild`. On a connection of its own, whose statements have no limit, whatever the role's is."""
        settings = {"timezone": "UTC", "application_name": "redrive migrate", "statement_timeout": "0"}
        engine = self._make_engine(settings, limited=False)

        async def once() -> R:
            async with engine.begin() as connection:
                return await connection.run_sync(run, *args, **kwargs)

        try:
            return await self._patiently(once)
        finally:
            await engine.dispose()

    async def read(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.read`."""
        return await self.statement(run, *args, **kwargs)

    async def scan(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.scan`. Not on the engine's own pool, whose plans must not read whole tables."""

        async def once() -> R:
            async with self._user_engine.connect() as connection:
                return await connection.run_sync(run, *args, **kwargs)

        return await self._patiently(once)

    async def look(
        self, within: timedelta, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """See `Database.look`."""
        milliseconds = max(1, int(within.total_seconds() * 1000))

        async def once() -> R:
            async with self._atomic.begin() as connection:
                # Planned for just what is asked: a plan for every flag alike reads through all to find those of one with few.
                await connection.execute(
                    select(
                        func.set_config("statement_timeout", str(milliseconds), True),
                        func.set_config("plan_cache_mode", "force_custom_plan", True),
                    )
                )
                return await connection.run_sync(run, *args, **kwargs)

        return await self._patiently(once)

    async def _patiently(self, once: Callable[[], Awaitable[R]]) -> R:
        """Run it, again at once where PostgreSQL broke a deadlock or a plan went stale."""
        for attempt in range(1, TRIES_MAX + 1):
            try:
                return await once()
            except (DBAPIError, OSError, PoolTimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if attempt == TRIES_MAX or not _is_passing(error):
                    raise translated(error) from error
            await asyncio.sleep(random.uniform(0, 0.01 * 2**attempt))
        raise AssertionError("unreachable")

    def transaction(self) -> AbstractAsyncContextManager[OpenTransaction]:
        """See `Database.transaction`."""
        return user_transaction(self._user_engine, translated)

    @contextmanager
    def waiter(self, ledger: str) -> Iterator[Waiter]:
        """See `Database.waiter`."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="redrive-listen")
        with self._waiters.registered(ledger, Waiter()) as waiter:
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
        connection.execute(select(func.pg_notify(CHANNEL, ledger)))

    async def _listen(self) -> None:
        """Keep one connection that hears announcements; while there is none, workers find work by their safety poll."""
        args, kwargs = self._engine.dialect.create_connect_args(self._url)
        kwargs = {name: value for name, value in kwargs.items() if name not in _SQLALCHEMY_ONLY}
        while True:
            try:
                connection = await asyncpg.connect(
                    *args, **kwargs, server_settings={"application_name": "redrive listen"}
                )
            except Exception:  # whatever it is, the server may be well again later
                await asyncio.sleep(random.uniform(0.5, 2))
                continue
            gone = asyncio.Event()
            try:
                connection.add_termination_listener(lambda _, gone=gone: gone.set())
                await connection.add_listener(CHANNEL, lambda *heard: self.wake(heard[3]))
                self._waiters.wake_all()  # what was announced while nobody listened
                await gone.wait()
            except Exception:  # also asyncpg's InternalClientError, where the connection broke in mid-statement
                await asyncio.sleep(random.uniform(0.1, 0.5))
            finally:
                connection.terminate()

    def _make_engine(self, server_settings: dict[str, str], *, limited: bool = True, **options: Any) -> AsyncEngine:
        command_timeout = COMMAND_TIMEOUT_SECONDS if limited else None
        return create_async_engine(
            self._url,
            hide_parameters=True,  # payloads and errors of strangers do not belong into tracebacks
            json_deserializer=_decode_json,
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_use_lifo=True,
            connect_args={"server_settings": server_settings, "timeout": 10, "command_timeout": command_timeout},
            **options,
        )


_decode_json = json.JSONDecoder().decode
"""`json.loads` without its looks at what kind of text it is given: a payload is decoded in every claim."""
_SQLALCHEMY_ONLY = {
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "async_fallback",
    "async_creator_fn",
}


def _sqlstate(error: BaseException) -> str:
    for holder in (error, getattr(error, "orig", None), getattr(getattr(error, "orig", None), "__cause__", None)):
        state = getattr(holder, "sqlstate", None) or getattr(holder, "pgcode", None)
        if state:
            return str(state)
    return ""


def _is_passing(error: BaseException) -> bool:
    return _sqlstate(error) in _PASSING or "InvalidCachedStatementError" in repr(getattr(error, "orig", ""))


def translated(error: BaseException) -> Exception:
    """The driver's error as one of ours, where we have a word for it."""
    state, said = _sqlstate(error), str(getattr(error, "orig", None) or error).split("\n")[0]
    if state in ("42P01", "42703", "3F000") and "redrive_" in said:
        return NotMigratedError(f"redrive's tables are missing or old ({said}): run `redrive migrate`")
    if state == "57014":  # cancelled by its statement_timeout
        return TooSlowError("the database needed too long for this look")
    if "invalid input for query argument" in said:  # the driver calls it an interface error, but the caller made it
        return error if isinstance(error, Exception) else RuntimeError(said)
    lost = isinstance(error, OSError | PoolTimeoutError | InterfaceError | asyncpg.InterfaceError | TimeoutError)
    lost = lost or (isinstance(error, DBAPIError) and error.connection_invalidated)
    if lost or state.startswith(_AWAY_CLASSES) or state == "25006" or "connection is closed" in said:
        return LedgerAwayError(f"PostgreSQL cannot be reached now: {said or 'no answer in time'}")
    return error if isinstance(error, Exception) else RuntimeError(said)
