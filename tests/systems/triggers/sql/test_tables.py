"""The tables: what the migrations make is what the code believes, on both databases."""

from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, event, text
from sqlalchemy.schema import CreateIndex, CreateTable

from redrive.extend import NAMES, ledger_indexes
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.triggers.ledger import TRIGGER_DELIVERIES
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.inbox import SqlInbox
from tests.ledgers.sql import test_migrate

from ..conftest import House


def create(connection: Connection) -> None:
    """The tables as the code says, with the indexes that claims need."""
    copied = MetaData(naming_convention=NAMES)
    tables = {table.name: table.to_metadata(copied) for table in t.metadata.sorted_tables}
    ledger_indexes(TRIGGER_DELIVERIES, tables["trigger_deliveries"])
    for table in copied.sorted_tables:
        connection.execute(CreateTable(table))
        for index in table.indexes:
            connection.execute(CreateIndex(index))


def ours(found: dict[str, set[Any]]) -> dict[str, set[Any]]:
    return {name: {row for row in rows if str(row[0]).startswith("trigger_")} for name, rows in found.items()}


async def test_migrations_and_tables_agree(empty_url: str, store: str, tmp_path: Any, request: Any,
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Columns, types, defaults, checks, keys and indexes of a migrated database are those of the tables."""
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    if store == "postgres":
        other_url = await request.getfixturevalue("postgres").create()
    asked = {name: sql.replace("'redrive%'", "'trigger%'") for name, sql in test_migrate.SQLITE_CATALOGUE.items()}
    monkeypatch.setattr(test_migrate, "SQLITE_CATALOGUE", asked)
    migrated, created = open_database(empty_url), open_database(other_url)
    try:
        await migrate(migrated, ["triggers"])
        await created.write(create)
        theirs, real = (
            ours(await created.read(test_migrate.catalogue)),
            ours(await migrated.read(test_migrate.catalogue)),
        )
        for name, rows in theirs.items():
            assert len(rows) > 5, name
            assert real[name] == rows, name
    finally:
        await migrated.close()
        await created.close()


async def test_a_page_of_the_inbox_walks_only_its_own_rows(house: House) -> None:
    """Behind a cursor as before it: each statement reads by the index in the order of the page, and the rows by their ids alone."""
    ids = sorted([await house.post() for _ in range(5)])

    def plans(connection: Connection) -> list[str]:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # the table is too small for it to care
        said: list[Any] = []
        event.listen(connection, "before_cursor_execute", lambda *given: said.append(given[2:4]))
        page = SqlInbox.page.__wrapped__(  # type: ignore[attr-defined]
            house.triggers.inbox, connection, "ada", "received", event_type=None, after=ids[0], limit=2
        )
        assert [row.id for row in page.events] == ids[1:3]
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        return ["\n".join(map(str, connection.exec_driver_sql(explain + sql, given))) for sql, given in said[-2:]]

    sizes, rows = await house.app.database.read(plans)
    assert "trigger_events_inbox_idx" in sizes, sizes
    assert "SCAN trigger_events" not in rows, rows
    assert "id>?" not in rows, rows
    assert "Seq Scan" not in rows, rows
