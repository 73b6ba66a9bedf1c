"""The one write lock of a file: nobody waits for itself, and a long wait is told."""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from redrive import Redrive
from redrive.core.states import State
from redrive.core.task import NewTask
from redrive.errors import UsageError
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sqlite import write_lock
from redrive.ports import Actor
from redrive.testing import drain

pytestmark = pytest.mark.timeout(30)
REMEDY = "within=context.connection"


@pytest.fixture
def store() -> str:
    return "sqlite"


def nothing(connection: Connection) -> None:
    """A write that changes nothing, and needs the lock all the same."""


def task(key: str) -> NewTask:
    return NewTask(kind="mail", key=key)


# --- nobody waits for itself ------------------------------------------------------------------------------------------


async def begin_another(database: Database) -> None:
    async with database.transaction():
        pass


async def add(database: Database) -> None:
    await (await open_ledger(database)).add([task("inside")])


async def redrive(database: Database) -> None:
    await (await open_ledger(database)).redrive([1], Actor(name="ada"))


async def write(database: Database) -> None:
    await database.write(nothing)


WRITES = [add, redrive, write, begin_another]


@pytest.mark.parametrize("act", WRITES)
async def test_what_would_wait_for_itself_is_refused(database: Database, act: Callable[..., Awaitable[None]]) -> None:
    """Whoever writes beside the transaction that he has open is told at once what to do, and the transaction goes on."""
    async with database.transaction() as transaction:
        with pytest.raises(UsageError, match=REMEDY):
            await act(database)
        await (await open_ledger(database)).add([task("a")], within=transaction.connection)
    assert (await (await open_ledger(database)).counts())[State.WAITING] == 1


async def test_so_is_what_it_starts(database: Database) -> None:
    """Tasks and threads that the transaction starts are told too: it may be waiting for them."""
    loop = asyncio.get_running_loop()

    def from_a_thread() -> None:
        asyncio.run_coroutine_threadsafe(add(database), loop).result()

    async with database.transaction():
        for started in (asyncio.gather(add(database)), asyncio.to_thread(from_a_thread)):
            with pytest.raises(UsageError, match=REMEDY):
                await started


async def test_another_way_to_the_same_file_is_the_same_lock(database: Database, url: str) -> None:
    """Two applications on one file have one lock."""
    other = open_database(url, durable=False)
    try:
        async with database.transaction():
            with pytest.raises(UsageError, match=REMEDY):
                await write(other)
    finally:
        await other.close()


async def test_others_are_not_refused(database: Database, tmp_path: Path) -> None:
    """Reads, another file, a task from before and a task that outlives the transaction have nothing to wait for."""
    go, gone = asyncio.Event(), asyncio.Event()

    async def before() -> None:
        await go.wait()
        await add(database)  # waits for the transaction to end, as every stranger does

    async def after() -> None:
        await gone.wait()
        await write(database)

    earlier = asyncio.create_task(before())
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}", durable=False)
    try:
        async with database.transaction():
            go.set()
            later = asyncio.create_task(after())
            assert await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one()) == 1
            await write(other)
        gone.set()
        await asyncio.gather(earlier, later)
    finally:
        await other.close()


async def test_a_handler_is_told_what_to_do(url: str) -> None:
    """A transactional handler that adds without `within` fails with the remedy, and costs nobody else a minute."""
    app = Redrive(url, durable=False)

    @app.handler("mail", attempts=1, transactional=True)
    async def mail(task: object, context: object) -> None:
        await app.add("other")

    async with app:
        await app.add("mail", key="a")
        await drain(app)
        dead = await app.tasks.get("a")
    assert dead is not None
    assert dead.state is State.DEAD
    assert REMEDY in (dead.last_error or "")


# --- a long wait is told ----------------------------------------------------------------------------------------------


@pytest.fixture
def taken(url: str) -> Iterator[sqlite3.Connection]:
    """Another process, as far as SQLite can tell, that holds the lock."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def until_told(database: Database) -> str:
    while (trouble := database.trouble()) is None:
        await asyncio.sleep(0.005)
    return trouble


async def test_a_long_wait_is_told_once_and_its_end_too(
    real_time_database: Database,
    taken: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lock that stays is said in the log with the file and the remedy, and again when it is over."""
    monkeypatch.setattr(write_lock, "LONG_SECONDS", 0.0)
    monkeypatch.setattr("redrive.ledgers.sqlite.database._set_up_writer", lambda *_: None)
    with caplog.at_level(logging.WARNING, logger="redrive"):
        writing = [asyncio.create_task(real_time_database.write(nothing)) for _ in range(3)]
        trouble = await until_told(real_time_database)
        assert trouble.startswith("waiting for the write lock of test.db for ")
        assert trouble.endswith(": another process holds it")
        taken.execute("ROLLBACK")
        await asyncio.gather(*writing)
    assert real_time_database.trouble() is None
    begun, over = caplog.messages
    assert begun.startswith("waiting for the write lock of test.db")
    assert "fuser" in begun
    assert over.startswith("the write lock of test.db is free again after ")


async def test_a_short_wait_is_not_told(
    real_time_database: Database, taken: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Writers of other processes come and go: nobody is told of a wait of milliseconds."""
    with caplog.at_level(logging.WARNING, logger="redrive"):
        writing = asyncio.create_task(real_time_database.write(nothing))
        await asyncio.sleep(0.1)
        assert real_time_database.trouble() is None
        taken.execute("ROLLBACK")
        await writing
    assert caplog.messages == []


async def test_who_holds_it(real_time_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a handler of this process holds it, nobody looks for another process."""
    monkeypatch.setattr(write_lock, "LONG_SECONDS", 0.0)
    begun, end = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with real_time_database.transaction():
            begun.set()
            await end.wait()

    holding = asyncio.create_task(hold())
    await begun.wait()
    writing = asyncio.create_task(real_time_database.write(nothing))
    assert (await until_told(real_time_database)).endswith("a transactional handler of this process holds it")
    end.set()
    await asyncio.gather(holding, writing)


async def test_what_nobody_waits_for_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that could not be had, and was not asked for again, says nothing about now."""
    monkeypatch.setattr(write_lock, "LONG_SECONDS", 0.0)
    lock = write_lock.WriteLock(Path("work.db"))
    lock.missed()
    assert lock.trouble() is not None
    monkeypatch.setattr(write_lock, "FORGOTTEN_SECONDS", -1.0)
    assert lock.trouble() is None
