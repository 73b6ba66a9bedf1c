"""The table: what the migration makes is what the code believes, and every hot statement is served by its index."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, MetaData, event, text
from sqlalchemy.schema import CreateIndex, CreateTable

from redrive import Filter, Redrive, State, days, seconds
from redrive.extend import NAMES, ledger_indexes
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.webhooks.tables import EVENTS, bodies, events, handlers
from redrive.testing import VirtualClock, drain

from .conftest import Inbox, Make, execute, rows

CATALOGUES = {
    "postgresql": {
        "columns": "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = 'events'",
        "constraints": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'events'::regclass",
        "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'events'",
    },
    "sqlite": {
        "columns": "SELECT name, upper(type), \"notnull\", dflt_value, pk FROM pragma_table_info('events')",
        "constraints": "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'events'",
        "indexes": "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'events' AND sql IS NOT NULL",
    },
}


def catalogue(connection: Connection, table: str) -> dict[str, set[Any]]:
    """What the database says of a table."""
    found = {}
    for name, sql in CATALOGUES[connection.dialect.name].items():
        said = {tuple(row) for row in connection.execute(text(sql.replace("'events'", f"'{table}'")))}
        if (connection.dialect.name, name) == ("sqlite", "constraints"):
            [[whole]] = said
            said = {line.strip().rstrip(",") for line in whole.splitlines() if line.strip().startswith("CONSTRAINT")}
        found[name] = said
    return found


def create(connection: Connection) -> None:
    """The tables as the code says."""
    table = events.to_metadata(MetaData(naming_convention=NAMES))
    ledger_indexes(EVENTS, table)
    for made in (table, bodies, handlers):
        connection.execute(CreateTable(made))
        for index in made.indexes:
            connection.execute(CreateIndex(index))


async def test_migration_and_table_agree(url: str, store: str, tmp_path: Any, request: Any):
    """Columns, types, defaults, checks, keys and indexes, those of the ledger among them."""
    other = f"sqlite:///{tmp_path / 'other.db'}"
    if store == "postgres":
        other = await request.getfixturevalue("postgres").create()
    migrated, created = open_database(url), open_database(other)
    try:
        await created.write(create)
        for table, indexes in (("events", 8), ("webhook_bodies", 1), ("webhook_handlers", 0)):
            ours, theirs = await migrated.read(catalogue, table), await created.read(catalogue, table)
            assert len(theirs["indexes"]) >= indexes
            assert ours == theirs
    finally:
        await migrated.close()
        await created.close()


async def test_webhooks_of_an_older_inbox_are_taken_along(empty_url: str):
    """Every row is as it was, of whatever status, and can be cancelled then where it waits."""
    from redrive.ledgers.sql import migrate as migrations

    database = open_database(empty_url)

    def older(connection: Connection) -> None:
        migrations._run_alembic(
            "webhooks_0001", [migrations.ENGINE, *migrations.systems_with_tables()], connection=connection
        )
        for number, status in enumerate(("pending", "processing", "completed", "failed")):
            connection.execute(
                text(
                    "INSERT INTO events (id, idempotency_key, event_type, payload, status, created_at, updated_at) VALUES"
                    f" ('{number}', 'k{number}', 'a', '{{}}', '{status}', '2029-01-01T00:00:00Z', '2029-01-01T00:00:00Z')"
                )
            )

    def look(connection: Connection) -> list[Any]:
        return connection.execute(text("SELECT * FROM events ORDER BY id")).all()

    try:
        await migrate(database)
        await database.write(older)
        before = await database.read(look)
        await migrate(database, ["webhooks"])
        assert await database.read(look) == [(*row, None) for row in before], "none of them has a gate"
        await database.write(lambda connection: connection.execute(text("UPDATE events SET status = 'cancelled'")))
    finally:
        await database.close()


async def test_a_table_in_the_way_is_left_alone(empty_url: str):
    """Somebody's own `events` is refused with the remedy, and not touched."""
    database = open_database(empty_url)
    try:
        await database.write(lambda connection: connection.execute(text("CREATE TABLE events (mine integer)")))
        with pytest.raises(Exception, match="REDRIVE_SYSTEMS"):
            await migrate(database, ["webhooks"])
        await database.read(lambda connection: connection.execute(text("SELECT mine FROM events")).all())
    finally:
        await database.close()


