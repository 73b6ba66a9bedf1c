"""Adding: how much one statement carries."""

import sqlite3
from datetime import timedelta

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


async def test_what_is_the_same_in_all_tasks_is_stored_as_what_differs(database: Database) -> None:
    """Whether a column has one value for all tasks of a call or one for each, every task has its own."""
    alike = [NewTask(kind="mail", key=f"alike-{n}", payload=n, failures_max=3) for n in range(3)]
    apart = [
        NewTask(kind=f"kind-{n}", key=f"apart-{n}", payload=n, failures_max=n or None, delay=timedelta(hours=n))
        for n in range(3)
    ]
    ledger = await open_ledger(database)
    ids = [one.id for tasks in (alike, apart, alike[:1]) for one in await ledger.add(tasks)]
    stored = [await ledger.get(id_) for id_ in ids]
    assert ids[0] == ids[-1]
    assert [(task.kind, task.key, task.payload, task.failures_max) for task in stored if task is not None] == [
        *(("mail", f"alike-{n}", n, 3) for n in range(3)),
        *((f"kind-{n}", f"apart-{n}", n, n or None) for n in range(3)),
        ("mail", "alike-0", 0, 3),
    ]
    waits = [task.due_at - task.created_at for task in stored if task is not None]
    assert [round(wait.total_seconds()) for wait in waits] == [0, 0, 0, 0, 3600, 7200, 0]
