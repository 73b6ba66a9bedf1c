"""Through PgBouncer in transaction mode: found out by itself, no answer of another's, nothing kept in a session."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from redrive.errors import LedgerAwayError, SettingsError
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.address import LISTEN_URL
from redrive.ledgers.postgres.database import PostgresDatabase
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import migrate
from tests.servers import PostgresServer, own_pooler

HEARD = timedelta(seconds=60)

SESSION = """
import asyncio, json, logging, sys
from redrive import Redrive

async def main(url, name, amount):
    app, ran = Redrive(url), []
    logging.basicConfig(level=logging.WARNING)

    @app.handler("work")
    async def work(task):
        ran.append(task.key)

    async with app:
        for first in range(0, amount, 20):  # many statements, and many of them at once
            await asyncio.gather(*(app.add("work", {}, key=f"{name}-{n}") for n in range(first, first + 20)))
            await app.work_off(app.tasks)
    print(json.dumps(ran))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The server behind a pooler with two sessions: with one for each client nothing would be shared."""
    folder = make_url(postgres.url).query.get("host")
    assert isinstance(folder, str)
    with own_pooler(folder, sessions=2) as pooler:
        yield PostgresServer(postgres.url, pooler)


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture
async def pooled(url: str, pooler: PostgresServer) -> AsyncIterator[PostgresDatabase]:
    """A migrated database through the pooler, of which nobody says that it is there."""
    database = open_database(pooler.through(url))
    assert isinstance(database, PostgresDatabase)
    yield database
    await database.close()


async def test_a_pooler_is_found_out(pooled: PostgresDatabase, real_time_database: Database):
    """Nobody has to say that there is one: it answers with another server than the one that it introduced."""
    assert await pooled.is_pooled()
    assert "through a pooler" in await pooled.describe()
    assert isinstance(real_time_database, PostgresDatabase)
    assert not await real_time_database.is_pooled()
    assert "pooler" not in await real_time_database.describe()


async def test_it_can_be_said(url: str, pooler: PostgresServer):
    """What the URL says is not looked at again."""
    for said, expected in (("transaction", True), ("none", False)):
        database = open_database(f"{pooler.through(url)}?pooler={said}")
        assert isinstance(database, PostgresDatabase)
        assert await database.is_pooled() is expected
        await database.close()


async def test_each_gets_its_own_answer(url: str, pooler: PostgresServer):
    """Two processes over two sessions: every task runs once, and nobody complains of a statement that it has not made."""
    amount = 200
    sessions = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", SESSION, pooler.through(url), name, str(amount),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    ran: list[str] = []
    for session in sessions:
        out, complaints = await session.communicate()
        assert (session.returncode, complaints.decode()) == (0, "")
        ran += json.loads(out)
    assert sorted(ran) == sorted(f"{name}-{n}" for name in ("a", "b") for n in range(amount))


async def test_tables_are_migrated_through_it(postgres: PostgresServer, pooler: PostgresServer):
    """A migration needs no session of its own either."""
    empty = await postgres.create()
    database = open_database(pooler.through(empty))
    before, after = await migrate(database, ["flags"])
    assert not before
    assert "flags" in after
    await database.close()


async def test_what_a_pooler_refuses_is_said(url: str, pooler: PostgresServer):
    """A setting in the URL that it does not pass on is a mistake in the settings, not a server that may come back."""
    database = open_database(pooler.through(url) + "?work_mem=4MB")
    with pytest.raises(SettingsError, match="the database URL cannot be used: unsupported startup parameter"):
        await database.open()
    await database.close()


async def test_wake_ups_take_a_way_of_their_own(
    url: str, pooled: PostgresDatabase, pooler: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    """With a direct URL beside the pooler workers are woken; without one nobody keeps a session busy by listening."""
    with pooled.waiter("shop") as waiter:
        listener = pooled._here.wake_up._listener
        assert listener is not None
        await listener  # it ends by itself: there is nothing to hear
    monkeypatch.setenv(LISTEN_URL, url)
    with pooled.waiter("shop") as waiter:
        assert await waiter.wait(HEARD)  # for what came while nobody listened
        waiter.clear()
        other = open_database(pooler.through(url))
        await other.write(lambda connection: other.announce(connection, "shop", soon=True))
        assert await waiter.wait(HEARD)
        await other.close()


async def test_what_could_be_better_is_said(url: str, pooler: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """Whoever stands behind a pooler hears of the way around it, and of what the driver does not check."""
    database = open_database(pooler.through(url) + "?channel_binding=require")
    (binding, _), (woken, remedy) = await database.advice()
    assert "channel_binding=require" in binding
    assert "a pooler stands before the server" in woken
    assert LISTEN_URL in remedy
    monkeypatch.setenv(LISTEN_URL, url)
    assert len(await database.advice()) == 1
    await database.close()


async def test_a_server_that_only_reads_is_left(postgres: PostgresServer, url: str):
    """A primary that became a standby refuses to write: its connections are given up, so that the next ones find the new one."""
    name = make_url(url).database
    postgres.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    database = open_database(url)
    write = text("CREATE TABLE written (n int)")
    with pytest.raises(LedgerAwayError, match="read-only"):
        await database.write(lambda connection: connection.execute(write).rowcount)
    postgres.execute(
        f'ALTER DATABASE "{name}" RESET default_transaction_read_only'
    )  # connections that are open keep it
    await database.write(lambda connection: connection.execute(write).rowcount)
    await database.close()


async def test_a_schema_that_a_pooler_does_not_pass_on(url: str, pooler: PostgresServer):
    """It is said with its remedy, and with a role that has it the same URL opens."""
    postgres = open_database(url)
    await postgres.write(lambda connection: connection.execute(text("CREATE SCHEMA shop")))
    through = f"{pooler.through(url)}?search_path=shop"
    database = open_database(through)
    with pytest.raises(SettingsError, match="ALTER ROLE"):
        await database.open()
    await database.close()
    name = make_url(url).database
    await postgres.write(lambda connection: connection.execute(text(f'ALTER DATABASE "{name}" SET search_path = shop')))
    away = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name AND pid <> pg_backend_pid()"
    )
    await postgres.read(lambda connection: connection.execute(away, {"name": name}).all())
    await postgres.close()
    database = open_database(through)
    await database.open()
    await database.close()
