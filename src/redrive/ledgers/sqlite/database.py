"""SQLite: one file, no server, several processes.

All writes of a process go through one thread with one connection, in `BEGIN IMMEDIATE` transactions that concurrent
callers share: a commit costs one fsync however many tasks it carries (23,500 adds/s instead of 690). The thread runs a
transaction from begin to end, so a cancelled caller can never leave the lock behind. Reads have connections of their own and
never wait for writers (WAL). `synchronous=FULL`: what is acknowledged survives a power cut.
"""

import asyncio
import queue
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, QueuePool

from redrive.errors import LedgerAwayError, NotMigratedError, SettingsError, TooSlowError
from redrive.ledgers.sql.database import OpenTransaction, call_all, run_collecting, user_transaction
from redrive.ledgers.sql.waiters import Waiter, Waiters
from redrive.ports import Clock

P = ParamSpec("P")
R = TypeVar("R")

LOCK_PATIENCE = timedelta(seconds=60)
"""How long a write waits for other processes before it says that the ledger is away."""
JOBS_PER_COMMIT_MAX = 64
READERS = 2
STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's machine, about a millisecond, between two looks at the clock of a limited read."""
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

    def __init__(self, url: URL, *, clock: Clock | None = None, durable: bool = True) -> None:
        if not url.database or url.database == ":memory:" or url.query.get("mode") == "memory":
            raise SettingsError(
                "a ledger must outlive its process, so SQLite needs a file: sqlite:///work.db; "
                "for tests use redrive.testing.temporary_url()"
            )
        folder = Path(url.database).expanduser().resolve().parent
        if not folder.is_dir():
            raise SettingsError(f"the folder of the SQLite file does not exist: create {folder} or change the URL")
        self.url = url.render_as_string(hide_password=True)
        self._url = url
        self._clock = clock or SystemClock()
        self._synchronous = "FULL" if durable else "OFF"
        self._engine = self._make_engine(QueuePool, pool_size=READERS + 1, max_overflow=0)
        self.dialect = self._engine.dialect
        self._writer: _Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._scanner: ThreadPoolExecutor | None = None
        self._user_engine: AsyncEngine | None = None
        self._user_lock = asyncio.Lock()
        self._waiters = Waiters()

    def now(self) -> datetime:
        """See `Database.now`."""
        return self._clock.now()

    def present(self, connection: Connection) -> datetime:  # noqa: ARG002 - SQLite has no clock of its own
        """See `Database.present`."""
        return self._clock.now()

    def insert(self, table: Table) -> Insert:
        """See `Database.insert`."""
        return insert(table)

    async def open(self) -> None:
        """See `Database.open`."""
        if self._writer is None:
            self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="redrive-sqlite-read")
            self._scanner = ThreadPoolExecutor(1, thread_name_prefix="redrive-sqlite-scan")
            self._writer = _Writer(self._make_engine(NullPool, busy_timeout_ms=50, write=True))
            self._writer.start()
            await self.write(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").all())

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
        await self.open()
        assert self._writer is not None
        calls: list[Callable[[], None]] = []
        return await self._writer.submit(
            lambda connection: run_collecting(connection, calls, run, *args, **kwargs), calls
        )

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
        await self.open()
        if self._user_engine is None:
            self._user_engine = self._make_user_engine()
        async with self._user_lock, user_transaction(self._user_engine, translated) as transaction:
            yield transaction

    @contextmanager
    def waiter(self, ledger: str) -> Iterator[Waiter]:
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

    def _make_engine(self, pool: Any, *, busy_timeout_ms: int = 60_000, write: bool = False, **options: Any) -> Engine:
        engine = create_engine(
            self._url.set(drivername="sqlite"),
            hide_parameters=True,
            poolclass=pool,
            connect_args={"check_same_thread": False},
            **options,
        )

        @event.listens_for(engine, "connect")
        def set_up(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None  # the driver shall not begin transactions behind our back
            connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
            if write:
                _set_up_writer(connection, self._synchronous)
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


class _FileWaiter(Waiter):
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


@dataclass(slots=True)
class _Job:
    run: Callable[[Connection], Any] | None
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    calls: Sequence[Callable[[], None]] = ()
    """What waits for the commit; called as the caller would, also where that one was cancelled meanwhile."""
    context: Context = field(default_factory=copy_context)


class _Writer:
    """The thread that owns the process's one writing connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="redrive-sqlite-write", daemon=True)
        self._connection: Connection | None = None
        self._connections = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    async def submit(self, run: Callable[[Connection], R], calls: Sequence[Callable[[], None]]) -> R:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._jobs.put(_Job(run, future, loop, calls))
        return await future

    async def others_version(self) -> object:
        """A value that changes when any other connection has committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._jobs.put(_Job(None, future, loop))
        return await future

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            group = [job]
            stopping = False
            while len(group) < JOBS_PER_COMMIT_MAX and not stopping:
                try:
                    following = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stopping = True
                else:
                    group.append(following)
            self._run(group)
            if stopping:
                break
        self._disconnect()
        self._engine.dispose()

    def _run(self, group: list[_Job]) -> None:
        results: list[tuple[_Job, Any, BaseException | None]] = []
        for jobs, run in (
            ([job for job in group if job.run is not None], self._commit),
            ([job for job in group if job.run is None], self._look),
        ):
            try:
                results += run(jobs) if jobs else []
            except BaseException as error:  # the callers must hear of it; the thread itself goes on
                self._disconnect()
                shown = translated(error) if isinstance(error, DBAPIError) else error
                results += [(job, None, shown) for job in jobs]
        for loop in {job.loop for job in group}:
            with suppress(RuntimeError):  # a loop that was closed meanwhile has nobody left to tell
                loop.call_soon_threadsafe(_deliver, [result for result in results if result[0].loop is loop])

    def _look(self, jobs: list[_Job]) -> list[tuple[_Job, Any, BaseException | None]]:
        version = self._connected().exec_driver_sql("PRAGMA data_version").scalar_one()
        # Each connection counts for itself, so a new one must not repeat a number of the last.
        return [(job, (self._connections, version), None) for job in jobs]

    def _commit(self, jobs: list[_Job]) -> list[tuple[_Job, Any, BaseException | None]]:
        connection = self._connected()
        self._begin(connection)
        results: list[tuple[_Job, Any, BaseException | None]] = []
        try:
            for job in jobs:
                assert job.run is not None
                # Alone in its transaction a job needs no savepoint: its failure is the transaction's.
                if len(jobs) > 1:
                    connection.exec_driver_sql("SAVEPOINT job")
                try:
                    result, error = job.run(connection), None
                except Exception as raised:
                    result, error = None, translated(raised) if isinstance(raised, DBAPIError) else raised
                    if not _in_transaction(connection):  # a full disk, for one, has rolled everything back already
                        raise
                    connection.exec_driver_sql("ROLLBACK TO job" if len(jobs) > 1 else "ROLLBACK")
                if len(jobs) > 1:
                    connection.exec_driver_sql("RELEASE job")
                results.append((job, result, error))
            if len(jobs) > 1 or results[0][2] is None:
                connection.exec_driver_sql("COMMIT")
        except BaseException:
            self._disconnect()
            raise
        return results

    def _begin(self, connection: Connection) -> None:
        """Take the write lock. Short random waits are fairer among processes than SQLite's own, which grow to 100 ms."""
        ends = time.monotonic() + LOCK_PATIENCE.total_seconds()
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return
            except OperationalError as error:
                if not _is_locked(error) or time.monotonic() > ends:
                    raise
            time.sleep(random.uniform(0.0005, 0.004))

    def _connected(self) -> Connection:
        if self._connection is None:
            # AUTOCOMMIT: SQLAlchemy leaves begin and commit to the statements above.
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connections += 1
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except Exception:  # it is being thrown away because it is broken
                return


def _deliver(results: list[tuple[_Job, Any, BaseException | None]]) -> None:
    for job, result, error in results:
        if error is None:
            job.context.run(call_all, job.calls)
        if job.future.done():  # its caller was cancelled; the write has happened all the same
            continue
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)


def _in_transaction(connection: Connection) -> bool:
    return bool(connection.connection.dbapi_connection.in_transaction)  # type: ignore[union-attr]  # it is connected


def _is_locked(error: BaseException) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def translated(error: BaseException) -> Exception:
    """The driver's error as one of ours, where we have a word for it."""
    said = str(getattr(error, "orig", None) or error)
    if "no such table: redrive_" in said or "no such column: redrive_" in said:
        return NotMigratedError(f"redrive's tables are missing or old ({said}): run `redrive migrate`")
    if said == "interrupted":
        return TooSlowError("the database needed too long for this look")
    away = (
        "is locked",
        "unable to open",
        "disk I/O",
        "disk is full",
        "readonly database",
        "not a database",
        "malformed",
    )
    if any(word in said for word in away):
        return LedgerAwayError(f"SQLite cannot be used now: {said}")
    return error if isinstance(error, Exception) else RuntimeError(said)
