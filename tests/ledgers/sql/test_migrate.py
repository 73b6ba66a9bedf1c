"""Our own tables: what the migrations make is what the code believes, on both databases."""

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.schema import CreateIndex

from redrive.core.table import TASKS
from redrive.core.task import NewTask
from redrive.errors import NewerSchemaError, NotMigratedError
from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql import lock_turns, schema
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import _folder, check, heads, migrate, migration_sql, systems_with_tables, versions
from redrive.ledgers.sql.migrations.versions import (
    redrive_0003_gates,
    redrive_0006_audit,
    redrive_0012_probes,
    redrive_0013_signs,
    redrive_0014_one_index_less,
)
from redrive.ledgers.sql.predicates import ledger_indexes
from redrive.ledgers.sql.times import CREATE_INSTANT_FUNCTION
from redrive.ports import Actor
from tests.ledgers.homes import execute

PATIENCE_SECONDS = 150
POSTGRES_CATALOGUE = {
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity, identity_generation"
    " FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'redrive_version'",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'redrive_version'",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes"
    " WHERE schemaname = 'public' AND tablename <> 'redrive_version'",
}
SQLITE_CATALOGUE = {
    "columns": 'SELECT t.name, c.name, upper(c.type), c."notnull", c.dflt_value, c.pk FROM sqlite_schema t,'
    " pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name LIKE 'redrive%' AND t.name <> 'redrive_version'",
    "tables": "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name LIKE 'redrive%'"
    " AND name <> 'redrive_version'",
    "indexes": "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name LIKE 'redrive%'"
    " AND sql IS NOT NULL",
}


