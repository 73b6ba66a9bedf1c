"""Claims on SQLite come as one text. What JSON cannot say is read from the rows themselves, whole and exact."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed
from redrive.core.policy import Policy
from redrive.core.table import LedgerTable
from redrive.core.task import NewTask
from redrive.errors import TableError
from redrive.ledgers.open import open_ledger, own_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.rows import RowReader
from redrive.ledgers.sqlite import group_commit
from redrive.ledgers.sqlite import settle as sqlite_settle
from redrive.testing import VirtualClock
from tests.ledgers.homes import LEASE, execute, settlement

ROWS = LedgerTable("readings", count="attempts")
COLUMNS = (
    "id INTEGER PRIMARY KEY, status TEXT NOT NULL DEFAULT 'waiting', due_at TEXT, attempts INTEGER NOT NULL DEFAULT 0,"
    " lease_until TEXT, claim_id TEXT, amount INTEGER, note TEXT"
)


@pytest.fixture
def store() -> str:
    return "sqlite"


@pytest.fixture
def other(url: str) -> Iterator[sqlite3.Connection]:
    """Another process, which waits for no lock."""
    file = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, isolation_level=None, timeout=0, check_same_thread=False)) as connection:
        yield connection


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


@pytest.mark.parametrize("parts_max", [0, 8], ids=["as a whole", "in parts"])
async def test_settlements_of_every_sort_are_written_together(
    database: Database, monkeypatch: pytest.MonkeyPatch, parts_max: int
) -> None:
    """Of two claims, done and failed, with one lost in each: the same is written in parts that are alike as in one whole."""
    monkeypatch.setattr(sqlite_settle, "PARTS_MAX", parts_max)
    ledger = own_ledger(database)
    await ledger.add([NewTask(kind="k", key=f"t{number}", payload=None) for number in range(12)])
    claims = [claim for _ in range(2) for claim in await ledger.claim(6, LEASE)]
    ends = [decide(claim, Failed(OSError("away")) if at % 2 else Done(), Policy()) for at, claim in enumerate(claims)]
    taken = [ends[0], ends[7]]
    assert await ledger.settle(taken, worker="first") == []

    unwritten = await ledger.settle(ends, worker="second")

    assert {one.claim.task.key for one in unwritten} == {one.claim.task.key for one in taken}
    for end in ends:
        task = await ledger.get_by_key(end.claim.task.key)
        [attempt] = await ledger.attempts(task.id)
        assert (task.state, task.failures, task.last_error) == (end.state, end.failures, end.error)
        assert (attempt.claim_id, attempt.outcome, attempt.error) == (end.claim.claim_id, end.outcome, end.error)
        assert attempt.worker == ("first" if end in taken else "second")


async def test_others_may_write_while_a_claim_is_read_and_a_settlement_is_made_ready(
    database: Database, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has one write lock: it is held for what the database does, and not for what Python does before and after."""
    ledger = own_ledger(database)
    await ledger.add([NewTask(kind="job", key=f"k{number}") for number in range(3)])
    wrote = list[str]()

    def write(what: str) -> None:
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
        wrote.append(what)

    read, explain = RowReader.claims, sqlite_settle.explanation_texts

    def claims(self: RowReader, *args: Any) -> Any:
        write("while it is read")
        return read(self, *args)

    def explanation_texts(*args: Any) -> Any:
        write("while it is made ready")
        return explain(*args)

    monkeypatch.setattr(RowReader, "claims", claims)
    monkeypatch.setattr(sqlite_settle, "explanation_texts", explanation_texts)
    held = await ledger.claim(3, LEASE)
    assert await ledger.settle([settlement(claim) for claim in held], worker="w") == []
    assert wrote == ["while it is read", "while it is made ready"]


async def test_a_lease_is_whole_however_long_its_claim_had_to_wait(
    database: Database, clock: VirtualClock, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease begins when the row is held: one that began when it was asked for could be over before."""
    ledger = own_ledger(database)
    await ledger.add([NewTask(kind="job", key="k")])

    def sleep(_span: float) -> None:
        clock.advance(LEASE + timedelta(seconds=1))
        other.execute("COMMIT")

    monkeypatch.setattr(group_commit, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    other.execute("BEGIN IMMEDIATE")
    [claim] = await ledger.claim(1, LEASE)
    assert claim.task.lease_until == clock.now() + LEASE
