"""SQLite in memory as a `Database`: every transaction passes the process that asks for it, which may be slow, frozen, cut off or dead."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Table, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from proof.simulator.quick import QuickConnection
from redrive.errors import RedriveError
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.compiled import OWN
from redrive.ledgers.sql.database import call_all, run_collecting
from redrive.ledgers.sql.migrate import migrate
from redrive.ledgers.sql.waiters import Waiters, WakeUps
from redrive.ledgers.sqlite.dialect import SqliteDialect
from redrive.ledgers.sqlite.errors import translated


class Asking(Protocol):
    """Who asks for a transaction."""

    waiters: Waiters

    async def reach(self, *, writes: bool) -> bool:
        """The way to the database, which may be long or cut; whether the answer will be lost."""
        ...

    async def answer(self, *, lost: bool) -> None:
        """The way back."""
        ...


ASKING: ContextVar[Asking] = ContextVar("asking")


class MemoryDatabase:
    """One database for all processes of a world; made once, emptied for each seed."""

    url = "sqlite://"
    server_clock = False
    migrates_itself = True
    transactions_max = 1
    file = None

    def __init__(self) -> None:
        engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False},
            execution_options={OWN: True},
            hide_parameters=True,
        )
        engine._connection_cls = QuickConnection  # noqa: SLF001
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        assert isinstance(connection, QuickConnection)
        self._connection = connection
        driver = self._connection.connection.dbapi_connection
        assert isinstance(driver, sqlite3.Connection)
        self.driver = driver
        driver.isolation_level = None
        asyncio.run(_fill(driver))
        tables = [name for (name,) in driver.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        self._empty = [one for one in tables if not driver.execute(f'SELECT 1 FROM "{one}"').fetchone()]
        self.dialect = SqliteDialect(engine.dialect)
        self.now: Callable[[], datetime] = lambda: datetime.max
        self.committed: Callable[[], None] = lambda: None
        self.failed: Callable[[BaseException], None] = lambda _: None

    def begin(
        self, now: Callable[[], datetime], committed: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """A new world: an empty database, a clock, who looks after each commit that has changed something, and who hears of errors."""
        for table in self._empty:
            self.driver.execute(f'DELETE FROM "{table}"')
        self.now, self.committed, self.failed = now, committed, failed

    def learned(self) -> None:
        """What worlds ask for again and again is known now."""
        self._connection.learned()

    def present(self, connection: Connection) -> datetime:  # noqa: ARG002
        return self.now()

    def insert(self, table: Table) -> Any:
        return self.dialect.insert(table)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def describe(self) -> str:
        return "SQLite in memory"

    async def write(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        asking = ASKING.get()
        lost = await asking.reach(writes=True)
        calls: list[Callable[[], None]] = []
        before = self.driver.total_changes
        self.driver.execute("BEGIN IMMEDIATE")
        try:
            result = run_collecting(self._connection, calls, run, *args, **kwargs)
        except BaseException as error:
            self.driver.execute("ROLLBACK")
            self._connection.undone()
            self._heed(error)
            raise (translated(error) if isinstance(error, DBAPIError) else error) from None
        self.driver.execute("COMMIT")
        if self.driver.total_changes != before:
            self.committed()
        await asking.answer(lost=lost)
        call_all(calls)
        return result

    statement = rebuild = write

    async def stand_in_line(self, span: timedelta, run: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return await self.write(run, *args, **kwargs)

    async def read(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        asking = ASKING.get()
        lost = await asking.reach(writes=False)
        try:
            result = run(self._connection, *args, **kwargs)
        except BaseException as error:
            self._heed(error)
            raise
        await asking.answer(lost=lost)
        return result

    scan = read

    def _heed(self, error: BaseException) -> None:
        """No fault of this database is drawn inside a transaction: what is raised there, and is no refusal, is the engine's own."""
        if not isinstance(error, RedriveError):
            self.failed(error)

    async def look(self, within: timedelta, run: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return await self.read(run, *args, **kwargs)

    def transaction(self) -> Any:
        raise NotImplementedError("no handler here is transactional")

    def check_free(self) -> None: ...

    def trouble(self) -> str | None:
        return None

    async def advice(self) -> Sequence[tuple[str, str]]:
        return ()

    @contextmanager
    def waiter(self, ledger: str) -> Iterator[WakeUps]:
        with ASKING.get().waiters.registered(ledger, WakeUps()) as waiter:
            yield waiter

    def wake(self, ledger: str) -> None:
        ASKING.get().waiters.wake(ledger)

    def announce(self, connection: Connection, ledger: str, *, soon: bool) -> None: ...


async def _fill(driver: sqlite3.Connection) -> None:
    """The tables, made by the migrations as everywhere."""
    with tempfile.TemporaryDirectory(prefix="redrive-simulator-") as folder:
        file = Path(folder) / "tables.db"
        database = open_database(f"sqlite:///{file}")
        await migrate(database)
        await database.close()
        with sqlite3.connect(file) as made:
            made.backup(driver)
        made.close()
