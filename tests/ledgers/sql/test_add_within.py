"""Adding in the caller's own transaction, through any handle that SQLAlchemy has for one."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from redrive.core.task import NewTask
from redrive.errors import KeyTakenError, UsageError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger

A = NewTask(kind="mail", key="a")


@pytest.fixture
async def ledger(database: Database) -> SqlLedger:
    return await open_ledger(database)


@pytest.fixture
def engine(url: str, store: str, database: Database) -> Iterator[Engine]:
    """The caller's own engine: pysqlite, or psycopg."""
    made = create_engine(
        make_url(url).set(drivername="sqlite" if store == "sqlite" else "postgresql+psycopg"), poolclass=NullPool
    )
    yield made
    made.dispose()


@pytest.fixture
async def async_engine(url: str, store: str, database: Database) -> AsyncIterator[AsyncEngine]:
    """The caller's own engine: aiosqlite, or asyncpg."""
    made = create_async_engine(
        make_url(url).set(drivername="sqlite+aiosqlite" if store == "sqlite" else "postgresql+asyncpg"),
        poolclass=NullPool,
    )
    yield made
    await made.dispose()


@pytest.mark.parametrize("handle", [Connection, Session])
@pytest.mark.parametrize("commit", [True, False])
async def test_sync_handles(ledger: SqlLedger, engine: Engine, handle: Any, commit: bool) -> None:
    """What is added in a sync connection or session is there when the caller commits, and only then."""
    with handle(engine) as mine:
        [added] = ledger.add_sync([A], within=mine)
        [again] = ledger.add_sync([A], within=mine)
        assert (added.new, again.new, again.id) == (True, False, added.id)
        if commit:
            mine.commit()
        else:
            mine.rollback()
    found = await ledger.get_by_key("a")
    assert (found is not None) is commit


@pytest.mark.parametrize("handle", [AsyncConnection, AsyncSession])
@pytest.mark.parametrize("commit", [True, False])
async def test_async_handles(ledger: SqlLedger, async_engine: AsyncEngine, handle: Any, commit: bool) -> None:
    """The same in an async connection or session."""
    async with handle(async_engine) as mine:
        [added] = await ledger.add([A], within=mine)
        [again] = await ledger.add([A], within=mine)
        assert (added.new, again.new, again.id) == (True, False, added.id)
        if commit:
            await mine.commit()
        else:
            await mine.rollback()
    found = await ledger.get_by_key("a")
    assert (found is not None) is commit


async def test_the_callers_own_writes_commit_with_the_task(ledger: SqlLedger, engine: Engine) -> None:
    """An order and the task to confirm it are stored together or not at all."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        ledger.add_sync([A], within=connection)
        raise ZeroDivisionError
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        ledger.add_sync([A], within=connection)
    assert await ledger.get_by_key("a") is not None


async def test_a_taken_key_within_a_sync_transaction(ledger: SqlLedger, engine: Engine) -> None:
    """The error comes before the commit, and leaves the transaction usable."""
    await ledger.add([A])
    with engine.begin() as connection:
        with pytest.raises(KeyTakenError):
            ledger.add_sync([NewTask(kind="print", key="b"), NewTask(kind="print", key="a")], within=connection)
        ledger.add_sync([NewTask(kind="print", key="c")], within=connection)
    assert await ledger.get_by_key("b") is None
    assert await ledger.get_by_key("c") is not None


@pytest.mark.parametrize("wrong", ["a url", 5, object()])
async def test_what_is_no_handle_is_refused(ledger: SqlLedger, wrong: Any) -> None:
    """Anything else is an error that says what is taken."""
    with pytest.raises(UsageError, match="Connection, Session, AsyncConnection or AsyncSession"):
        await ledger.add([A], within=wrong)
