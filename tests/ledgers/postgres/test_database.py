"""What only PostgreSQL has: a server that can go away, deadlocks, LISTEN and NOTIFY."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from redrive.core.durations import ZERO, seconds
from redrive.core.task import NewTask
from redrive.errors import LedgerAwayError
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.postgres import database as postgres
from redrive.ledgers.postgres import wake_up
from redrive.ledgers.postgres.dialect import MIGRATION_LOCK
from redrive.ledgers.sql import migrate as migrations
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ports import Waiter
from tests.ledgers.homes import execute

LONG = seconds(60)


@pytest.fixture
def store() -> str:
    return "postgres"


async def listening(waiter: Waiter) -> None:
    """Wait until the listener has its connection: it then wakes everybody, for what was announced before."""
    assert await waiter.wait(LONG)
    waiter.clear()


async def test_the_engine_plans_without_sequential_scans(real_time_database: Database) -> None:
    """The engine's own pool has its settings; user code has a pool without them."""
    asked = text("SELECT current_setting('enable_seqscan'), current_setting('TimeZone')")
    for run in (real_time_database.statement, real_time_database.write, real_time_database.read):
        assert tuple(await run(lambda connection: connection.execute(asked).one())) == ("off", "UTC")
    async with real_time_database.transaction() as transaction:
        assert tuple((await transaction.connection.execute(asked)).one()) == ("on", "UTC")


async def test_a_deadlock_is_run_again(real_time_database: Database) -> None:
    """Of two writes that wait for each other PostgreSQL ends one; it is run again, and both succeed."""
    await execute(real_time_database, ["CREATE TABLE numbers (n int)", "INSERT INTO numbers VALUES (1), (2)"])
    barrier, runs = asyncio.Barrier(2), 0
    touch = text("UPDATE numbers SET n = n WHERE n = :n")
    meet = [True]

    def cross(connection: Connection, first: int, second: int) -> None:
        nonlocal runs
        runs += 1
        connection.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
        connection.execute(touch, {"n": first})
        if meet[0]:
            await_only(barrier.wait())
            meet[0] = False
        connection.execute(touch, {"n": second})

    await asyncio.gather(real_time_database.write(cross, 1, 2), real_time_database.write(cross, 2, 1))
    assert runs == 3


async def test_other_errors_are_not_run_again(real_time_database: Database) -> None:
    """A constraint that is violated stays violated: the error comes at once, and nothing is stored."""
    await execute(real_time_database, ["CREATE TABLE numbers (n int CHECK (n > 0))"])
    runs = 0

    def fail(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        connection.execute(text("INSERT INTO numbers VALUES (1), (-1)"))

    with pytest.raises(DBAPIError, match="numbers_n_check"):
        await real_time_database.write(fail)
    assert runs == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody@127.0.0.1:1/work",
        "postgresql://nobody@/work?host=/no/such/socket",
        "postgresql://nobody@no-such-host.invalid/work",
    ],
)
async def test_a_server_that_is_not_there(url: str) -> None:
    """Whatever the driver says of it, the ledger is away."""
    database = open_database(url)
    ledger = await open_ledger(database)
    try:
        for ask in (database.open, ledger.counts, lambda: ledger.add([NewTask(kind="mail", key="a")])):
            with pytest.raises(LedgerAwayError, match="cannot be reached"):
                await ask()
        with pytest.raises(LedgerAwayError):
            async with ledger.transaction():
                pass
    finally:
        await database.close()


async def test_a_database_that_is_not_there(postgres: Any) -> None:
    """A database that does not exist yet may exist later."""
    database = open_database(postgres.url_of("no_such_database"))
    try:
        with pytest.raises(LedgerAwayError, match="no_such_database"):
            await database.open()
    finally:
        await database.close()


