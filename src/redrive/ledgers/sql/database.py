"""What a SQL ledger asks of its database: to run plain functions on a connection, in the ways that its store is good at.

Every statement is written once, in functions of a synchronous `Connection`. A `Database` decides where they run: SQLite in
one writer thread with group commit, PostgreSQL through `run_sync` on asyncpg. That is also what lets a caller's own
connection or session be used, sync or async, without a second copy of any statement.
"""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from redrive.errors import TooSlowError, UsageError
from redrive.ledgers.sql.beside_the_loop import call_beside
from redrive.ledgers.sql.borrowed import borrowed, is_plain
from redrive.ledgers.sql.seam import Dialect
from redrive.ports import Transaction, Waiter, Within

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("redrive")
_AFTER_COMMIT = "redrive_after_commit"


class StillLocked(TooSlowError):  # noqa: N818 - not an error: somebody else is at work
    """What is to be written is locked by somebody else, longer than is waited for. Everything is taken back."""


class Changes(NamedTuple):
    """What was written to a database until now, as one connection of ours sees it."""

    seen_by: object
    by_others: int
    """It changes with each commit of any other connection."""
    rows: int
    """How many rows this connection has written."""

    def since(self, before: "Changes") -> int | None:
        """How many rows have changed since then, at most; None where others have written too."""
        same = self.seen_by is before.seen_by and self.by_others == before.by_others
        return self.rows - before.rows if same else None


class Database(Protocol):
    """One database, shared by all ledgers in it."""

    url: str
    server_clock: bool
    migrates_itself: bool
    """Whether an application that opens it also brings its tables to the version of the code."""
    transactions_max: int
    """How many transactions of user code can be open at once."""

    @property
    def file(self) -> Path | None:
        """The file that it is; None where a server has it."""
        ...

    @property
    def dialect(self) -> Dialect:
        """What statements must know of it."""
        ...

    async def open(self) -> None:
        """Connect; raises `LedgerAwayError` if that is not possible now."""
        ...

    async def close(self) -> None:
        """Let go of every connection and thread."""
        ...

    async def describe(self) -> str:
        """Its version and how durable it is, in a few words."""
        ...

    def now(self) -> datetime:
        """The instant, where the database has no clock of its own."""
        ...

    def present(self, connection: Connection) -> datetime:
        """The instant as the statements of a ledger see it: the database's own, or `now`."""
        ...

    def changes(self, connection: Connection) -> Changes | None:
        """What was written until now, in a transaction that writes; None where nobody can tell."""
        ...

    def insert(self, table: Table) -> Any:
        """An insert that knows `on_conflict_do_nothing` and `on_conflict_do_update`."""
        ...

    async def statement(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that executes one statement and commits with it."""
        ...

    async def write(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function in a transaction. When this returns, what it wrote is durable."""
        ...

    async def stand_in_line(
        self, span: timedelta, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """As `write`, for a row that is locked: `StillLocked` if it does not come free in time."""
        ...

    async def rebuild(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `write`, however long it takes: for migrations."""
        ...

    async def read(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that only reads."""
        ...

    async def scan(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that only reads, and reads much: planned as such, and in nobody's way."""
        ...

    async def look(
        self, within: timedelta, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function that only reads, for somebody who waits: `TooSlowError` if a statement takes longer than `within`."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction for user code, committed at the end of the block."""
        ...

    def check_free(self) -> None:
        """Raise `UsageError` where a write would wait for a transaction that its own caller has open.

        `write` does so by itself; whoever hands its writes to another task asks before.
        """
        ...

    def trouble(self) -> str | None:
        """What keeps writes from going through though reads are answered, in a sentence; None where all is well."""
        ...

    async def advice(self) -> Sequence[tuple[str, str]]:
        """What could be better in the way that it is reached, each with its remedy."""
        ...

    def waiter(self, ledger: str) -> AbstractContextManager[Waiter]:
        """A place to wait for new work of the ledger."""
        ...

    def wake(self, ledger: str) -> None:
        """Tell waiters in this process that the ledger may have new work."""
        ...

    def announce(self, connection: Connection, ledger: str, *, soon: bool) -> None:
        """Tell waiters in other processes the same, when the connection commits.

        `soon` says that the commit follows at once, so that one announcement may stand for several.
        """
        ...


def after_commit(connection: Connection, call: Callable[[], None]) -> None:
    """Call a function when what this connection writes is durable, and never if it is taken back.

    It is called in the event loop, and must neither wait nor change the database. In a transaction of the caller's own nobody
    here knows when it is committed: there nothing is called.
    """
    calls = connection.info.get(_AFTER_COMMIT)
    if calls is not None:
        calls.append(call)


def run_collecting(
    connection: Connection,
    calls: list[Callable[[], None]],
    run: Callable[Concatenate[Connection, P], R],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Run a function in a transaction and collect what it wants to have called after the commit."""
    info = connection.info
    info[_AFTER_COMMIT] = calls
    try:
        return run(connection, *args, **kwargs)
    finally:
        info.pop(_AFTER_COMMIT, None)


def call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Call what was waiting for the commit."""
    for call in calls:
        try:
            call()
        except Exception:  # what it is about is durable; a full disk under the logs must not undo it
            _log.exception("what follows a commit failed")


@dataclass(slots=True)
class OpenTransaction:
    """A transaction under way on a connection for user code."""

    connection: AsyncConnection

    def submit(self, threads: Executor, call: Callable[[Any], R]) -> "Future[R]":
        """See `Transaction.submit`."""
        connection = self.connection.sync_connection
        assert connection is not None, "the transaction is open"
        inside = contextvars.copy_context()
        return threads.submit(inside.run, call_beside, asyncio.get_running_loop(), call, connection)


@asynccontextmanager
async def user_transaction(
    engine: AsyncEngine, translated: Callable[[BaseException], Exception]
) -> AsyncIterator[OpenTransaction]:
    """A transaction that commits at the end of the block; what the block itself raises passes through untouched."""
    try:
        connection = await engine.connect()
    except Exception as error:
        raise translated(error) from error
    try:
        try:
            await connection.begin()
        except Exception as error:
            raise translated(error) from error
        yield OpenTransaction(connection)
        try:
            await connection.commit()
        except Exception as error:
            raise translated(error) from error
    finally:
        # Shielded: a cancellation in mid-close would leave the connection, and on SQLite the lock, behind.
        await asyncio.shield(connection.close())


async def run_within(
    within: Within, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run a function in the caller's own transaction, whichever handle they gave."""
    if isinstance(within, AsyncSession):
        within = await within.connection()
    if isinstance(within, AsyncConnection):
        return await within.run_sync(run, *args, **kwargs)
    with callers_connection(within) as connection:
        return run(connection, *args, **kwargs)


@contextmanager
def callers_connection(within: Within) -> Iterator[Connection]:
    """The connection behind what a caller without an event loop gave: SQLAlchemy's, or a plain one of `sqlite3` or `psycopg`."""
    if is_plain(within):
        with borrowed(within) as connection:
            yield connection
    else:
        yield sync_connection(within)


def sync_connection(within: Within) -> Connection:
    """The synchronous connection behind a `Connection` or `Session`."""
    if isinstance(within, Session):
        return within.connection()
    if isinstance(within, Connection):
        return within
    raise UsageError(
        "within takes a Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy, or a connection of sqlite3 or psycopg, "
        f"not {type(within).__name__}"
    )
