"""Several hosts, of which some are silent, refuse, or are not what is looked for."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import asyncpg
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from redrive.core.durations import seconds
from redrive.errors import LedgerAwayError
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres import connect as connecting
from redrive.ledgers.postgres.address import read_address
from redrive.ledgers.postgres.connect import connect
from tests.ledgers.homes import execute
from tests.servers import PostgresServer

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE_SECONDS = 60
LONG = seconds(PATIENCE_SECONDS)


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture(autouse=True)
def _nobody_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_right", {})


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A port of this machine that is served so."""
    handling: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.add(task)
        with suppress(asyncio.CancelledError, OSError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in handling:
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a machine that is frozen: it takes the connection, and never says a word."""
    await asyncio.Event().wait()


def passing_on(server: PostgresServer, silence: asyncio.Event | None = None) -> Serve:
    """A way to the server; once `silence` is set, nothing more passes in either direction."""
    there = f"{make_url(server.url).query['host']}/.s.PGSQL.5432"

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if silence is not None and silence.is_set():
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if silence is not None and silence.is_set():
            await asyncio.Event().wait()
        theirs, ours = await asyncio.open_unix_connection(there)
        pumps = [asyncio.create_task(pump(reader, ours)), asyncio.create_task(pump(theirs, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            ours.close()

    return serve


def url_of(*ports: int, database: str = "postgres", query: str = "") -> str:
    return f"postgresql://postgres@{','.join(f'127.0.0.1:{port}' for port in ports)}/{database}?pooler=none{query}"


def postgres_asks(url: str, statement: str) -> list[tuple[()]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


async def test_a_silent_host_keeps_nobody_from_the_others(postgres: PostgresServer):
    """A host that takes connections and says nothing costs half a second, not the whole time-out, and only once."""
    async with listening(say_nothing) as silent, listening(passing_on(postgres)) as well:
        address = read_address(url_of(silent, well))
        async with asyncio.timeout(address.timeout):
            connection = await connect(address, **address.arguments(pooled=False))
        assert await connection.fetchval("SELECT 1") == 1
        connection.terminate()
        assert connecting._right == {address.place: 1}
        again = await connect(address, **address.arguments(pooled=False))
        again.terminate()


async def test_a_host_that_becomes_the_primary_is_found_while_another_is_silent(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    """A host that refused is asked again as long as another has not answered: it may have been promoted."""
    asked, real = [], asyncpg.connect

    async def refuse_twice(**arguments: object) -> object:
        if str(silent) in str(arguments["dsn"]):
            return await real(**arguments)
        asked.append(1)
        if len(asked) < 3:
            raise asyncpg.exceptions.TargetServerAttributeNotMatched("none of the hosts is the primary")
        return await real(**arguments)

    monkeypatch.setattr(asyncpg, "connect", refuse_twice)
    monkeypatch.setattr(connecting, "ASK_AGAIN_SECONDS", 0.01)
    async with listening(say_nothing) as silent, listening(passing_on(postgres)) as well:
        address = read_address(url_of(silent, well))
        async with asyncio.timeout(PATIENCE_SECONDS):
            connection = await connect(address, **address.arguments(pooled=False))
        connection.terminate()
    assert len(asked) == 3


async def test_a_machine_that_confirms_nothing_is_given_up(postgres: PostgresServer):
    """The system itself ends a connection whose other end has gone, in seconds instead of many minutes."""
    async with listening(passing_on(postgres)) as well:
        for ports in ((well,), (well, well)):
            address = read_address(url_of(*ports))
            connection = await connect(address, **address.arguments(pooled=False))
            opened = connection._transport.get_extra_info("socket")
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
            connection.terminate()


async def test_no_host_is_what_is_looked_for(postgres: PostgresServer, url: str):
    """Standbys alone, or nobody at all, is an outage: the primary may be there soon. Also for a transaction of a handler."""
    async with listening(passing_on(postgres)) as well:
        for ports, attributes in (((1, 2), "primary"), ((well, well), "standby")):
            database = open_database(url_of(*ports, query=f"&target_session_attrs={attributes}"))
            with pytest.raises(LedgerAwayError):
                await database.open()
            with pytest.raises(LedgerAwayError):
                async with database.transaction():
                    pass
            await database.close()


async def test_what_somebody_must_mend_is_told_before_hosts_that_are_away(postgres: PostgresServer):
    """A database that does not exist is named, though another host does not answer at all."""
    async with listening(passing_on(postgres)) as well:
        for ports in ((1, well), (well, 1)):
            address = read_address(url_of(*ports, database="no_such_database"))
            with pytest.raises(asyncpg.InvalidCatalogNameError):
                await connect(address, **address.arguments(pooled=False))


async def test_who_waits_for_a_server_that_fell_silent_is_told_when_another_has_its_place(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
):
    """A statement that waits for a frozen machine fails as an outage once the listener has found the next primary."""
    monkeypatch.setattr("redrive.ledgers.postgres.wake_up.ASK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("redrive.ledgers.postgres.wake_up.ANSWER_SECONDS", 1)
    # The same server stands for both: what differs between two is the time at which they were started.
    monkeypatch.setattr("redrive.ledgers.postgres.wake_up._WHICH_SERVER", "SELECT random()")
    silence, name = asyncio.Event(), make_url(url).database or ""
    async with listening(passing_on(postgres, silence)) as first, listening(passing_on(postgres)) as second:
        database = open_database(url_of(first, second, database=name))
        await execute(database, ["CREATE TABLE kept (n int)"])
        with database.waiter("shop") as waiter:
            assert await waiter.wait(LONG)
            waiter.clear()
            silence.set()
            stuck = asyncio.create_task(database.read(lambda c: c.execute(text("SELECT pg_sleep(0)")).all()))
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(LedgerAwayError):
                    await stuck
                assert await database.read(lambda c: c.execute(text("SELECT * FROM kept")).all()) == []
        await database.close()


async def test_a_server_that_was_only_slow_loses_nobody(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
):
    """If the same server answers the next time, whatever waits for it goes on waiting."""
    monkeypatch.setattr("redrive.ledgers.postgres.wake_up.ASK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("redrive.ledgers.postgres.wake_up.ANSWER_SECONDS", 1)
    database = open_database(url)
    left = []
    monkeypatch.setattr(database._here.wake_up, "_leave", lambda: lambda: left.append(1))
    with database.waiter("shop") as waiter:
        assert await waiter.wait(LONG)
        waiter.clear()
        monkeypatch.setattr("redrive.ledgers.postgres.wake_up._WHICH_SERVER", "SELECT pg_sleep(60)")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not postgres_asks(url, "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%'"):
                await asyncio.sleep(0.02)
        monkeypatch.setattr("redrive.ledgers.postgres.wake_up._WHICH_SERVER", "SELECT pg_postmaster_start_time()")
        assert await waiter.wait(LONG)  # it listens again
    await database.close()
    assert left == []
