"""What only SQLite has: one writing thread with group commit, several processes on one file, wake-ups by its version."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from redrive.core.durations import seconds
from redrive.core.task import NewTask
from redrive.errors import LedgerAwayError, SettingsError
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import migrate
from redrive.ledgers.sqlite import group_commit

LONG = seconds(60)


@pytest.fixture
def store() -> str:
    return "sqlite"


@pytest.fixture
async def numbers(database: Database) -> AsyncIterator[Database]:
    """A database with a table of numbers that must be positive."""
    await database.write(
        lambda connection: connection.exec_driver_sql("CREATE TABLE numbers (n INTEGER CHECK (n > 0))")
    )
    yield database


def insert(connection: Connection, number: int) -> int:
    connection.exec_driver_sql("INSERT INTO numbers VALUES (?)", (number,))
    return number


async def stored(database: Database) -> list[int]:
    return await database.read(
        lambda connection: list(connection.exec_driver_sql("SELECT n FROM numbers ORDER BY n").scalars())
    )


class Gate:
    """Holds the writing thread, so that what is submitted meanwhile shares one commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open, self._reached = threading.Event(), asyncio.Event()
        self._held: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Gate":
        loop = asyncio.get_running_loop()

        def hold(connection: Connection) -> None:
            loop.call_soon_threadsafe(self._reached.set)
            assert self._open.wait(150)

        self._held = asyncio.create_task(self._database.write(hold))
        await self._reached.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        assert self._held is not None
        await self._held


async def test_writes_that_wait_share_one_commit(numbers: Database) -> None:
    """What is submitted while the thread is busy is committed together."""
    commits: list[str] = []
    async with Gate(numbers):
        tasks = [asyncio.create_task(numbers.write(insert, number)) for number in range(1, 21)]
        spy = asyncio.create_task(
            numbers.write(lambda c: c.connection.dbapi_connection.set_trace_callback(commits.append))
        )
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, spy)
    assert await stored(numbers) == list(range(1, 21))
    assert [statement for statement in commits if statement == "COMMIT"] == ["COMMIT"]
    await numbers.write(lambda c: c.connection.dbapi_connection.set_trace_callback(None))


async def test_a_failing_write_leaves_its_neighbours_alone(numbers: Database) -> None:
    """Of the writes that share a commit one may fail: its own changes are undone, the others are stored."""

    def twice(connection: Connection) -> None:
        insert(connection, 50)
        insert(connection, -1)

    async with Gate(numbers):
        tasks = [asyncio.create_task(numbers.write(insert, number)) for number in (1, 2)]
        bad = asyncio.create_task(numbers.write(twice))
        tasks.append(asyncio.create_task(numbers.write(insert, 3)))
        await asyncio.sleep(0)
    assert await asyncio.gather(*tasks) == [1, 2, 3]
    with pytest.raises(Exception, match="CHECK constraint"):
        await bad
    assert await stored(numbers) == [1, 2, 3]


async def test_a_failing_write_alone_is_rolled_back(numbers: Database) -> None:
    """A lone write that fails leaves nothing, and the next one works."""

    def fail(connection: Connection) -> None:
        insert(connection, 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await numbers.write(fail)
    await numbers.write(insert, 2)
    assert await stored(numbers) == [2]


async def test_a_write_that_lost_its_transaction_is_told_why(numbers: Database) -> None:
    """Where SQLite itself has rolled back, the caller hears of the cause and the next write works."""

    def lose(connection: Connection) -> None:
        connection.exec_driver_sql("ROLLBACK")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await numbers.write(lose)
    await numbers.write(insert, 2)
    assert await stored(numbers) == [2]


async def test_a_cancelled_caller_leaves_no_lock(numbers: Database, url: str) -> None:
    """A caller that is cancelled in mid-write leaves the file free for other processes, and its write is done."""
    async with Gate(numbers):
        caller = asyncio.create_task(numbers.write(insert, 1))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    await numbers.write(insert, 3)  # comes behind it
    assert await stored(numbers) == [1, 3]
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0) as other:
        other.execute("INSERT INTO numbers VALUES (2)")
    other.close()


