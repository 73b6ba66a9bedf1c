"""Tables in a schema of the user's choice: several applications in one database that do not see or wake each other."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from redrive import Redrive
from redrive.cli import app as cli
from redrive.errors import NotMigratedError, SettingsError
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.address import SCHEMA, read_address
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import check, heads, migrate, versions
from redrive.ports import Waiter


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture
async def two(empty_url: str) -> AsyncIterator[list[Database]]:
    """One database, looked at through two schemas that have redrive's tables."""
    databases = [open_database(in_schema(empty_url, name)) for name in ("shop", '"Back Office",public')]
    for database in databases:
        assert await migrate(database) == ({}, heads())
    yield databases
    for database in databases:
        await database.close()


def in_schema(url: str, path: str) -> str:
    return f"{url}&search_path={path}" if "?" in url else f"{url}?search_path={path}"


async def test_two_applications_in_one_database(two: list[Database], empty_url: str) -> None:
    """The same keys in both, and each runs its own once; nothing is made in any other schema."""
    ran: dict[str, list[str]] = {"shop": [], "office": []}
    apps = {"shop": Redrive(in_schema(empty_url, "shop")), "office": Redrive(in_schema(empty_url, '"Back Office"'))}
    for name, app in apps.items():

        @app.handler("work")
        async def work(task, name=name):
            ran[name].append(task.key)

    async with apps["shop"], apps["office"]:
        await asyncio.gather(*(app.add("work", {}, key=f"{n}") for app in apps.values() for n in range(3)))
        await apps["office"].work_off(apps["office"].tasks)
        assert ran["shop"] == []
        await apps["shop"].work_off(apps["shop"].tasks)
    assert sorted(ran["shop"]) == sorted(ran["office"]) == ["0", "1", "2"]
    asked = text("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'redrive%' ORDER BY 1")
    found = await two[0].read(lambda connection: connection.execute(asked).scalars().all())
    assert found == ["Back Office", "shop"]


async def test_each_schema_has_a_channel_of_its_own(two: list[Database], empty_url: str) -> None:
    """Announcements are heard in their own schema alone; in public the channel is the one that older code knows."""
    heard = []
    async with await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as listener:
        for channel in ("redrive", "redrive_shop", '"redrive_Back Office"'):
            await listener.execute(f"LISTEN {channel}")
        at_home = open_database(empty_url)
        for name, database in zip(("shop", "office", "home"), (*two, at_home), strict=True):
            await database.write(lambda connection, d=database, n=name: d.announce(connection, n, soon=False))
        async for notice in listener.notifies(stop_after=3, timeout=150):
            heard.append((notice.channel, notice.payload))
        await at_home.close()
    assert heard == [("redrive_shop", "shop"), ("redrive_Back Office", "office"), ("redrive", "home")]


async def test_a_worker_is_woken_in_its_schema(two: list[Database], empty_url: str) -> None:
    """Whoever listens does so on the channel of its schema: another process's announcement wakes it."""
    another = open_database(in_schema(empty_url, "shop"))
    with two[0].waiter("redrive_task") as waiter:
        woken = asyncio.create_task(_woken(waiter))
        while not woken.done():
            await another.write(lambda connection: another.announce(connection, "redrive_task", soon=False))
            await asyncio.wait([woken], timeout=0.2)
    await another.close()


async def _woken(waiter: Waiter) -> None:
    waiter.clear()
    while not await waiter.wait(timedelta(seconds=60)):
        pass
    waiter.clear()
    assert await waiter.wait(timedelta(seconds=60))  # the first may be that it began to listen


async def test_tables_in_another_schema_are_named(url: str) -> None:
    """Whoever looks in the wrong schema is told where the tables are; a path that leads to them by the way does not count."""
    for path in ("shop", "shop,public"):
        database = open_database(in_schema(url, path))
        assert await versions(database) == {}
        with pytest.raises(
            NotMigratedError, match=r"schema public has some, and this looks in .*REDRIVE_SCHEMA=public"
        ):
            await check(database)
        await database.close()
    database = open_database(in_schema(url, "shop,public"))
    await migrate(database)
    await check(database)
    await database.close()


async def test_the_environment_names_the_schema(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """REDRIVE_SCHEMA holds for connections, migrations and grants; a search_path in the URL is nearer."""
    monkeypatch.setenv(SCHEMA, "Shop 1")
    database = open_database(empty_url)
    await migrate(database)
    await check(database)
    asked = text("SELECT current_schema()")
    assert await database.read(lambda connection: connection.execute(asked).scalar()) == "Shop 1"
    await database.close()
    monkeypatch.setenv(SCHEMA, "shop")
    assert read_address("postgresql://db/x").schema == "shop"
    assert read_address("postgresql://db/x?search_path=Other,public").schema == "other"
    assert read_address('postgresql://db/x?search_path="$user",public').schema is None
    with pytest.raises(SettingsError, match="search_path"):
        read_address("postgresql://db/x?search_path=,")
    assert "ON SCHEMA shop TO" in CliRunner().invoke(cli, ["grant"]).output
