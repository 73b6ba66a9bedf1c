"""SQLite: one file, no server, several processes.

All writes of a process go through one thread with one connection, in `BEGIN IMMEDIATE` transactions that concurrent callers share
(`group_commit`). Reads have connections of their own and never wait for writers (WAL). `synchronous=FULL`: what is acknowledged
survives a power cut.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, QueuePool

from redrive.errors import SettingsError, UsageError
from redrive.ledgers.sql.beside_the_loop import terminate_on_the_loop
from redrive.ledgers.sql.compiled import KEPT_MAX, OWN
from redrive.ledgers.sql.database import Changes, OpenTransaction, run_collecting, user_transaction
from redrive.ledgers.sql.forks import leave_to_parent, watch_forks
from redrive.ledgers.sql.waiters import Waiters, WakeUps
from redrive.ledgers.sqlite.dialect import SqliteDialect
from redrive.ledgers.sqlite.errors import translated
from redrive.ledgers.sqlite.group_commit import Writer
from redrive.ledgers.sqlite.write_lock import WriteLock
from redrive.ports import Clock

P = ParamSpec("P")
R = TypeVar("R")

READERS = 2
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's machine, about a millisecond, between two looks at the clock of a limited read."""
FORK_PATIENCE_SECONDS = 1.0
"""How long a fork waits for what is being read or written."""
WATCH_EVERY = timedelta(milliseconds=25)
"""How often an idle worker looks whether another process wrote: one pragma on shared memory, no query."""


class SystemClock:
    """The clock of this process."""

    def now(self) -> datetime:
        """The instant, in UTC."""
        return datetime.now(UTC)