def create_from_metadata(connection: Connection) -> None:
    """The tables as `schema` says, with the indexes that claims need."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(CREATE_INSTANT_FUNCTION)
    schema.metadata.create_all(connection, checkfirst=False)
    for index in ledger_indexes(TASKS, schema.task.to_metadata(MetaData())):
        connection.execute(CreateIndex(index))


def catalogue(connection: Connection) -> dict[str, set[Any]]:
    """What the database says of its tables, in a form that can be compared."""
    asked = POSTGRES_CATALOGUE if connection.dialect.name == "postgresql" else SQLITE_CATALOGUE
    found = {name: {tuple(row) for row in connection.execute(text(sql))} for name, sql in asked.items()}
    if "tables" in found:  # SQLite keeps the text: its checks and keys, whatever their order and spacing
        found["tables"] = {(name, part) for name, sql in found["tables"] for part in _parts(sql)}
    return found


def _parts(sql: str) -> set[str]:
    lines = (" ".join(line.split()).rstrip(",") for line in sql.splitlines()[1:])
    return {line for line in lines if line.startswith("CONSTRAINT")}


async def test_migrations_and_metadata_agree(empty_url: str, store: str, tmp_path: Any, request: Any) -> None:
    """Columns, types, defaults, checks, keys and indexes of a migrated database are those of the metadata."""
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    if store == "postgres":
        other_url = await request.getfixturevalue("postgres").create()
    migrated, created = open_database(empty_url), open_database(other_url)
    try:
        await migrate(migrated)
        await created.write(create_from_metadata)
        ours, theirs = await migrated.read(catalogue), await created.read(catalogue)
        for name, rows in theirs.items():
            assert len(rows) > 5
            assert ours[name] == rows
    finally:
        await migrated.close()
        await created.close()


def test_the_names_of_files_tell_what_alembic_reads_in_them() -> None:
    """What is the newest version is known without Alembic: a revision is named like its file, and the last is the newest."""
    branches = {"engine": _folder("engine")} | {name: _folder(name) for name in systems_with_tables()}
    newest = {}
    for branch, folder in branches.items():
        config = Config()
        config.set_main_option("script_location", str(_folder("engine").parent))
        config.set_main_option("path_separator", "newline")
        config.set_main_option("version_locations", str(folder))
        scripts = ScriptDirectory.from_config(config)
        [newest[branch]] = scripts.get_heads()
        for script in scripts.walk_revisions():
            assert script.path.rpartition("/")[2].startswith(f"{script.revision}_")
            assert script.branch_labels == {branch}
    assert heads(systems_with_tables()) == newest


async def test_migrating_twice_is_nothing(empty_url: str) -> None:
    """The second time the version is there already, and so is what was stored."""
    database = open_database(empty_url)
    try:
        assert await versions(database) == {}
        assert await migrate(database) == ({}, heads())
        ledger = await open_ledger(database)
        await ledger.add([NewTask(kind="mail", key="a")])
        assert await migrate(database) == (heads(), heads())
        assert await ledger.get_by_key("a") is not None
        await check(database)
    finally:
        await database.close()


async def test_a_newer_database_is_refused(url: str) -> None:
    """An old redrive does not touch the tables of a newer one."""
    database = open_database(url)
    try:
        await execute(database, ["UPDATE redrive_version SET version_num = '9999'"])
        for refused in (check, migrate):
            with pytest.raises(NewerSchemaError, match="upgrade redrive"):
                await refused(database)
    finally:
        await database.close()


async def test_what_is_not_migrated_says_so(empty_url: str) -> None:
    """Without our tables both the check and any use of a ledger name the command that makes them."""
    database = open_database(empty_url)
    try:
        with pytest.raises(NotMigratedError, match="redrive migrate"):
            await check(database)
        ledger = await open_ledger(database)
        with pytest.raises(NotMigratedError, match="redrive migrate"):
            await ledger.add([NewTask(kind="mail", key="a")])
        with pytest.raises(NotMigratedError, match="redrive migrate"):
            await ledger.counts()
    finally:
        await database.close()


async def test_the_printed_sql_migrates(empty_url: str, store: str) -> None:
    """The SQL for people who migrate by hand, run on an empty database, makes what the code needs."""
    sql = migration_sql("sqlite" if store == "sqlite" else "postgresql")
    database = open_database(empty_url)
    try:
        statements = [part.strip() for part in sql.split(";\n") if part.strip() not in ("", "BEGIN", "COMMIT")]
        await execute(database, statements)
        await check(database)
        ledger = await open_ledger(database)
        assert [added.new for added in await ledger.add([NewTask(kind="mail", key="a")])] == [True]
    finally:
        await database.close()


async def test_eight_migrations_at_once(empty_url: str) -> None:
    """Many processes may start at once: one migrates, the others find it done."""
    databases = [open_database(empty_url) for _ in range(8)]
    try:
        versions = await asyncio.gather(*(migrate(database) for database in databases))
        assert sorted(versions, key=str) == [*[(heads(), heads())] * 7, ({}, heads())]
    finally:
        for database in databases:
            await database.close()


async def test_two_databases_migrate_at_once(empty_url: str, tmp_path: Any) -> None:
    """Migrations of different databases in one process do not get into each other's way."""
    databases = [
        open_database(empty_url),
        *(open_database(f"sqlite:///{tmp_path / name}") for name in ("b.db", "c.db")),
    ]
    try:
        await asyncio.gather(*(migrate(database) for database in databases))
        for database in databases:
            await check(database)
    finally:
        for database in databases:
            await database.close()


@pytest.mark.parametrize(
    ("migrations", "word"),
    [
        ([redrive_0003_gates, redrive_0012_probes], "gate"),
        ([redrive_0006_audit], "audit"),
        ([redrive_0013_signs, redrive_0014_one_index_less], "tries_a_minute"),
    ],
)
async def test_it_can_be_taken_back(empty_url: str, migrations: Sequence[Any], word: str) -> None:
    """Down to the version before gates, or before the audit, and up again: the tables are the same, and what was stored is still there."""
    database = open_database(empty_url, durable=False)
    try:
        await migrate(database)
        ledger = await open_ledger(database)
        [added] = await ledger.add([NewTask(kind="mail", key="a")])
        await ledger.cancel([added.id], Actor(name="ada", reason="twice"))
        await ledger.add([NewTask(kind="mail", key="b")])
        newest = await database.read(catalogue)

        def down(connection: Connection) -> None:
            context = MigrationContext.configure(connection, opts={"version_table": "redrive_version"})
            with Operations.context(context):
                for migration in reversed(migrations):
                    migration.downgrade()

        def up(connection: Connection) -> None:
            context = MigrationContext.configure(connection, opts={"version_table": "redrive_version"})
            with Operations.context(context):
                for migration in migrations:
                    migration.upgrade()

        await database.write(down)
        older = await database.read(catalogue)
        assert not any(word in str(row) for row in older["indexes"] | older["columns"])
        await database.write(up)
        assert await database.read(catalogue) == newest
        [claim] = await ledger.claim(5, timedelta(seconds=30))
        assert claim.task.key == "b"
        assert [deed.actor for deed in await ledger.deeds(added.id)] == ["ada"]
    finally:
        await database.close()