async def test_a_cancelled_transaction_leaves_no_lock(numbers: Database) -> None:
    """A transaction for user code that is cancelled is rolled back, and the file is free."""
    begun = asyncio.Event()

    async def user_code() -> None:
        async with numbers.transaction() as transaction:
            await transaction.connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
            begun.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(user_code())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await numbers.write(insert, 2)
    assert await stored(numbers) == [2]


async def test_reads_do_not_wait_for_a_writer(numbers: Database) -> None:
    """While a write is under way readers see what was committed before."""
    await numbers.write(insert, 1)
    async with Gate(numbers):
        assert await stored(numbers) == [1]


async def test_readers_cannot_write(numbers: Database) -> None:
    """A connection for reading refuses to change anything."""
    with pytest.raises(LedgerAwayError, match="readonly"):
        await numbers.read(insert, 1)


async def test_durability(url: str) -> None:
    """Writes are synced in full to a write-ahead log, also those of user code."""
    database = open_database(url)
    try:
        asked = ("PRAGMA journal_mode", "PRAGMA synchronous", "PRAGMA foreign_keys")
        assert await database.write(lambda c: [c.exec_driver_sql(one).scalar() for one in asked]) == ["wal", 2, 1]
        async with database.transaction() as transaction:
            found = [(await transaction.connection.exec_driver_sql(one)).scalar() for one in asked]
        assert found == ["wal", 2, 1]
    finally:
        await database.close()


WRITER = """
import asyncio, sys
from redrive.core.durations import seconds
from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.core.task import NewTask
from redrive.ledgers.open import open_database, open_ledger

async def main(url, name):
    database = open_database(url, durable=False)
    ledger = await open_ledger(database)
    for number in range(40):
        await ledger.add([NewTask(kind="mail", key=f"{name}-{number}")])
        claims = await ledger.claim(1, seconds(60))
        lost = await ledger.settle([decide(claim, Done(), Policy()) for claim in claims], worker=name)
        assert lost == []
    await database.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.wide
async def test_several_processes_write_one_file(url: str) -> None:
    """As in `faults/test_many_processes.py`, in processes that are not forked. Four processes that write at once see no locked database, and lose nothing."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, f"p{n}"], stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    for writer in writers:
        _, said = await asyncio.to_thread(writer.communicate, timeout=150)
        assert writer.returncode == 0, said
    database = open_database(url)
    try:
        counts = await (await open_ledger(database)).counts()
        assert sum(counts.values()) == 160
        assert counts["claimed"] == 0  # type: ignore[index]
    finally:
        await database.close()


