"""The table: what the migration makes is what the code believes."""

import re
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, text
from sqlalchemy.schema import CreateIndex, CreateTable

from redrive import Redrive
from redrive.extend import NAMES, ledger_indexes
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.relay import Relay
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue
from tests.ledgers.sql.test_migrate import POSTGRES_CATALOGUE

from .kit import Broker


def create(connection: Connection) -> None:
    """The table as the code believes it to be."""
    table = retry_queue.to_metadata(MetaData(naming_convention=NAMES))
    ledger_indexes(RETRY_QUEUE, table)
    connection.execute(CreateTable(table))
    for index in table.indexes:
        connection.execute(CreateIndex(index))


def described(connection: Connection) -> dict[str, set[Any]]:
    if connection.dialect.name == "postgresql":
        every = {
            name: {tuple(row) for row in connection.execute(text(sql))} for name, sql in POSTGRES_CATALOGUE.items()
        }
        return {name: {row for row in found if row[0] == "retry_queue"} for name, found in every.items()}
    asked = "SELECT name, sql FROM sqlite_schema WHERE tbl_name = 'retry_queue' AND sql IS NOT NULL"
    found = {name: re.sub(r"\s+", " ", sql) for name, sql in connection.execute(text(asked))}
    table = found.pop("retry_queue")
    parts = {part.strip(" ,)") for part in re.split(r", (?=[A-Z]{5,} |\w+ [A-Z]+)", table.partition("(")[2])}
    return {"indexes": set(found.items()), "parts": parts}


async def test_migration_and_metadata_agree(empty_url: str, store: str, tmp_path: Path, request: Any) -> None:
    """What the migration makes is what the code describes."""
    other = (
        f"sqlite:///{tmp_path / 'other.db'}"
        if store == "sqlite"
        else await request.getfixturevalue("postgres").create()
    )
    migrated, created = open_database(empty_url), open_database(other)
    try:
        await migrate(migrated, ["relay"])
        await created.write(create)
        ours, theirs = await migrated.read(described), await created.read(described)
        for name, found in theirs.items():
            assert ours[name] == found, name
    finally:
        await migrated.close()
        await created.close()


async def test_claims_use_their_indexes_on_sqlite(tmp_path: Path, broker: Broker) -> None:
    """The index that people know does not lead a claim astray."""
    app = Redrive(f"sqlite:///{tmp_path / 'relay.db'}")
    relay = Relay(app, broker.settings())
    async with app:
        ledger = await relay.lane.ledger()

        def plan(connection: Connection) -> str:
            sql = ledger._claiming.claim(0).compile(dialect=connection.dialect)
            asked = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", (0,) * len(sql.positiontup or ()))
            return "\n".join(str(row) for row in asked)

        found = await app.database.read(plan)
    assert "retry_queue_first_idx" in found
    assert "retry_queue_retry_idx" in found
    assert "idx_retry_next_retry" not in found
