"""The table: what the migration makes is what the code believes."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, select, text
from sqlalchemy.schema import CreateIndex, CreateTable

from redrive import Redrive
from redrive.errors import NotMigratedError
from redrive.extend import NAMES, ledger_indexes
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import check, migrate
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.desk import Asked
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue
from redrive.systems.relay.wire import Published
from redrive.testing import drain
from tests.ledgers.sql.test_migrate import POSTGRES_CATALOGUE

from .kit import NOWHERE, Broker


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


REQUIRED = {
    "sqlite": [
        "CREATE TABLE retry_queue (id INTEGER PRIMARY KEY AUTOINCREMENT, message_id VARCHAR(255) NOT NULL UNIQUE,"
        " original_payload BLOB NOT NULL, original_queue VARCHAR(255) NOT NULL, error_reason TEXT, retry_count INT DEFAULT 0,"
        " max_retries INT DEFAULT 3, next_retry_at TIMESTAMP NOT NULL, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
        " updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
        " status VARCHAR(20) DEFAULT 'pending' CHECK (status IN ('pending', 'retried', 'failed')), \"my team\" TEXT DEFAULT 'shop')",
        'CREATE INDEX mine ON retry_queue ("my team")',
        "CREATE TRIGGER no_delete BEFORE DELETE ON retry_queue WHEN OLD.status = 'x:y' BEGIN SELECT RAISE(ABORT, 'no'); END",
    ],
    "postgres": [
        "CREATE TABLE retry_queue (id BIGSERIAL PRIMARY KEY, message_id VARCHAR(255) NOT NULL UNIQUE,"
        " original_payload BYTEA NOT NULL, original_queue VARCHAR(255) NOT NULL, error_reason TEXT, retry_count INT DEFAULT 0,"
        " max_retries INT DEFAULT 3, next_retry_at TIMESTAMP NOT NULL, created_at TIMESTAMP DEFAULT NOW(),"
        " updated_at TIMESTAMP DEFAULT NOW(),"
        " status VARCHAR(20) DEFAULT 'pending' CHECK (status IN ('pending', 'retried', 'failed')),"
        " \"my team\" TEXT DEFAULT 'shop')",
        'CREATE INDEX mine ON retry_queue ("my team")',
    ],
}
"""The table as the requirement writes it, with its index."""
INDEX = "CREATE INDEX idx_retry_next_retry ON retry_queue (next_retry_at) WHERE status = 'pending'"
PLAIN = (
    "INSERT INTO retry_queue (message_id, original_payload, original_queue, error_reason, retry_count, max_retries,"
    " next_retry_at, status) VALUES"
)


async def execute(database: Any, *statements: str) -> None:
    def run(connection: Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    await database.write(run)


async def work_off(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Publish all that is due to a broker that confirms everything; what went out by message, and the rows then."""
    app = Redrive(url, durable=False)
    relay = Relay(app, RelaySettings(_env_file=None, rabbitmq_url=NOWHERE))
    sent: list[tuple[str, bytes, Any]] = []

    async def publish(message: Any, queue: str) -> Published:
        sent.append((queue, message.body, message.headers.get("x-retry-count")))
        return Published.CONFIRMED

    monkeypatch.setattr(relay._publisher, "publish", publish)
    async with app:
        await drain(app)
        assert [one.id for one in (await relay.desk.page(Asked())).items]
        c = retry_queue.c
        asked = select(c.message_id, c.status, c.retry_count, c.next_retry_at, c.headers)
        found = await app.database.read(lambda connection: connection.execute(asked).all())
    return {"sent": sorted(sent, key=str), "rows": {one.message_id: one._asdict() for one in found}}


