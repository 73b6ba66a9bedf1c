"""The one thread that writes to a SQLite file, and the transactions that concurrent callers share.

A commit costs one fsync however many tasks it carries (23,500 adds/s instead of 690). The thread runs a transaction from begin to
end, so a cancelled caller can never leave the lock behind.
"""

import asyncio
import queue
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from redrive.ledgers.sql.database import call_all
from redrive.ledgers.sqlite.errors import translated
from redrive.ledgers.sqlite.write_lock import WriteLock

R = TypeVar("R")

LOCK_PATIENCE = timedelta(seconds=60)
"""How long a write waits for other processes before it says that the ledger is away."""
JOBS_PER_COMMIT_MAX = 64
ASK_AGAIN_SECONDS = (0.0002, 0.001)
"""How soon a lock that another process holds is asked for again. One that commits again and again lets go for moments only: asked for in SQLite's
own steps, which grow to 20 ms, it was had after 56 ms (p99, with a thousand tasks a second added by another), and is after 9 to 17."""
HELD_SECONDS = 1.0
"""What is held for so long is no commit: it is asked for a quarter as often from then on."""


@dataclass(slots=True)
class _Job:
    run: Callable[[Connection], Any] | None
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    calls: Sequence[Callable[[], None]] = ()
    """What waits for the commit; called as the caller would, also where that one was cancelled meanwhile."""
    context: Context = field(default_factory=copy_context)


class Writer:
    """The thread that owns the process's one writing connection."""

    def __init__(self, engine: Engine, lock: WriteLock) -> None:
        self._engine = engine
        self._lock = lock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="redrive-sqlite-write", daemon=True)
        self._connection: Connection | None = None
        self._connections = 0
        self._busy = threading.Lock()
        self.paused = False

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what was submitted, then end."""
        self._jobs.put(None)
        self._thread.join()

    def pause(self, seconds: float) -> None:
        """Let go of the file and write nothing until told to go on, if what is being written is done in this time."""
        self.paused = self._busy.acquire(timeout=seconds)
        if self.paused:
            self._disconnect()

    def go_on(self) -> None:
        """Write again, if it was paused."""
        if self.paused:
            self.paused = False
            self._busy.release()

    async def submit(self, run: Callable[[Connection], R], calls: Sequence[Callable[[], None]]) -> R:
        """Run a function in a transaction, perhaps with others; comes back when it is durable and the calls were made."""
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
            with self._busy:
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
                shown = translated(error) if isinstance(error, DBAPIError | sqlite3.Error) else error
                results += [(job, None, shown) for job in jobs]
        for loop in {job.loop for job in group}:
            with suppress(RuntimeError):  # a loop that was closed meanwhile has nobody left to tell
                loop.call_soon_threadsafe(_deliver, [result for result in results if result[0].loop is loop])

    def _look(self, jobs: list[_Job]) -> list[tuple[_Job, Any, BaseException | None]]:
        driver: sqlite3.Connection = self._connected().connection.dbapi_connection  # type: ignore[assignment]  # it is connected
        [version] = self._insist(driver, "PRAGMA data_version").fetchone()
        # Each connection counts for itself, so a new one must not repeat a number of the last.
        return [(job, (self._connections, version), None) for job in jobs]

    def _commit(self, jobs: list[_Job]) -> list[tuple[_Job, Any, BaseException | None]]:
        connection = self._connected()
        # Begin and commit go straight to the driver: SQLAlchemy's way takes 60 µs for each, and knows nothing of them anyway.
        driver: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]  # it is connected
        self._begin(driver)
        results: list[tuple[_Job, Any, BaseException | None]] = []
        try:
            for job in jobs:
                assert job.run is not None
                # Alone in its transaction a job needs no savepoint: its failure is the transaction's.
                if len(jobs) > 1:
                    driver.execute("SAVEPOINT job")
                try:
                    result, error = job.run(connection), None
                except Exception as raised:
                    result, error = None, translated(raised) if isinstance(raised, DBAPIError) else raised
                    if not driver.in_transaction:  # a full disk, for one, has rolled everything back already
                        raise
                    driver.execute("ROLLBACK TO job" if len(jobs) > 1 else "ROLLBACK")
                if len(jobs) > 1:
                    driver.execute("RELEASE job")
                results.append((job, result, error))
            if len(jobs) > 1 or results[0][2] is None:
                driver.execute("COMMIT")
        except BaseException:
            self._disconnect()
            raise
        return results

    def _begin(self, driver: sqlite3.Connection) -> None:
        """Take the write lock."""
        self._insist(driver, "BEGIN IMMEDIATE")
        if self._lock.since is not None:
            self._lock.taken()

    def _insist(self, driver: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Run what needs a lock of the file. Short random waits are fairer among processes than SQLite's own, which are off here."""
        began = time.monotonic()
        while True:
            try:
                return driver.execute(statement)
            except sqlite3.OperationalError as error:
                if not _is_locked(error):
                    raise
                self._lock.missed()
                waited = time.monotonic() - began
                if waited > LOCK_PATIENCE.total_seconds():
                    raise
            time.sleep(random.uniform(*ASK_AGAIN_SECONDS) * (1 if waited < HELD_SECONDS else 4))

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


def _is_locked(error: BaseException) -> bool:
    return "locked" in str(error) or "busy" in str(error)