async def test_a_connection_that_is_cut(real_time_database: Database, url: str) -> None:
    """A session that the server ends is an outage; the next use has a new one."""
    ledger = await open_ledger(real_time_database)
    own = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'redrive' AND datname = current_database() AND pid <> pg_backend_pid()"
    )

    def cut(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(LedgerAwayError):
        await real_time_database.write(cut)
    other = await asyncpg.connect(url)
    await other.execute(own)
    await other.close()
    for _ in range(10):
        try:
            await ledger.add([NewTask(kind="mail", key="a")])
            break
        except LedgerAwayError:
            continue
    assert await ledger.get_by_key("a") is not None


async def test_a_wrong_parameter_is_no_outage(real_time_database: Database) -> None:
    """What the caller got wrong is not taken for a server that is away, which would be waited for."""
    with pytest.raises(DBAPIError, match="invalid input"):
        await real_time_database.read(
            lambda c: c.execute(text("SELECT CAST(:n AS integer)"), {"n": "not a number"}).all()
        )


async def test_a_changed_table_does_not_break_prepared_statements(real_time_database: Database) -> None:
    """After a migration beside a running worker its cached statements are prepared anew."""
    ledger = await open_ledger(real_time_database)
    await ledger.add([NewTask(kind="mail", key="a")])
    await ledger.get_by_key("a")
    await execute(real_time_database, ["ALTER TABLE redrive_task ALTER COLUMN trace TYPE varchar(999)"])
    assert await ledger.get_by_key("a") is not None
    assert len(await ledger.claim(1, LONG)) == 1


SLEEP = text("SELECT pg_sleep(0.5), current_setting('application_name')")


@pytest.fixture
async def hasty_database(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A database whose statements are given up soon."""
    monkeypatch.setattr(postgres, "COMMAND_TIMEOUT_SECONDS", 0.2)
    opened = open_database(empty_url)
    yield opened
    await opened.close()


async def test_a_statement_without_an_answer_is_given_up(hasty_database: Database) -> None:
    """It may be that the server is gone: the ledger is away, and the error says that it was waited for."""
    with pytest.raises(LedgerAwayError, match="no answer in time"):
        await hasty_database.write(lambda connection: connection.execute(SLEEP).all())


async def test_a_rebuild_takes_as_long_as_it_must(hasty_database: Database, empty_url: str) -> None:
    """Neither our own limit nor that of the role holds for it; what it wrote is there."""
    await execute(hasty_database, [f'ALTER DATABASE "{make_url(empty_url).database}" SET statement_timeout = 100'])

    def build(connection: Connection) -> str:
        connection.execute(text("CREATE TABLE built (n int)"))
        return str(connection.execute(SLEEP).one().current_setting)

    assert await hasty_database.rebuild(build) == "redrive migrate"
    assert await hasty_database.read(lambda connection: connection.execute(text("SELECT * FROM built")).all()) == []


async def test_a_rebuild_that_fails_leaves_nothing(hasty_database: Database) -> None:
    """It is one transaction."""

    def fail(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE built (n int)"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await hasty_database.rebuild(fail)
    there = text("SELECT to_regclass('built')")
    assert await hasty_database.read(lambda connection: connection.execute(there).scalar_one()) is None


async def test_a_migration_waits_for_another(hasty_database: Database, empty_url: str) -> None:
    """However long the other one takes: here longer than any statement may."""
    other = await asyncpg.connect(empty_url)
    try:
        await other.execute(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
        migrating = asyncio.create_task(migrations.migrate(hasty_database))
        await asyncio.wait({migrating}, timeout=2 * postgres.COMMAND_TIMEOUT_SECONDS)
        assert not migrating.done()
    finally:
        await other.close()
    assert await migrating == ({}, migrations.heads())


# --- wake-ups ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def ledger(real_time_database: Database) -> SqlLedger:
    return await open_ledger(real_time_database)


async def test_a_wake_up_between_look_and_wait_is_kept(ledger: SqlLedger) -> None:
    """What is added while a worker looks ends its next wait at once."""
    with ledger.waiter() as waiter:
        await listening(waiter)
        assert await ledger.claim(1, LONG) == []
        await ledger.add([NewTask(kind="mail", key="a")])
        assert await waiter.wait(ZERO)


async def test_another_process_wakes(ledger: SqlLedger, url: str) -> None:
    """A task that another process adds ends the wait; one that is due later does not."""
    other_database = open_database(url)
    other = await open_ledger(other_database)
    try:
        with ledger.waiter() as waiter:
            await listening(waiter)
            await other.add([NewTask(kind="mail", key="later", delay=seconds(60))])
            await other.add([NewTask(kind="mail", key="now")])
            assert await waiter.wait(LONG)
    finally:
        await other_database.close()


async def test_only_work_due_now_is_announced(ledger: SqlLedger, url: str) -> None:
    """NOTIFY is for what is due now and new: nothing is said of what is due later or was there already."""
    heard = await Ear.on(url)
    await ledger.add([NewTask(kind="mail", key="later", delay=seconds(60))])
    await ledger.add([NewTask(kind="mail", key="later")])
    assert await heard.until_silent() == []
    await ledger.add([NewTask(kind="mail", key="now")])
    assert await heard.until_silent() == [ledger.name]
    await heard.close()


async def test_announcements_have_a_rate(ledger: SqlLedger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many adds in a row are announced once; what commits in a caller's transaction is always announced."""
    monkeypatch.setattr(wake_up, "ANNOUNCE_EVERY_SECONDS", 3600)
    heard = await Ear.on(url)
    for number in range(20):
        await ledger.add([NewTask(kind="mail", key=f"{number}")])
    assert await heard.until_silent() == [ledger.name]
    async with ledger.transaction() as transaction:
        await ledger.add([NewTask(kind="mail", key="mine")], within=transaction.connection)
    assert await heard.until_silent() == [ledger.name]
    await heard.close()


async def test_a_rolled_back_add_is_not_announced(ledger: SqlLedger, url: str) -> None:
    """What is announced is there."""
    heard = await Ear.on(url)
    with pytest.raises(ZeroDivisionError):
        async with ledger.transaction() as transaction:
            await ledger.add([NewTask(kind="mail", key="mine")], within=transaction.connection)
            raise ZeroDivisionError
    assert await heard.until_silent() == []
    await heard.close()


async def test_the_listener_comes_back(ledger: SqlLedger, url: str) -> None:
    """When its connection is cut the listener makes a new one and wakes everybody, for what was said meanwhile."""
    with ledger.waiter() as waiter:
        await listening(waiter)
        other = await asyncpg.connect(url)
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'redrive listen' AND datname = current_database()"
        )
        await other.close()
        assert await waiter.wait(LONG)


async def test_a_wait_has_an_end(ledger: SqlLedger) -> None:
    """Without a wake-up a wait ends in time and says so."""
    with ledger.waiter() as waiter:
        await listening(waiter)
        assert not await waiter.wait(timedelta(milliseconds=5))


class Ear:
    """Hears announcements. A mark of its own, sent behind them, tells when all were heard."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    @classmethod
    async def on(cls, url: str) -> "Ear":
        ear = cls(await asyncpg.connect(url))
        await ear._connection.add_listener(wake_up.CHANNEL, lambda *heard: ear._heard.put_nowait(heard[3]))
        return ear

    async def until_silent(self) -> list[str]:
        await self._connection.execute(f"NOTIFY {wake_up.CHANNEL}, 'mark'")
        heard: list[str] = []
        while (one := await self._heard.get()) != "mark":
            heard.append(one)
        return heard

    async def close(self) -> None:
        await self._connection.close()
