"""The tables: what the migrations make is what the code believes, and tables from before retries are taken as they are."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from redrive import Redrive
from redrive.errors import NotMigratedError
from redrive.extend import NAMES, ledger_indexes
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import check, migrate, migration_sql
from redrive.systems.flags import Flags, FlagSettings, tables
from redrive.systems.flags.tables import FLAG_SCHEDULES
from redrive.testing import VirtualClock, drain

POSTGRES = {
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity"
    " FROM information_schema.columns WHERE table_name LIKE 'feature_flag%'",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE conrelid::regclass::text LIKE 'feature_flag%'",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'feature_flag%'",
}
SQLITE = {
    "columns": 'SELECT t.name, c.name, upper(c.type), c."notnull", c.dflt_value, c.pk FROM sqlite_schema t,'
    " pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name LIKE 'feature_flag%'",
    "constraints": "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name LIKE 'feature_flag%'",
    "indexes": "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name LIKE 'feature_flag%'"
    " AND sql IS NOT NULL",
}

OLD = {
    "sqlite": [
        "CREATE TABLE feature_flags (id INTEGER PRIMARY KEY, flag_key VARCHAR(100) NOT NULL, environment VARCHAR(50) NOT NULL"
        " DEFAULT 'production', enabled BOOLEAN NOT NULL DEFAULT 0, rollout_percentage INTEGER NOT NULL DEFAULT 0,"
        " description TEXT, created_at DATETIME, updated_at DATETIME, UNIQUE (flag_key, environment))",
        "CREATE TABLE feature_flag_schedules (id INTEGER PRIMARY KEY, flag_id INTEGER REFERENCES feature_flags (id)"
        " ON DELETE SET NULL, flag_key VARCHAR(100) NOT NULL, environment VARCHAR(50) NOT NULL DEFAULT 'production',"
        " scheduled_at DATETIME NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'pending', updates JSON NOT NULL,"
        " applied_at DATETIME, error_message TEXT, created_by TEXT, cancelled_by TEXT, cancelled_at DATETIME,"
        " created_at DATETIME, updated_at DATETIME, team TEXT)",
    ],
    "postgres": [
        "CREATE TABLE feature_flags (id serial PRIMARY KEY, flag_key varchar(100) NOT NULL, environment varchar(50) NOT NULL"
        " DEFAULT 'production', enabled boolean NOT NULL DEFAULT false, rollout_percentage integer NOT NULL DEFAULT 0,"
        " description text, created_at timestamptz, updated_at timestamptz, UNIQUE (flag_key, environment))",
        "CREATE TABLE feature_flag_schedules (id bigserial PRIMARY KEY, flag_id integer REFERENCES feature_flags (id)"
        " ON DELETE SET NULL, flag_key varchar(100) NOT NULL, environment varchar(50) NOT NULL DEFAULT 'production',"
        " scheduled_at timestamptz NOT NULL, status varchar(20) NOT NULL DEFAULT 'pending', updates jsonb NOT NULL,"
        " applied_at timestamptz, error_message text, created_by text, cancelled_by text, cancelled_at timestamptz,"
        " created_at timestamptz, updated_at timestamptz, team text)",
    ],
}
"""Tables as somebody made them before there were retries, with a column of their own."""
ROWS = [
    "INSERT INTO feature_flags (id, flag_key, created_at, updated_at) VALUES"
    " (1, 'promo', '2029-12-01 00:00:00', '2029-12-01 00:00:00')",
    "INSERT INTO feature_flag_schedules (id, flag_id, flag_key, scheduled_at, status, updates, applied_at, error_message,"
    " cancelled_by, cancelled_at, created_at, updated_at, team) VALUES"
    " (1, 1, 'promo', '2030-01-01 00:10:00', 'pending', '{\"enabled\": true}', NULL, NULL, NULL, NULL,"
    " '2029-12-01 00:00:00', '2029-12-01 00:00:00', 'shop'),"
    " (2, 1, 'promo', '2029-12-02 00:00:00', 'applied', '{\"enabled\": false}', '2029-12-02 00:00:01', NULL, NULL, NULL,"
    " '2029-12-01 00:00:00', '2029-12-02 00:00:01', 'shop'),"
    " (3, 1, 'promo', '2029-12-03 00:00:00', 'failed', '{\"rollout_percentage\": 5}', NULL, 'it was down', NULL, NULL,"
    " '2029-12-01 00:00:00', '2029-12-03 00:00:01', 'shop'),"
    " (4, 1, 'promo', '2030-01-05 00:00:00', 'cancelled', '{\"enabled\": true}', NULL, NULL, 'bob', '2029-12-04 00:00:00',"
    " '2029-12-01 00:00:00', '2029-12-04 00:00:00', 'shop')",
]


def from_metadata(connection: Connection) -> None:
    """The tables as the code says, with the indexes that claims need."""
    metadata = MetaData(naming_convention=NAMES)
    made = [one.to_metadata(metadata) for one in (tables.flags, tables.overrides, tables.schedules, tables.audit)]
    ledger_indexes(FLAG_SCHEDULES, made[2])
    for table in made:
        connection.execute(CreateTable(table))
        for index in table.indexes:
            connection.execute(CreateIndex(index))


def catalogue(connection: Connection) -> dict[str, set[Any]]:
    asked = POSTGRES if connection.dialect.name == "postgresql" else SQLITE
    found = {name: {tuple(row) for row in connection.execute(text(sql))} for name, sql in asked.items()}
    if connection.dialect.name == "sqlite":  # it keeps the text: constraints with their names, wherever they stand
        found["constraints"] = {(name, one) for name, sql in found["constraints"] for one in constraints(sql)}
    return found


def constraints(sql: str) -> list[str]:
    """Each named constraint of a CREATE TABLE, up to the bracket that closes it."""
    found = []
    for begin in re.finditer(r"CONSTRAINT \w+ (CHECK|UNIQUE|FOREIGN KEY|PRIMARY KEY)", sql):
        end = begin.end() + 1
        while "(" not in sql[begin.end() : end] or sql[begin.start() : end].count("(") > sql[begin.start() : end].count(
            ")"
        ):
            end += 1
        found.append(" ".join(sql[begin.start() : end].split()))
    return found


async def execute(database: Any, statements: list[str]) -> None:
    def run(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement.replace(":", "\\:")))

    await database.write(run)


async def test_migrations_and_metadata_agree(empty_url: str, store: str, tmp_path: Any, request: Any) -> None:
    """Columns, types, defaults, checks, keys and indexes of migrated tables are those of the code."""
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    if store == "postgres":
        other_url = await request.getfixturevalue("postgres").create()
    migrated, created = open_database(empty_url), open_database(other_url)
    try:
        await migrate(migrated, ["flags"])
        await created.write(from_metadata)
        ours, theirs = await migrated.read(catalogue), await created.read(catalogue)
        for name, rows in theirs.items():
            assert len(rows) > 7, name
            assert ours[name] == rows
    finally:
        await migrated.close()
        await created.close()


async def test_rows_of_every_status_are_taken_along(empty_url: str, store: str) -> None:
    """A table from before retries keeps its rows and its own column; what is pending is applied, the rest is as it was."""
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    database = open_database(empty_url)
    try:
        await execute(database, [*OLD[store], *ROWS])
        await migrate(database, ["flags"])
        await check(database, ["flags"])
    finally:
        await database.close()
    app = Redrive(empty_url, clock=clock, durable=False)
    flags = Flags(app, FlagSettings(_env_file=None))
    async with app:
        before = {one.id: one for one in await flags.schedules("promo")}
        assert {id_: one.status for id_, one in before.items()} == {
            1: "pending", 2: "applied", 3: "failed", 4: "cancelled",
        }  # fmt: skip
        assert all((one.retry_count, one.max_retries, one.next_retry_at) == (0, 3, None) for one in before.values())
        assert before[3].last_error == "it was down"
        assert [state.value for state in (await flags.lane.counts()) if (await flags.lane.counts())[state]] == [
            "waiting", "done", "dead", "cancelled",
        ]  # fmt: skip
        drained = await drain(app, clock=clock)
        assert drained.outcomes == {"done": 1}
        assert clock.now() - datetime(2030, 1, 1, 0, 10, tzinfo=UTC) < timedelta(seconds=1)
        after = {one.id: one for one in await flags.schedules("promo")}
        assert (after[1].status, after[1].applied_at) == ("applied", clock.now())
        assert {id_: after[id_] for id_ in (2, 3, 4)} == {id_: before[id_] for id_ in (2, 3, 4)}
        assert (await flags.get("promo")).enabled
        # An operator may bring the old failure back; in its old spelling it still says what it sets.
        await flags.retry("promo", 3, actor="ada")
        await drain(app, clock=clock)
        assert (await flags.get("promo")).rollout_percentage == 5
        team = text("SELECT count(*) FROM feature_flag_schedules WHERE team = 'shop'")
        assert await app.database.read(lambda connection: connection.execute(team).scalar_one()) == 4


async def test_columns_and_index_added_by_hand_are_taken_as_they_are(empty_url: str, store: str) -> None:
    """A table whose owner has added a column of ours, and the index by its well-known name, is migrated too."""
    time = "DATETIME" if store == "sqlite" else "timestamptz"
    by_hand = [
        f"ALTER TABLE feature_flag_schedules ADD COLUMN next_retry_at {time}",
        "CREATE INDEX idx_schedules_next_retry_at ON feature_flag_schedules (next_retry_at)"
        " WHERE next_retry_at IS NOT NULL",
    ]
    database = open_database(empty_url)
    try:
        await execute(database, [*OLD[store], *by_hand, *ROWS])
        await migrate(database, ["flags"])
        await check(database, ["flags"])
    finally:
        await database.close()


async def test_retry_columns_come_in_a_migration_of_their_own(empty_url: str) -> None:
    """The first revision makes the tables without them, the second adds them."""
    from redrive.ledgers.sql import migrate as migrations

    database = open_database(empty_url)

    def upgrade(connection: Connection, to: str) -> set[str]:
        migrations._run_alembic(to, [migrations.ENGINE, *migrations.systems_with_tables()], connection=connection)
        return {column["name"] for column in inspect(connection).get_columns("feature_flag_schedules")}

    try:
        await migrate(database)
        added = {"retry_count", "max_retries", "next_retry_at", "last_error", "expires_at", "lease_until", "claim_id"}
        base = await database.write(upgrade, "flags_0001")
        assert not base & added
        assert await database.write(upgrade, "flags_0002") == base | added
    finally:
        await database.close()


async def test_another_table_of_the_name_is_in_the_way(empty_url: str) -> None:
    """A table that cannot be ours is left alone, and the error names what is missing and the remedy."""
    database = open_database(empty_url)
    try:
        await execute(database, ["CREATE TABLE feature_flag_schedules (id integer PRIMARY KEY, status text)"])
        with pytest.raises(NotMigratedError, match=r"without applied_at, .*REDRIVE_SYSTEMS"):
            await migrate(database, ["flags"])
    finally:
        await database.close()


@pytest.mark.parametrize("table", ["feature_flags", "feature_flag_schedules", "feature_flag_user_overrides"])
async def test_ids_that_are_no_numbers_are_told_before_anything_is_changed(
    empty_url: str, store: str, table: str
) -> None:
    """Tables with UUIDs are left as they are, and the error names the column and the remedies."""
    uuid = "TEXT" if store == "sqlite" else "uuid"
    by_uuid = {
        "feature_flags": [re.sub(r"\(id \w+ PRIMARY", f"(id {uuid} PRIMARY", OLD[store][0])],
        "feature_flag_schedules": [OLD[store][0], re.sub(r"\(id \w+ PRIMARY", f"(id {uuid} PRIMARY", OLD[store][1])],
        "feature_flag_user_overrides": [
            f"CREATE TABLE feature_flag_user_overrides (flag_id {uuid}, user_id text, override_type text, reason text,"
            " created_by text, created_at text)"
        ],
    }
    database = open_database(empty_url)
    try:
        await execute(database, by_uuid[table])
        before = await database.read(catalogue)
        with pytest.raises(NotMigratedError, match=rf"{table}\.(flag_)?id .*Nothing was changed.*REDRIVE_SYSTEMS"):
            await migrate(database, ["flags"])
        assert await database.read(catalogue) == before
    finally:
        await database.close()


async def test_the_printed_sql_migrates(empty_url: str, store: str) -> None:
    """The SQL for people who migrate by hand makes what the code needs."""
    sql = migration_sql("sqlite" if store == "sqlite" else "postgresql", ["flags"])
    database = open_database(empty_url)
    try:
        statements = [part.strip() for part in sql.split(";\n") if part.strip() not in ("", "BEGIN", "COMMIT")]
        await execute(database, statements)
        await check(database, ["flags"])
    finally:
        await database.close()


async def test_the_audit_is_append_only(url: str, store: str) -> None:
    """What it says can be neither changed nor deleted."""
    database = open_database(url)
    try:
        await execute(
            database,
            ["INSERT INTO feature_flag_audit (at, action, actor, flag_key, environment, schedule_id, details) VALUES"
             " ('2030-01-01 00:00:00', 'flag_schedule.created', 'ada', 'promo', 'production', 1, '{}')"],
        )  # fmt: skip
        truncate = ["TRUNCATE feature_flag_audit"] if store == "postgres" else []
        for statement in ("UPDATE feature_flag_audit SET actor = 'eve'", "DELETE FROM feature_flag_audit", *truncate):
            with pytest.raises(Exception, match="append-only"):
                await execute(database, [statement])
    finally:
        await database.close()


def test_the_table_is_the_one_of_the_documentation() -> None:
    """Two due columns, one word for retrying and dead, the lease for claimed."""
    assert (FLAG_SCHEDULES.first_due, FLAG_SCHEDULES.due) == ("scheduled_at", "next_retry_at")
    assert FLAG_SCHEDULES.words.shared
    assert FLAG_SCHEDULES.words.claimed is None
    assert Flags.name == "flags"