async def one_back(url: str) -> Database:
    """A database that is one migration behind, with a task in it."""
    database = open_database(url, durable=False)
    await migrate(database)
    await (await open_ledger(database)).add([NewTask(kind="mail", key="a")])

    def down(connection: Connection) -> None:
        context = MigrationContext.configure(connection, opts={"version_table": "redrive_version"})
        with Operations.context(context):
            redrive_0014_one_index_less.downgrade()
        context.stamp(ScriptDirectory(str(_folder("engine").parent)), "redrive_0013")

    await database.write(down)
    return database


WHO = r"process \d+ \(pg_dump, in a transaction for [\dms]+\)"


@pytest.mark.parametrize("store", ["postgres"])
async def test_a_migration_lets_others_by_while_it_waits(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a dump it asks again and again: who works goes on, whoever holds it up is named, and it comes through when that has ended."""
    monkeypatch.setattr(lock_turns, "TELL_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(lock_turns, "PAUSE_SECONDS", (0.01, 0.02))
    database = await one_back(empty_url)
    dump = await asyncpg.connect(empty_url, server_settings={"application_name": "pg_dump"})

    def told() -> bool:
        said = rf"the migration waits for {WHO}; workers go on meanwhile"
        return any(re.fullmatch(said, record.getMessage()) for record in caplog.records)

    try:
        async with dump.transaction():
            await dump.fetch("SELECT count(*) FROM redrive_task")
            migrating = asyncio.create_task(migrate(database))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not told():
                    await asyncio.sleep(0.05)
                # It would wait behind the migration for as long as the dump takes.
                [claim] = await (await open_ledger(database)).claim(1, timedelta(seconds=30))
            assert claim.task.key == "a"
            assert not migrating.done()
        assert (await migrating)[1] == heads()
        await check(database)
    finally:
        await dump.close()
        await database.close()


@pytest.mark.parametrize("store", ["postgres"])
async def test_a_migration_that_is_held_up_for_long_says_by_whom(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the end it gives up, has changed nothing, and names who is in the way and what to do. Meanwhile it says so now and then."""
    monkeypatch.setattr(lock_turns, "PAUSE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(lock_turns, "PATIENCE_SECONDS", 7.0)
    database = await one_back(empty_url)
    before = await versions(database)
    dump = await asyncpg.connect(empty_url, server_settings={"application_name": "pg_dump"})
    try:
        async with dump.transaction():
            await dump.fetch("SELECT count(*) FROM redrive_task")
            with pytest.raises(
                NotMigratedError,
                match=rf"^nothing was migrated: for \d+s the tables in .* were held by ({WHO}|somebody)\. Run this again when that has ended, or end it$",
            ):
                await migrate(database)
        assert await versions(database) == before
        assert len([record for record in caplog.records if record.name == "redrive"]) == 1
    finally:
        await dump.close()
        await database.close()


@pytest.mark.parametrize("store", ["postgres"])
async def test_who_is_in_the_way_is_named_as_far_as_the_database_tells(empty_url: str) -> None:
    """All of one's own role with the time that they have taken, no more than three of them."""
    database = await one_back(empty_url)
    holders = [await asyncpg.connect(empty_url, server_settings={"application_name": f"h{n}"}) for n in range(5)]
    waiter = await asyncpg.connect(empty_url)
    try:
        for one in holders:
            await one.execute("BEGIN; SELECT 1 FROM redrive_task")
        session = waiter.get_server_pid()
        assert await database.read(database.dialect.in_the_way, session) == []
        waiting = asyncio.create_task(waiter.execute("BEGIN; LOCK TABLE redrive_task IN ACCESS EXCLUSIVE MODE"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := await database.read(database.dialect.in_the_way, session)):
                await asyncio.sleep(0.02)
        assert len(found) == 4
        assert all(re.fullmatch(r"process \d+ \(h\d, in a transaction for [\dms]+\)", one) for one in found[:3])
        assert found[3] == "others"
        waiting.cancel()
        await asyncio.wait([waiting])
    finally:
        for one in (*holders, waiter):
            one.terminate()
        await database.close()