async def test_ids_are_in_the_order_of_arrival(make: Make, clock: VirtualClock):
    """They are UUIDs of version 7, also when many come at once or a moment later."""
    app, webhooks = make(clock=clock)
    keys = []
    for span in (0, 0, 0.001, 0.0001, 60):
        clock.advance(seconds(span))
        for number in range(20):
            keys.append(f"{len(keys):03}-{number}")
            await webhooks.accept("a", {}, idempotency_key=keys[-1])
        clock.advance(seconds(0.00001))
    found = await rows(app)
    assert all(UUID(row["id"]).version == 7 for row in found)
    page = await webhooks.lane.find(Filter(), limit=1000)
    assert sorted(task.key for task in page.items) == keys
    assert [task.created_at for task in page.items] == sorted(task.created_at for task in page.items)


# --- plans ------------------------------------------------------------------------------------------------------------

PARKED = 3000


async def park(app: Redrive) -> None:
    """Thousands of webhooks that wait for later, of a type that nobody knows, are completed and failed; a few are due."""
    await app.open()
    numbers = (
        f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {PARKED}) SELECT n FROM s) AS s"
    )
    for status, attempts, due, kind in (
        ("pending", 1, "'2031-01-01T00:00:00Z'", "a"),
        ("pending", 0, "NULL", "unknown"),
        ("completed", 1, "NULL", "a"),
        ("failed", 5, "NULL", "a"),
    ):
        made = (
            f"SELECT '{status}-{kind}-' || s.n, '{status}-{kind}-' || s.n, '{kind}', '{{}}', '{status}', {attempts}, {due},"
            f" '2029-12-31T00:00:00Z', '2029-12-31T00:00:00Z' FROM {numbers}"
        )
        if app.database.dialect.name == "postgresql":
            made = made.replace(due, f"{due}::timestamptz").replace("00Z'", "00Z'::timestamptz")
        await execute(
            app,
            "INSERT INTO events (id, idempotency_key, event_type, payload, status, attempts, retry_after, created_at,"
            f" updated_at) {made}",
        )
    await execute(app, "ANALYZE")


