"""Adding: how much one statement carries."""

import sqlite3

import pytest
from sqlalchemy import Connection

from redrive.core.task import NewTask
from redrive.errors import KeyTakenError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql import portions
from redrive.ledgers.sql.database import Database

MEGABYTE = "x" * 1_000_000


def big(amount: int, kind: str = "mail", first: int = 0) -> list[NewTask]:
    return [NewTask(kind=kind, key=f"key-{number}", payload=MEGABYTE) for number in range(first, first + amount)]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_many_large_payloads_are_not_one_text(database: Database) -> None:
    """Together they may be larger than the longest text that SQLite takes: a gigabyte, and here a hundredth of it."""

    def shorten(connection: Connection) -> None:
        driver = connection.connection.dbapi_connection
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000_000)

    ledger = await open_ledger(database)
    await database.write(shorten)
    added = await ledger.add(big(30))
    assert [one.new for one in added] == [True] * 30
    assert sum((await ledger.counts()).values()) == 30


async def test_portions_are_one_call(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many statements it takes, all tasks are stored or none, and a key that is named twice is one task."""
    monkeypatch.setattr(portions, "CHARS_PER_STATEMENT", 2_500_000)
    ledger = await open_ledger(database)
    twice = await ledger.add([*big(5), *big(1)])
    assert [one.new for one in twice] == [True] * 5 + [False]
    assert twice[5].id == twice[0].id
    with pytest.raises(KeyTakenError):
        await ledger.add([*big(4, first=10), *big(1, kind="call")])
    assert sum((await ledger.counts()).values()) == 5
