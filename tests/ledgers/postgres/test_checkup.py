"""Each way in which a server can be set up badly is found, with what to do; a good one has nothing to be said of it."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url

from redrive.ledgers.open import open_database
from redrive.ledgers.postgres import checkup
from redrive.ledgers.postgres.checkup import Advice
from redrive.ledgers.sql.migrate import migrate

OPENS = 33


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """A session on a migrated database, in which settings can be tried."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def look(connection: Connection, *, prunes: bool = True, opens: int = OPENS) -> list[Advice]:
    return checkup.look_at_server(connection, opens, ["redrive_task"], prunes=prunes)


def test_nothing_is_said_of_a_good_server(connection: Connection):
    """A server as it comes needs nothing."""
    assert look(connection) == []
    assert checkup.look_at_limits(connection, pooled=False) == []


def test_too_few_connections_are_found(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    """One process may open more than are admitted; or most are in use."""
    [found] = look(connection, opens=1_000_000)
    assert (found.about, "one process opens up to 1000000" in found.said) == ("connections", True)
    assert "pooler" in found.remedy
    monkeypatch.setattr(checkup, "CONNECTIONS_FULL", 0)
    [found] = look(connection)
    assert "connections are in use" in found.said


def test_limits_of_a_role_are_found(connection: Connection):
    """They are named with their values, and with the statement that lifts each."""
    for limit in ("statement_timeout", "transaction_timeout"):
        connection.execute(text(f"SET {limit} = '7s'"))
    [found] = checkup.look_at_limits(connection, pooled=True)
    assert found.about == "limits"
    assert "statement_timeout = 7s, transaction_timeout = 7s" in found.said
    assert "two round trips" in found.said
    assert "ALTER ROLE … SET statement_timeout = 0" in found.remedy


def test_dead_rows_are_found(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    """A table in which every fifth row is dead is named, with when it was last cleaned up, until it is."""
    monkeypatch.setattr(checkup, "DEAD_ROWS_MIN", 10)
    connection.execute(text("INSERT INTO redrive_turn SELECT n::text, now() FROM generate_series(1, 100) n"))
    connection.execute(text("UPDATE redrive_turn SET until = now()"))
    connection.execute(text("SELECT pg_stat_force_next_flush()"))
    [found] = look(connection)
    assert found.about == "bloat"
    assert "50 % of redrive_turn are dead rows, 100 of them, and it was never vacuumed" in found.said
    assert "VACUUM (ANALYZE) redrive_turn" in found.remedy
    connection.execute(text("VACUUM redrive_turn"))
    assert look(connection) == []


def test_growth_is_found(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    """A history in one piece that has grown large is named, and that nothing is ever pruned."""
    monkeypatch.setattr(checkup, "HISTORY_BYTES_MAX", 1)
    [found] = look(connection)
    assert (found.about, "RETENTION_DAYS" in found.remedy) == ("history", False)
    assert "redrive migrate --partition daily" in found.remedy
    [found] = look(connection, prunes=False)
    assert "nothing is ever pruned" in found.said
    assert "set RETENTION_DAYS" in found.remedy


def test_commits_that_wait_for_nobody_are_found(connection: Connection):
    """Names of standbys without a standby hold every commit up; a session that waits for none does not mind."""
    set_up = {"synchronous_standby_names": "*", "synchronous_commit": "on"}
    [found] = checkup._replication(connection, set_up)
    assert (found.about, "no standby follows: every commit waits" in found.said) == ("replication", True)
    assert list(checkup._replication(connection, set_up | {"synchronous_commit": "local"})) == []


@pytest.fixture(scope="module")
def pair() -> Iterator[Any]:
    """A primary and its standby."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bench.cluster import pair
    with pair() as both:
        yield both


async def test_replication_that_loses_what_was_acknowledged_is_found(pair: Any):
    """A standby that nobody waits for, by the server's settings or by the session's, is named until it is waited for."""
    database = open_database(pair.url)
    await migrate(database)

    async def found(*statements: str) -> list[str]:
        def ask(connection: Connection) -> list[Advice]:
            for statement in statements:
                connection.execute(text(statement))
            return look(connection)

        return [f"{one.said} {one.remedy}" for one in await database.read(ask) if one.about == "replication"]

    assert await found() == []
    [local] = await found("SET synchronous_commit = local")
    assert "synchronous_commit = local waits for no standby" in local
    await database.read(
        lambda connection: connection.execute(text("ALTER SYSTEM SET synchronous_standby_names = ''")).rowcount
    )
    await database.read(lambda connection: connection.execute(text("SELECT pg_reload_conf()")).scalar_one())
    while not (said := await found("SET synchronous_commit = on")):
        pass
    assert "1 standby follows, none of them synchronously" in said[0]
    await database.close()
