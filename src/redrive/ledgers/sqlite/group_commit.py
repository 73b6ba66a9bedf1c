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
OPEN_SECONDS_MAX = 0.01
"""What comes in later than so long after the first has the next transaction: the first waits for its answer, and other processes for the lock."""
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


_Result = tuple[_Job, Any, BaseException | None]


class _Group:
    """The jobs of one transaction: the first, and what stands in line behind it when it is asked for."""

    def __init__(self, line: "queue.SimpleQueue[_Job | None]", first: _Job) -> None:
        self._line = line
        self._next: _Job | None = first
        self.writes: list[_Job] = []
        self.looks: list[_Job] = []
        """What only wants to know whether others have written; it is told after the commit."""
        self.is_last = False

    def following(self) -> _Job | None:
        """The next job that writes; None where there is none now."""
        while len(self.writes) < JOBS_PER_COMMIT_MAX and not self.is_last:
            job, self._next = self._next, None
            try:
                job = job or self._line.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self.is_last = True
            elif job.run is None:
                self.looks.append(job)
            else:
                self.writes.append(job)
                return job
        return None


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
            with self._busy:
                group = _Group(self._jobs, job)
                self._run(group)
            if group.is_last:
                break
        self._disconnect()
        self._engine.dispose()

    def _run(self, group: "_Group") -> None:
        results: list[_Result] = []
        for run, jobs in ((self._commit, group.writes), (self._look, group.looks)):
            try:
                results += run(group)
            except BaseException as error:  # the callers must hear of it; the thread itself goes on
                self._disconnect()
                shown = translated(error) if isinstance(error, DBAPIError | sqlite3.Error) else error
                results += [(job, None, shown) for job in jobs]
        for loop in {job.loop for job, _, _ in results}:
            with suppress(RuntimeError):  # a loop that was closed meanwhile has nobody left to tell
                loop.call_soon_threadsafe(_deliver, [result for result in results if result[0].loop is loop])

    def _look(self, group: "_Group") -> list[_Result]:
        if not group.looks:
            return []
        driver: sqlite3.Connection = self._connected().connection.dbapi_connection  # type: ignore[assignment]  # it is connected
        [version] = self._insist(driver, "PRAGMA data_version").fetchone()
        # Each connection counts for itself, so a new one must not repeat a number of the last.
        return [(job, (self._connections, version), None) for job in group.looks]

    def _commit(self, group: "_Group") -> list[_Result]:
        """Write what there is, and what comes in while it is written: all of it waits for the disk once."""
        job = group.following()
        if job is None:
            return []
        connection = self._connected()
        # Begin and commit go straight to the driver: SQLAlchemy's way takes 60 µs for each, and knows nothing of them anyway.
        driver: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]  # it is connected
        self._begin(driver)
        ends = time.monotonic() + OPEN_SECONDS_MAX
        results: list[_Result] = []
        try:
            while job is not None:
                assert job.run is not None
                # The first needs no savepoint: its failure is the transaction's.
                if results:
                    driver.execute("SAVEPOINT job")
                try:
                    result, error = job.run(connection), None
                except Exception as raised:
                    result, error = None, translated(raised) if isinstance(raised, DBAPIError) else raised
                    if not driver.in_transaction:  # a full disk, for one, has rolled everything back already
                        raise
                    driver.execute("ROLLBACK TO job" if results else "ROLLBACK")
                if results:
                    driver.execute("RELEASE job")
                results.append((job, result, error))
                if not driver.in_transaction:
                    return results
                job = group.following() if time.monotonic() < ends else None
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