async def plans(database: Database, run: Callable[[], Any]) -> list[str]:
    """The plans of all statements on the table that are executed meanwhile."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "events" in statement:
            seen.append((statement, parameters))

    if database.dialect.name == "postgresql":
        engines = [database._here.engine.sync_engine]
    else:
        engines = [database._engine, database._writer._engine]
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    await run()
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)
    explain = "EXPLAIN " if database.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "

    def ask(connection: Connection) -> list[str]:
        return [
            "\n".join(str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters))
            for statement, parameters in seen
        ]

    return await database.read(ask)


async def test_no_statement_reads_the_whole_table(make: Make, clock: VirtualClock):
    """Taking in, counting the queue, claiming, paging dead letters and cleaning up are each served by their index."""
    app, webhooks = make(clock=clock, queue_maxsize=100_000)
    await park(app)
    database, ledger = app.database, await webhooks.lane.ledger()
    await webhooks.accept("warm", {}, idempotency_key="up")
    webhooks.inbox._room._last = None  # the queue is counted anew
    found = {
        "accept": await plans(database, lambda: webhooks.accept("a", {}, idempotency_key="new")),
        "depth": await plans(database, lambda: webhooks.inbox.depth(100)),
        "claim": await plans(database, lambda: ledger.claim(10, seconds(30), kinds=["a"])),
        "failed": await plans(database, lambda: webhooks.lane.find(Filter(state=State.DEAD), limit=10)),
        "prune": await plans(database, lambda: ledger.prune([State.DONE, State.DEAD], days(30))),
    }
    for what, said in found.items():
        assert said, what
        for plan in said:
            assert "SCAN events\n" not in plan + "\n", f"{what}: {plan}"
            assert "Seq Scan on events" not in plan, f"{what}: {plan}"
    assert any("events_due_idx" in plan for plan in found["accept"])
    assert "events_due_idx" in found["depth"][0]
    assert not any("events_due_idx" in plan for plan in found["claim"])
    assert "events_failed_idx" in found["failed"][0]
    [pruned, *_] = found["prune"]
    assert "events_completed_at_idx" in pruned
    assert "events_failed_at_idx" in pruned


SPELLINGS = (
    "2030-01-01T00:00:10Z",
    "2030-01-01T00:00:10.000Z",
    "2030-01-01T00:00:10.000000Z",
    "2030-01-01T00:00:10+00:00",
    "2030-01-01T02:00:10.000+02:00",
    "2029-12-31T19:00:10-05:00",
    "2030-01-01 00:00:10",
    "2030-01-01 00:00:10.000000",
)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_times_compare_right_whatever_their_format(inbox: Inbox, clock: VirtualClock, spelling: str):
    """A row that somebody else wrote is due at its instant: not a moment before, and not when its text says otherwise."""
    app, webhooks = inbox
    await app.open()
    await execute(
        app,
        "INSERT INTO events (id, idempotency_key, event_type, payload, attempts, retry_after, created_at, updated_at)"
        f" VALUES ('x', 'k', 'a', '{{}}', 1, '{spelling}', '{spelling}', '{spelling}')",
    )
    clock.advance(seconds(9.9))
    assert await webhooks.inbox.depth(10) == 0
    assert await (await webhooks.lane.ledger()).next_due() == pytest.approx(seconds(0.1), abs=seconds(0.002))
    assert not (await drain(app, clock=clock, until=timedelta(0))).settlements
    clock.advance(seconds(0.11))
    assert await webhooks.inbox.depth(10) == 1
    assert (await drain(app, clock=clock, until=timedelta(0))).of("k") == ["done"]
    clock.advance(days(1))
    ledger = await webhooks.lane.ledger()
    assert await ledger.prune([State.DONE], days(1) + seconds(1)) == 0
    assert await ledger.prune([State.DONE], days(1) - seconds(1)) == 1


async def test_times_of_all_formats_keep_their_order(inbox: Inbox, clock: VirtualClock):
    """Rows in every spelling, each a second later than the last, run in the order of their instants."""
    app, _ = inbox
    await app.open()
    begin = datetime(2030, 1, 1, 0, 0, 10, tzinfo=UTC)
    for number in range(24):
        at = begin + seconds(number)
        zone = timedelta(hours=number % 5 - 2)
        local = (at + zone).replace(tzinfo=None)
        sign = f"{'-' if zone < timedelta(0) else '+'}{abs(zone).seconds // 3600:02}:00"
        spelled = [
            f"{at:%Y-%m-%dT%H:%M:%S}Z",
            f"{local:%Y-%m-%dT%H:%M:%S.%f}{sign}",
            f"{at:%Y-%m-%d %H:%M:%S}",
            f"{local.isoformat()}{sign}",
        ][number % 4]
        await execute(
            app,
            "INSERT INTO events (id, idempotency_key, event_type, payload, attempts, retry_after, created_at, updated_at)"
            f" VALUES ('{97 - number}', 'k{number:02}', 'a', '{{}}', 1, '{spelled}', '{spelled}', '{spelled}')",
        )
    drained = await drain(app, clock=clock)
    assert [one.claim.task.key for one in drained.settlements] == [f"k{number:02}" for number in range(24)]
    assert clock.now() >= begin + seconds(22.99)  # text is compared to the millisecond


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_times_are_written_as_iso_8601_in_utc(inbox: Inbox, clock: VirtualClock):
    """What people find in the file reads the same everywhere."""
    app, webhooks = inbox
    await webhooks.accept("a", {"fail": True}, idempotency_key="k")
    await drain(app, clock=clock, until=timedelta(0))
    [row] = await rows(app)
    assert row["created_at"] == "2030-01-01T00:00:00.000000Z"
    assert row["retry_after"] == "2030-01-01T00:00:10.000000Z"