class SqliteDatabase:
    """A SQLite file as a `Database`."""

    server_clock = False
    migrates_itself = True
    transactions_max = 1

    def __init__(self, url: URL, *, clock: Clock | None = None, durable: bool = True) -> None:
        if not url.database or url.database == ":memory:" or url.query.get("mode") == "memory":
            raise SettingsError(
                "a ledger must outlive its process, so SQLite needs a file: sqlite:///work.db; "
                "for tests use redrive.testing.temporary_url()"
            )
        file = Path(url.database.removeprefix("file:")).expanduser().resolve()
        if not file.parent.is_dir():
            raise SettingsError(f"the folder of the SQLite file does not exist: create {file.parent} or change the URL")
        self.url = url.render_as_string(hide_password=True)
        self._url = url
        self._clock = clock or SystemClock()
        self._synchronous = "FULL" if durable else "OFF"
        self.file = file
        self._carried_over = False
        self._begin_anew()
        self.dialect = SqliteDialect(self._engine.dialect)
        watch_forks(self)

    def _begin_anew(self) -> None:
        self._engine = self.make_engine(QueuePool, pool_size=READERS + 1, max_overflow=0)
        self._lock = WriteLock(self.file)
        self._writer: Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._scanner: ThreadPoolExecutor | None = None
        self._user_engine: AsyncEngine | None = None
        self._user_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._waiters = Waiters()

    def now(self) -> datetime:
        """See `Database.now`."""
        return self._clock.now()

    def present(self, connection: Connection) -> datetime:  # noqa: ARG002 - SQLite has no clock of its own
        """See `Database.present`."""
        return self._clock.now()

    def changes(self, connection: Connection) -> Changes | None:
        """See `Database.changes`."""
        driver: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]  # it is connected
        [by_others] = driver.execute("PRAGMA data_version").fetchone()
        return Changes(driver, by_others, driver.total_changes)

    def insert(self, table: Table) -> Any:
        """See `Database.insert`."""
        return self.dialect.insert(table)

    async def describe(self) -> str:
        """See `Database.describe`."""
        number = await self.write(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
        return f"SQLite {sqlite3.sqlite_version}, synchronous={SYNCHRONOUS.get(number, number)}"

    async def open(self) -> None:
        """See `Database.open`."""
        if self._writer is None:
            if self._carried_over:
                raise UsageError(
                    f"this process was forked while {self.file.name} was in use, and SQLite's locks do not survive that: "
                    "fork before the work begins, or start the process afresh (multiprocessing has 'spawn')"
                )
            self._make_file()
            self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="redrive-sqlite-read")
            self._scanner = ThreadPoolExecutor(1, thread_name_prefix="redrive-sqlite-scan")
            self._writer = Writer(self.make_engine(NullPool, write=True), self._lock)
            self._writer.start()
            await self.write(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").all())

    def _make_file(self) -> None:
        """Payloads, errors and hashes of keys are for nobody else on this machine; the files of the WAL follow this one."""
        name = str(self._url.database).removeprefix("file:")
        if not name.startswith("~"):
            with suppress(OSError):  # who may not make it hears so from SQLite itself
                Path(name).touch(mode=0o600, exist_ok=True)

    async def close(self) -> None:
        """See `Database.close`."""
        writer, readers, scanner, engine = self._writer, self._readers, self._scanner, self._user_engine
        self._writer = self._readers = self._scanner = self._user_engine = None
        if writer is not None:
            await asyncio.to_thread(writer.stop)
        for threads in (readers, scanner):
            if threads is not None:
                await asyncio.to_thread(threads.shutdown)
        if engine is not None:
            await engine.dispose()
        self._engine.dispose()

    async def write(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.write`."""
        self._lock.check_free()
        await self.open()
        assert self._writer is not None
        calls: list[Callable[[], None]] = []
        return await self._writer.submit(
            lambda connection: run_collecting(connection, calls, run, *args, **kwargs), calls
        )

    async def stand_in_line(
        self,
        span: timedelta,  # noqa: ARG002
        run: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """See `Database.stand_in_line`; no row is locked here."""
        return await self.write(run, *args, **kwargs)

    async def rebuild(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.rebuild`; no write is cut short here."""
        return await self.write(run, *args, **kwargs)

    async def statement(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.statement`; every statement here is a transaction like any other."""
        return await self.write(run, *args, **kwargs)

    async def read(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.read`."""
        await self.open()
        assert self._readers is not None
        return await self._read_on(self._readers, lambda connection: run(connection, *args, **kwargs))

    async def _read_on(self, threads: ThreadPoolExecutor, run: Callable[[Connection], R]) -> R:
        def on_reader() -> R:
            try:
                with self._engine.connect() as connection:
                    return run(connection)
            except DBAPIError as error:
                raise translated(error) from error

        return await asyncio.get_running_loop().run_in_executor(threads, on_reader)

    async def scan(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.scan`; on a thread of its own, so that short reads do not wait for it."""
        await self.open()
        assert self._scanner is not None
        return await self._read_on(self._scanner, lambda connection: run(connection, *args, **kwargs))

    async def look(
        self, within: timedelta, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """See `Database.look`."""

        def limited(connection: Connection) -> R:
            ends = time.monotonic() + within.total_seconds()
            driver: Any = connection.connection.dbapi_connection
            driver.set_progress_handler(lambda: time.monotonic() > ends, STEPS_BETWEEN_LOOKS)
            try:
                return run(connection, *args, **kwargs)
            finally:
                driver.set_progress_handler(None, 0)

        return await self.read(limited)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[OpenTransaction]:
        """See `Database.transaction`. It holds the file's one write lock: keep it short."""
        self._lock.check_free()
        await self.open()
        if self._user_engine is None:
            self._user_engine = self._make_user_engine()
        # A lock belongs to the loop that has waited for it; between loops SQLite's own must do.
        here = self._user_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with here, user_transaction(self._user_engine, translated) as transaction:
            with self._lock.held():
                yield transaction

    def check_free(self) -> None:
        """See `Database.check_free`."""
        self._lock.check_free()

    def trouble(self) -> str | None:
        """See `Database.trouble`."""
        return self._lock.trouble()

    async def advice(self) -> Sequence[tuple[str, str]]:
        """See `Database.advice`: a file is reached in one way."""
        return ()

    # --- forks ------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """See `Forking.before_fork`. SQLite counts its locks by process: a child that has copies of open files believes that it
        holds what its parent holds, and a file may be taken from under it."""
        if self._writer is not None:
            self._writer.pause(FORK_PATIENCE_SECONDS)
        ends = time.monotonic() + FORK_PATIENCE_SECONDS
        while self._pool.checkedout() and time.monotonic() < ends:
            time.sleep(0.005)
        self._carried_over = bool(self._pool.checkedout() or self._lock.held_here)
        self._carried_over |= self._writer is not None and not self._writer.paused
        self._engine.dispose()

    @property
    def _pool(self) -> QueuePool:
        assert isinstance(self._engine.pool, QueuePool)
        return self._engine.pool

    def in_parent(self) -> None:
        """See `Forking.in_parent`."""
        self._carried_over = False
        if self._writer is not None:
            self._writer.go_on()

    def in_child(self) -> None:
        """See `Forking.in_child`."""
        leave_to_parent(self._engine, self._writer, self._readers, self._scanner, self._user_engine)
        self._carried_over |= self._pool.checkedout() + self._pool.checkedin() > 0  # a read that began after all
        self._begin_anew()

    # --- wake-ups ---------------------------------------------------------------------------------------------------

    @contextmanager
    def waiter(self, ledger: str) -> Iterator[WakeUps]:
        """See `Database.waiter`."""
        with self._waiters.registered(ledger, _FileWaiter(self)) as waiter:
            yield waiter

    def wake(self, ledger: str) -> None:
        """See `Database.wake`."""
        self._waiters.wake(ledger)

    async def others_version(self) -> object:
        """A value that changes when any other connection has committed."""
        await self.open()
        assert self._writer is not None
        return await self._writer.others_version()

    def announce(self, connection: Connection, ledger: str, *, soon: bool) -> None:
        """Other processes see the commit by itself."""

    def make_engine(self, pool: Any, *, write: bool = False, **options: Any) -> Engine:
        engine = create_engine(
            self._url.set(drivername="sqlite"),
            hide_parameters=True,
            poolclass=pool,
            connect_args={"check_same_thread": False},
            execution_options={OWN: True},
            query_cache_size=KEPT_MAX,
            **options,
        )

        @event.listens_for(engine, "connect")
        def set_up(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None  # the driver must not begin transactions behind our back
            connection.execute("PRAGMA busy_timeout = 60000")
            if write:
                _set_up_writer(connection, self._synchronous)
                # The writer asks for locks itself, and more often. Its set-up may meet them too, and leaves the waiting to SQLite.
                connection.execute("PRAGMA busy_timeout = 0")
            else:
                connection.execute("PRAGMA query_only = ON")

        return engine

    def _make_user_engine(self) -> AsyncEngine:
        engine = create_async_engine(
            self._url.set(drivername="sqlite+aiosqlite"), hide_parameters=True, poolclass=NullPool
        )

        @event.listens_for(engine.sync_engine, "connect")
        def set_up(connection: Any, _record: object) -> None:
            connection.isolation_level = None
            for pragma in ("busy_timeout = 60000", f"synchronous = {self._synchronous}", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine.sync_engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        terminate_on_the_loop(engine)
        return engine


def _set_up_writer(connection: sqlite3.Connection, synchronous: str) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # Switching to WAL needs the file alone for a moment; another process may be doing the same.
    for _ in range(200):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(random.uniform(0.005, 0.025))
    connection.execute("PRAGMA journal_mode = WAL")


class _FileWaiter(WakeUps):
    """Also woken when another process has committed to the file."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__()
        self._database = database
        self._seen: object = None

    async def wait(self, timeout: timedelta) -> bool:
        ends = time.monotonic() + timeout.total_seconds()
        while not self._woken.is_set() and (left := ends - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):  # the writer may itself be waiting, for another process
                    version = await self._database.others_version()
            except TimeoutError:
                break
            if version != self._seen:
                self._seen = version
                return True
            await super().wait(min(timedelta(seconds=left), WATCH_EVERY))
        return self._woken.is_set()