async def test_the_table_of_the_requirement_is_taken_over(
    empty_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows stay, what is due goes out, and it has our columns, rules and indexes; what its owner added stays."""
    database = open_database(empty_url)
    payload = "X'6869'" if store == "sqlite" else "'hi'::bytea"
    try:
        await execute(
            database, *REQUIRED[store], INDEX,
            f"{PLAIN} ('due', {payload}, 'orders', NULL, 1, 3, '2020-01-01 00:00:00', 'pending'),"
            f" ('later', {payload}, 'orders', 'slow', 0, 3, '2099-01-01 00:00:00', 'pending'),"
            f" ('gone', {payload}, 'orders', 'slow', 2, 3, '2020-01-01 00:00:00', 'retried'),"
            f" ('dead', {payload}, 'orders', 'slow', 3, 3, '2020-01-01 00:00:00', 'failed')",
        )  # fmt: skip
        await migrate(database, ["relay"])
        await check(database, ["relay"])
        indexes = str((await database.read(described))["indexes"])
        assert all(name in indexes for name in ("mine", "idx_retry_next_retry", "retry_queue_review_idx"))
        assert store == "postgres" or "no_delete" in indexes
        mine = text('SELECT DISTINCT "my team" FROM retry_queue')
        assert await database.read(lambda connection: connection.execute(mine).scalars().all()) == ["shop"]
    finally:
        await database.close()
    worked = await work_off(empty_url, monkeypatch)
    assert worked["sent"] == [("orders", b"hi", 2)]
    assert {name: (one["status"], one["retry_count"]) for name, one in worked["rows"].items()} == {
        "due": ("retried", 2), "later": ("pending", 0), "gone": ("retried", 2), "dead": ("failed", 3),
    }  # fmt: skip
    assert worked["rows"]["later"]["next_retry_at"] == datetime(2099, 1, 1, tzinfo=UTC)
    assert worked["rows"]["later"]["headers"] == {}


async def test_rows_inserted_with_the_columns_of_the_requirement_work(
    url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows the table by those columns alone may add to it: all of them or the fewest, without a reason, or as text."""
    database = open_database(url)
    payload = "'hi'" if store == "sqlite" else "'hi'::bytea"
    try:
        await execute(
            database,
            f"{PLAIN} ('full', {payload}, 'orders', NULL, 0, 3, '2020-01-01 00:00:00+00:00', 'pending'),"
            f" ('spent', {payload}, 'orders', NULL, 3, 3, '2020-01-01 00:00:00+00:00', 'pending')",
            f"INSERT INTO retry_queue (message_id, original_payload, original_queue) VALUES ('few', {payload}, 'mail')",
        )  # fmt: skip
    finally:
        await database.close()
    worked = await work_off(url, monkeypatch)
    review = RelaySettings(_env_file=None).manual_review_queue
    assert [(queue, count) for queue, _, count in worked["sent"]] == [("mail", 1), (review, None), ("orders", 1)]
    assert {body for queue, body, _ in worked["sent"] if queue != review} == {b"hi"}
    assert {name: one["status"] for name, one in worked["rows"].items()} == {
        "full": "retried", "few": "retried", "spent": "failed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "DROP TABLE retry_queue; CREATE TABLE retry_queue (id integer PRIMARY KEY, status text)",
            "without message_id",
        ),
        (f"{PLAIN} ('a', 'p', 'q', NULL, 0, 3, '2020-01-01', 'asleep')", "status asleep"),
    ],
    ids=["another table", "another word"],
)
async def test_a_table_that_cannot_be_taken_over_is_left_alone(
    empty_url: str, store: str, change: str, why: str
) -> None:
    """It is said before anything is changed, with the remedy."""
    database = open_database(empty_url)
    words = " CHECK (status IN ('pending', 'retried', 'failed'))"
    try:
        await execute(database, *(one.replace(words, "") for one in REQUIRED[store]), *change.split("; "))
        before = await database.read(described)
        with pytest.raises(NotMigratedError, match=f"{why}.*REDRIVE_SYSTEMS"):
            await migrate(database, ["relay"])
        assert await database.read(described) == before
    finally:
        await database.close()


async def test_claims_use_their_indexes_on_sqlite(tmp_path: Path, broker: Broker) -> None:
    """The index that people know does not lead a claim astray."""
    app = Redrive(f"sqlite:///{tmp_path / 'relay.db'}")
    relay = Relay(app, broker.settings())
    async with app:
        ledger = await relay.lane.ledger()

        def plan(connection: Connection) -> str:
            sql = ledger._claiming.claim(0)._find.statement.compile(dialect=connection.dialect)
            asked = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", (0,) * len(sql.positiontup or ()))
            return "\n".join(str(row) for row in asked)

        found = await app.database.read(plan)
    assert "retry_queue_first_idx" in found
    assert "retry_queue_retry_idx" in found
    assert "idx_retry_next_retry" not in found