async def test_a_lock_that_stays_is_an_outage(numbers: Database, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience has an end: then the ledger is away, and back as soon as the lock is gone."""
    monkeypatch.setattr(group_commit, "LOCK_PATIENCE", timedelta(0))
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerAwayError, match="locked"):
        await numbers.write(insert, 1)
    other.execute("ROLLBACK")
    other.close()
    await numbers.write(insert, 2)
    assert await stored(numbers) == [2]


async def test_a_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    """Whoever opens a file while another process has it alone for a moment, as to switch it to WAL, waits and hears of no lock."""
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    other.execute("CREATE TABLE made (n INTEGER)")
    other.execute("BEGIN EXCLUSIVE")
    database = open_database(f"sqlite:///{tmp_path / 'new.db'}")
    try:
        opening = asyncio.create_task(database.open())
        await asyncio.wait([opening], timeout=0.2)
        assert not opening.done()
        other.execute("COMMIT")
        await opening
        await database.write(lambda connection: connection.exec_driver_sql("INSERT INTO made VALUES (7)"))
        assert other.execute("SELECT n FROM made").fetchall() == [(7,)]
    finally:
        other.close()
        await database.close()


async def test_what_is_no_database_is_an_outage(tmp_path: Path) -> None:
    """A file of another kind is not touched."""
    location = tmp_path / "letter.db"
    location.write_text("Dear Sir or Madam, " * 100)
    database = open_database(f"sqlite:///{location}")
    try:
        with pytest.raises(LedgerAwayError, match="not a database"):
            await database.open()
    finally:
        await database.close()
    assert location.read_text().startswith("Dear Sir")


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("sqlite://", "sqlite:///work.db"),
        ("sqlite:///:memory:", "sqlite:///work.db"),
        ("sqlite:////no/such/folder/work.db", "create /no/such/folder"),
        ("mysql://localhost/work", "use sqlite:///file.db or postgresql://"),
        ("work.db", "write sqlite:///file.db or postgresql://"),
        ("postgresql://user:secret@host:port/work", "write postgresql://user:password@host:5432/name"),
    ],
)
async def test_urls_that_cannot_be_used(url: str, remedy: str) -> None:
    """A URL that cannot be used is refused with the remedy, and without its password."""
    with pytest.raises(SettingsError) as caught:
        open_database(url)
    assert remedy in str(caught.value)
    assert "secret" not in str(caught.value)


# --- wake-ups ---------------------------------------------------------------------------------------------------------


async def test_a_wake_up_between_look_and_wait_is_kept(real_time_database: Database) -> None:
    """What is added while a worker looks ends its next wait at once."""
    ledger = await open_ledger(real_time_database)
    with ledger.waiter() as waiter:
        assert await waiter.wait(LONG)  # the first one learns the version of the file
        waiter.clear()
        assert await ledger.claim(1, LONG) == []
        await ledger.add([NewTask(kind="mail", key="a")])
        assert await waiter.wait(LONG)
        waiter.clear()
        assert not await waiter.wait(timedelta(milliseconds=1))


async def test_another_process_wakes(real_time_database: Database, url: str) -> None:
    """A commit of another process ends the wait, also one between look and wait."""
    ledger = await open_ledger(real_time_database)
    other_database = open_database(url, durable=False)
    other = await open_ledger(other_database)
    try:
        with ledger.waiter() as waiter:
            assert await waiter.wait(LONG)  # nobody knows yet what happened before
            waiter.clear()
            assert await ledger.claim(1, LONG) == []
            await other.add([NewTask(kind="mail", key="a")])
            assert await waiter.wait(LONG)
            waiting = asyncio.create_task(waiter.wait(LONG))
            await other.add([NewTask(kind="mail", key="b")])
            assert await waiting
    finally:
        await other_database.close()


async def test_user_transactions_wake(real_time_database: Database) -> None:
    """Tasks added in a transaction of user code wake when it commits."""
    ledger = await open_ledger(real_time_database)
    with ledger.waiter() as waiter:
        assert await waiter.wait(LONG)
        waiter.clear()
        async with ledger.transaction() as transaction:
            await ledger.add([NewTask(kind="mail", key="a")], within=transaction.connection)
        assert await waiter.wait(LONG)


async def test_a_wait_ends_in_time_while_the_file_is_locked(real_time_database: Database) -> None:
    """A wait ends at its end, also while the writing thread itself waits for another process."""
    ledger = await open_ledger(real_time_database)
    with ledger.waiter() as waiter:
        async with Gate(real_time_database):
            assert not await waiter.wait(timedelta(milliseconds=20))


async def test_a_wait_of_no_time(real_time_database: Database) -> None:
    """A wait of zero tells whether there was a wake-up."""
    ledger = await open_ledger(real_time_database)
    with ledger.waiter() as waiter:
        assert not await waiter.wait(timedelta(0))
        real_time_database.wake(ledger.name)
        assert await waiter.wait(timedelta(0))


async def test_closing_twice_and_opening_again(tmp_path: Path) -> None:
    """A database can be closed at any time; what comes later opens it again."""
    database = open_database(f"sqlite:///{tmp_path / 'again.db'}")
    await database.close()
    await migrate(database)
    await database.close()
    await database.close()
    ledger = await open_ledger(database)
    assert await ledger.next_due() is None
    await database.close()


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path):
    """Nobody else on the machine reads payloads or the hashes of keys, in the file or in those of its WAL; one that is there stays as it is."""
    for name, mode, form in (
        ("new.db", 0o600, "{}"),
        ("shared.db", 0o640, "{}"),
        ("uri.db", 0o600, "file:{}?uri=true"),
    ):
        file = tmp_path / name
        if mode != 0o600:
            file.touch()
            file.chmod(mode)
        database = open_database(f"sqlite:///{form.format(file)}", durable=False)
        assert database.file == file
        await database.open()
        try:
            modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.glob(f"{name}*")}
        finally:
            await database.close()
        assert len(modes) > 1
        assert set(modes.values()) == {mode}, modes
