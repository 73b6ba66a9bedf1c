"""Claims on SQLite come as one text. What JSON cannot say is read from the rows themselves, whole and exact."""

from typing import Any

import pytest

from redrive.core.table import LedgerTable
from redrive.core.task import NewTask
from redrive.errors import TableError
from redrive.ledgers.open import open_ledger, own_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from tests.ledgers.homes import LEASE, execute, settlement

ROWS = LedgerTable("readings", count="attempts")
COLUMNS = (
    "id INTEGER PRIMARY KEY, status TEXT NOT NULL DEFAULT 'waiting', due_at TEXT, attempts INTEGER NOT NULL DEFAULT 0,"
    " lease_until TEXT, claim_id TEXT, amount INTEGER, note TEXT"
)


@pytest.fixture
def store() -> str:
    return "sqlite"


async def opened(database: Database, columns: str = COLUMNS) -> SqlLedger:
    await execute(database, [f"CREATE TABLE readings ({columns})"])
    try:
        return await open_ledger(database, ROWS)
    except TableError as error:
        await execute(database, error.migration)
    return await open_ledger(database, ROWS)


@pytest.mark.parametrize(
    ("literal", "read"),
    [
        ("0.30000000000000004", 0.30000000000000004),
        ("9007199254740993", 9007199254740993),
        ("x'00ff'", b"\x00\xff"),
        ("9e999", float("inf")),
        ("NULL", None),
    ],
    ids=["many digits", "large", "blob", "infinite", "nothing"],
)
async def test_a_cell_is_read_as_it_is_stored(database: Database, literal: str, read: Any) -> None:
    """A column of SQLite holds what it is given: a claim hands it on to the last digit, and the rows beside it too."""
    ledger = await opened(database)
    await execute(database, [f"INSERT INTO readings (amount, note) VALUES ({literal}, 'a \"b\" \\ ü'), (1, 'plain')"])
    claims = sorted(await ledger.claim(9, LEASE), key=lambda claim: claim.task.id)
    assert [(claim.task.payload["amount"], claim.task.payload["note"]) for claim in claims] == [
        (read, 'a "b" \\ ü'),
        (1, "plain"),
    ]
    assert await ledger.settle([settlement(claim) for claim in claims], worker="w") == []


async def test_columns_that_json_has_no_type_for_are_read_from_the_rows(database: Database) -> None:
    """A table with a column of floats is claimed as any other."""
    ledger = await opened(database, COLUMNS.replace("amount INTEGER", "amount REAL"))
    await execute(database, ["INSERT INTO readings (amount) VALUES (0.1), (0.30000000000000004)"])
    claims = await ledger.claim(9, LEASE)
    assert sorted(claim.task.payload["amount"] for claim in claims) == [0.1, 0.30000000000000004]


async def test_a_lost_claim_costs_no_other_its_settlement(database: Database) -> None:
    """Of a group in which one fence is gone the others are written, once each, and the lost one is named."""
    ledger = own_ledger(database)
    await ledger.add([NewTask(kind="job", key=f"k{number}") for number in range(4)])
    claims = await ledger.claim(4, LEASE)
    assert await ledger.settle([settlement(claims[1])], worker="first") == []
    unwritten = await ledger.settle([settlement(claim) for claim in claims], worker="second")
    assert [one.claim for one in unwritten] == [claims[1]]
    assert [len(await ledger.attempts(claim.task.id)) for claim in claims] == [1, 1, 1, 1]
