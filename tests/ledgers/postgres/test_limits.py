"""Roles and databases with limits that nobody could work under: redrive's own sessions do not mind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.util import await_only

from redrive.core.durations import seconds
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.limits import LIMITS
from redrive.ledgers.sql.database import Database
from tests.servers import PostgresServer, own_pooler

LIMIT_MILLISECONDS = 1000
"""Longer than a busy machine takes from the begin of a transaction to its first statement, which lifts the limits."""
LONGER_SECONDS = 1.5 * LIMIT_MILLISECONDS / 1000
SLEEP = text(f"SELECT pg_sleep({LONGER_SECONDS})")
ROLE = "hurried"


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The server behind PgBouncer."""
    folder = make_url(postgres.url).query.get("host")
    assert isinstance(folder, str)
    with own_pooler(folder, sessions=10) as pooler:
        yield PostgresServer(postgres.url, pooler)


@pytest.fixture(params=["role", "database", "pooler"])
async def limited(request: pytest.FixtureRequest, pooler: PostgresServer, empty_url: str) -> AsyncIterator[Database]:
    """A database whose sessions have every limit that there is, by their role or by the database."""
    name, url = make_url(empty_url).database, empty_url
    with psycopg.connect(empty_url, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateObject):  # it ends with the server
            connection.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN".encode())
        whose = f"ROLE {ROLE}" if request.param == "role" else f'DATABASE "{name}"'
        for limit in LIMITS:
            connection.execute(f"ALTER {whose} SET {limit} = {LIMIT_MILLISECONDS}".encode())
    if request.param == "role":
        url = f"{empty_url}&user={ROLE}".replace("postgres:@", "")
    database = open_database(pooler.through(url) if request.param == "pooler" else url)
    await database.open()
    yield database
    await database.close()


def sleep(connection: Connection) -> bool:
    """A statement that takes longer than it may."""
    connection.execute(SLEEP)
    return True


def pause(connection: Connection) -> bool:
    """A transaction that does nothing for longer than it may."""
    connection.execute(text("SELECT 1"))
    await_only(asyncio.sleep(LONGER_SECONDS))
    connection.execute(text("SELECT 1"))
    return True


async def test_limits_do_not_hold_for_our_own_sessions(limited: Database):
    """Whatever a session of ours is used for, it may take its time, between statements too, and may be idle."""
    runs = (limited.statement, limited.write, limited.read, limited.scan, limited.rebuild)
    slow = await asyncio.gather(
        *(run(sleep) for run in runs),
        limited.stand_in_line(seconds(60), sleep),
        limited.look(seconds(60), sleep),
        *(run(pause) for run in (limited.write, limited.rebuild)),
    )
    assert all(slow)
    await asyncio.sleep(LONGER_SECONDS)  # only time itself can show that it is not cut
    assert await limited.read(lambda connection: connection.execute(text("SELECT true")).scalar_one())


async def test_who_stands_in_line_waits_as_long_as_was_said(limited: Database):
    """A limit on locks is for those who do not expect one."""
    await limited.write(lambda connection: connection.execute(text("CREATE TABLE line (n int)")).rowcount)
    holds, out = asyncio.Event(), asyncio.Event()

    def hold(connection: Connection) -> None:
        connection.execute(text("LOCK TABLE line"))
        holds.set()
        await_only(out.wait())

    def stand(connection: Connection) -> bool:
        connection.execute(text("LOCK TABLE line"))
        return True

    holding = asyncio.create_task(limited.write(hold))
    await holds.wait()
    standing = asyncio.create_task(limited.stand_in_line(seconds(60), stand))
    await asyncio.sleep(LONGER_SECONDS)
    assert not standing.done()
    out.set()
    await holding
    assert await standing


async def test_a_handlers_transaction_keeps_them(limited: Database):
    """It is the user's code, and an administrator's limit is for it."""
    with pytest.raises(Exception, match=r"timeout|closed|terminat"):
        async with limited.transaction() as transaction:
            await transaction.connection.run_sync(sleep)
