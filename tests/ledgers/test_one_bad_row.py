"""One bad row: what cannot be read in one row is that row's failure, and costs no other row its claim, its rescue or its place."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.core.task import TaskId
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker
from redrive.errors import TableError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import columns_of
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.pages import SqlTaskPages
from redrive.ports import Filter
from tests.ledgers.homes import ADA, LEASE, PERMANENT, Home, execute, settlement

DEEP = "[" * 5_000 + "]" * 5_000
"""Deeper than Python 3.11 reads. Later ones do, and PostgreSQL stores nothing much deeper."""
LONG = '{"n": ' + "9" * 5_000 + "}"
"""A number that Python refuses to read."""

with_payload = pytest.mark.homes(lambda table: table.payload is not None)


# --- a payload that cannot be read, in every shape of table -------------------------------------------------------------


async def spoil(home: Home, id_: TaskId, payload: str) -> None:
    """Write a payload behind the ledger's back that no reader can decode."""
    column = columns_of(home.sql_table)[home.table.payload or ""]
    quote = home.database.dialect.sqlalchemy.identifier_preparer
    table, name, key = quote.format_table(home.sql_table), quote.quote(column.name), quote.quote(home.table.id_column)
    type_ = "text" if home.store == "sqlite" else column.type.compile(home.database.dialect.sqlalchemy)
    statement = text(f"UPDATE {table} SET {name} = CAST(:payload AS {type_}) WHERE {key} = :id")

    def write(connection: Connection) -> None:
        connection.execute(statement.bindparams(payload=payload, id=id_))

    await home.database.write(write)


@with_payload
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(
            DEEP, id="deep", marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="it can be read here")
        ),
        pytest.param(LONG, id="long"),
    ],
)
async def test_a_bad_row_is_claimed_beside_the_others(home: Home, payload: str) -> None:
    """A claim with one bad row holds all of its rows: the others as ever, the bad one with what is wrong with it."""
    ids = await home.put(20)
    await spoil(home, ids[7], payload)
    claims = await home.ledger.claim(20, LEASE)
    assert {claim.task.id for claim in claims} == set(ids)
    [bad] = [claim for claim in claims if claim.unreadable is not None]
    assert bad.task.id == ids[7]
    assert f"row {ids[7]} cannot be read: column {home.table.payload!r}" in (bad.unreadable or "")
    assert sorted(claim.task.payload["n"] for claim in claims if claim is not bad) == [n for n in range(20) if n != 7]
    assert len({claim.claim_id for claim in claims}) == 1
    assert await home.ledger.settle([settlement(claim) for claim in claims], worker="w1") == []


@with_payload
async def test_orphans_are_rescued_beside_a_bad_row(home: Home) -> None:
    """What was abandoned comes back though one of the rows cannot be read, and so does that one."""
    ids = await home.put(9)
    await home.ledger.claim(9, LEASE)
    await spoil(home, ids[3], DEEP)
    home.clock.advance(LEASE * 2)
    found = await home.expire()
    assert {claim.task.id for claim in found} == set(ids)
    assert all(claim.abandoned is not None for claim in found)


@with_payload
async def test_a_list_shows_what_can_be_read(home: Home) -> None:
    """A page with a bad row has all of its rows; the bad one says why its payload is missing."""
    ids = await home.put(5)
    await spoil(home, ids[2], LONG)
    page = await home.ledger.find(Filter(), limit=4)
    assert [task.id for task in page.items] == sorted(ids)[:4]
    assert page.cursor == sorted(ids)[3]
    bad = await home.ledger.get(ids[2])
    assert bad is not None
    assert bad.state is State.WAITING
    assert str(bad.payload).startswith("cannot be read: ValueError")
    shown = await SqlTaskPages(home.ledger).page(Filter(state=State.WAITING), newest_first=True)
    assert {task.id for task in shown.items} == set(ids)


@with_payload
async def test_a_bad_row_is_there_when_it_is_added_again(home: Home) -> None:
    """A key that is there is there, whatever its payload; it is not the same."""
    new = [home.new(payload={"n": 1}), home.new(payload={"n": 2})]
    added = await home.ledger.add(new)
    await spoil(home, added[0].id, DEEP)
    again = await home.ledger.add(new)
    assert [(one.id, one.new, one.same_payload) for one in again] == [
        (added[0].id, False, False),
        (added[1].id, False, True),
    ]


# --- columns that redrive does not use ----------------------------------------------------------------------------------

COLUMNS = {
    "sqlite": (
        "id INTEGER PRIMARY KEY, status TEXT NOT NULL DEFAULT 'waiting', due_at TEXT, expires_at TEXT, attempts INTEGER"
        " NOT NULL DEFAULT 0, error TEXT, lease_until TEXT, claim_id TEXT, claimed_at TEXT, data TEXT NOT NULL DEFAULT '{}',"
        " note TEXT, extra JSON, shade TEXT"
    ),
    "postgres": (
        "id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'waiting', due_at timestamptz, expires_at timestamptz,"
        " attempts integer NOT NULL DEFAULT 0, error text, lease_until timestamptz, claim_id uuid, claimed_at timestamptz,"
        " data jsonb NOT NULL DEFAULT '{}', note date, extra jsonb, shade shade, amount numeric, span timestamptz"
    ),
}
ORDERS = LedgerTable(
    "orders", payload="data", count="attempts", last_error="error", deadline="expires_at", claimed_at="claimed_at"
)
ROWS_AS_PAYLOAD = replace(ORDERS, payload=None)
SPOILT = {
    "sqlite": {"note": "CAST(x'ff' AS TEXT)", "extra": f"'{LONG}'"},
    "postgres": {"note": "'12026-01-01'", "extra": f"'{LONG}'", "span": "'12026-01-01'"},
}
"""What no driver can hand on, by column."""
ODD = {"sqlite": {}, "postgres": {"shade": "'mauve'", "amount": "repeat('9', 5000)::numeric", "span": "'infinity'"}}
"""What is odd, and can be read."""


async def opened(database: Database, store: str, table: LedgerTable = ORDERS) -> SqlLedger:
    """The table with thirty rows that wait."""
    if store == "postgres":
        await execute(database, ["CREATE TYPE shade AS ENUM ('red', 'blue')"])
    await execute(database, [f"CREATE TABLE orders ({COLUMNS[store]})"])
    try:
        await open_ledger(database, table)
    except TableError as error:
        await execute(database, error.migration)
    await execute(database, ["INSERT INTO orders DEFAULT VALUES"] * 30)
    return await open_ledger(database, table)


async def change(database: Database, store: str, id_: int, **columns: str) -> None:
    """Write SQL expressions into a row; a label of an enum is new to the application."""
    if "shade" in columns and store == "postgres":
        await execute(database, ["ALTER TYPE shade ADD VALUE IF NOT EXISTS 'mauve'"])
    given = ", ".join(f"{name} = {value}" for name, value in columns.items())
    await execute(database, [f"UPDATE orders SET {given} WHERE id = {id_}"])


async def run_all(ledger: SqlLedger, policy: Policy) -> list[Any]:
    """Work until nothing is due; the tasks whose handler was called."""
    called = []

    async def handle(task: Any) -> None:
        called.append(task)

    handlers = Handlers()
    handlers.add(make_handler(ledger.name, handle, policy))
    await Worker(ledger, handlers).run(until_idle=True)
    return called


async def test_columns_that_are_not_used_are_not_read(database: Database, store: str) -> None:
    """With a payload column nothing else is read: a claim and a rescue do not even see what is odd there."""
    ledger = await opened(database, store)
    await change(database, store, 5, **SPOILT[store])
    await change(database, store, 6, **{**ODD[store], "error": "'before'"})
    claims = await ledger.claim(30, LEASE)
    assert [claim.unreadable for claim in claims] == [None] * 30
    assert {claim.task.last_error for claim in claims} == {None, "before"}


async def test_a_worker_ends_a_bad_row_as_dead(database: Database, store: str) -> None:
    """The bad row is dead with the column and the remedy in its error, and its handler was not called; all others are done."""
    ledger = await opened(database, store, ROWS_AS_PAYLOAD)
    await change(database, store, 5, note=SPOILT[store]["note"])
    called = await run_all(ledger, Policy(retries=3, transient=Exception))
    assert {task.id for task in called} == {*range(1, 31)} - {5}
    counts = await ledger.counts()
    assert (counts[State.DONE], counts[State.DEAD]) == (29, 1)
    bad = await ledger.get(5)
    assert bad is not None
    assert bad.state is State.DEAD
    assert "row 5 cannot be read: column 'note'" in (bad.last_error or "")
    assert "Correct the row, then redrive the task" in (bad.last_error or "")
    [attempt] = await ledger.attempts(5)
    assert (attempt.outcome, attempt.error_class) == ("failed", "permanent")


async def test_a_bad_row_runs_when_it_was_corrected(database: Database, store: str) -> None:
    """Corrected and redriven, the row is one like the others."""
    ledger = await opened(database, store, ROWS_AS_PAYLOAD)
    await change(database, store, 5, **SPOILT[store])
    await run_all(ledger, Policy())
    assert await ledger.redrive([5], ADA) == [5]
    await change(database, store, 5, **dict.fromkeys(SPOILT[store], "NULL"))
    assert [task.id for task in await run_all(ledger, Policy())] == [5]


async def test_every_cell_that_can_be_read_is_shown(database: Database, store: str) -> None:
    """Of a bad row all but the bad cells are shown, and each bad cell says why."""
    ledger = await opened(database, store, ROWS_AS_PAYLOAD)
    await change(database, store, 5, **SPOILT[store])
    bad = await ledger.get(5)
    assert bad is not None
    assert {name for name, cell in bad.payload.items() if "cannot be read" in str(cell)} == set(SPOILT[store])
    assert bad.payload["data"] in ({}, "{}")
    assert len((await ledger.find(Filter())).items) == 30


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_what_is_odd_but_can_be_read_runs(database: Database, store: str) -> None:
    """A label that the enum has got since, a number of 5,000 digits and infinity are values like others."""
    ledger = await opened(database, store, ROWS_AS_PAYLOAD)
    await change(database, store, 5, **ODD[store])
    called = {task.id: task for task in await run_all(ledger, Policy())}
    assert len(called) == 30, [one.error for one in await ledger.attempts(5)]
    task = called[5]
    assert task.payload["shade"] == "mauve"
    assert len(str(task.payload["amount"])) == 5_000


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_an_endless_deadline(database: Database, store: str) -> None:
    """A deadline of infinity is compared like any other: the task runs, and one of minus infinity does not."""
    ledger = await opened(database, store)
    await change(database, store, 5, expires_at="'infinity'")
    await change(database, store, 6, expires_at="'-infinity'")
    called = await run_all(ledger, Policy(retries=3))
    assert {task.id for task in called} == {*range(1, 31)} - {6}


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_start_that_cannot_be_read_is_rescued(database: Database, store: str) -> None:
    """What is asked first of orphans, when they began, may be unreadable too: all of them come back."""
    ledger = await opened(database, store)
    await ledger.claim(30, LEASE)
    await change(database, store, 5, claimed_at="'12026-01-01'")
    await execute(database, ["UPDATE orders SET lease_until = '2001-01-01'"])
    found = await ledger.reclaim(100, LEASE)
    assert len(found) == 30
    [odd] = [claim for claim in found if claim.task.id == 5]
    assert odd.abandoned is not None
    assert odd.abandoned.claimed_at is None
    assert await ledger.settle([settlement(claim) for claim in found], worker="keeper") == []


@pytest.mark.parametrize("began", ["12026-01-01", "4713-01-01 00:00:00+00 BC", "0001-01-01 00:00:00+00", "infinity"])
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_history_beside_a_start_that_cannot_be_read(database: Database, store: str, began: str) -> None:
    """A start that somebody spoils while the task is held is left out of its history, which can be read."""
    ledger = await opened(database, store)
    claims = await ledger.claim(30, LEASE)
    await change(database, store, 5, claimed_at=f"'{began}'")
    assert await ledger.settle([settlement(claim) for claim in claims], worker="w") == []
    [odd] = await ledger.attempts(5)
    assert (odd.started_at is None) == (began != "infinity")
    [other] = await ledger.attempts(6)
    assert other.started_at is not None


async def test_the_census_lists_the_dead_beside_a_bad_row(database: Database, store: str) -> None:
    """The list of dead tasks is kept though one of them has an error, or a time of its end, that cannot be read."""
    odd = {"sqlite": {"error": "CAST(x'ff' AS TEXT)"}, "postgres": {"span": "'12026-01-01'"}}[store]
    table = ORDERS if store == "sqlite" else replace(ORDERS, ended_at="span")
    ledger = await opened(database, store, table)
    await ledger.settle([settlement(claim, PERMANENT) for claim in await ledger.claim(30, LEASE)], worker="w")
    await change(database, store, 5, **odd)
    await SqlCensus(ledger).take()
    page = await SqlTaskPages(ledger).page(Filter(state=State.DEAD))
    assert {task.id for task in page.items} == {*range(1, 31)}


NO_DATES = {"sqlite": "'2026-02-30 25:61:61'", "postgres": "'12026-01-01'"}
"""What no calendar holds: the one is no instant to SQLite, the other comes after all others in PostgreSQL."""


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("column", ["due_at", "lease_until"])
async def test_pages_beside_an_instant_that_cannot_be_read(
    database: Database, store: str, column: str, newest_first: bool
) -> None:
    """They are in the order of the ids then, from the first to the last, and every row is on one of them."""
    ledger = await opened(database, store)
    state = State.WAITING
    if column == "lease_until":
        await ledger.claim(30, LEASE)
        state = State.CLAIMED
    await change(database, store, 5, **{column: NO_DATES[store]})
    if store == "postgres":
        await change(database, store, 6, **{column: "'infinity'"})
    pages, cursor, seen = SqlTaskPages(ledger), None, []
    while True:
        page = await pages.page(Filter(state=state), cursor=cursor, limit=7, newest_first=newest_first)
        seen += [task.id for task in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    # SQLite takes any text for a lease. Where it is no instant, nobody knows whether the row is held.
    missing = {5} if (store, column) == ("sqlite", "lease_until") else set()
    assert sorted({*seen} | missing) == [*range(1, 31)]
    assert len(set(seen)) == len(seen)


async def test_an_operation_sees_where_all_stand_beside_a_bad_row(database: Database, store: str) -> None:
    """An operation that follows its tasks hears of each, though one has a time or a count that cannot be read."""
    ledger = await opened(database, store)
    await ledger.claim(10, LEASE)
    odd = {"due_at": "'12026-01-01'"} if store == "postgres" else {"attempts": "'many'"}
    await change(database, store, 5, **odd)
    standing = await database.read(ledger.standing, [*range(1, 31)])
    assert {id_: state for id_, (state, _) in standing.items()} == {
        id_: State.CLAIMED if id_ <= 10 else State.WAITING for id_ in range(1, 31)
    }


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_pages_beside_an_endless_instant(database: Database, store: str, newest_first: bool) -> None:
    """Rows that are due never, or since ever, are on one page each."""
    ledger = await opened(database, store)
    for id_ in (4, 5, 6):
        await change(database, store, id_, due_at="'infinity'")
        await change(database, store, id_ + 10, due_at="'-infinity'")
    pages, cursor, seen = SqlTaskPages(ledger), None, []
    while True:
        page = await pages.page(Filter(state=State.WAITING), cursor=cursor, limit=2, newest_first=newest_first)
        seen += [task.id for task in page.items]
        cursor = page.cursor
        if cursor is None or len(seen) > 60:
            break
    assert sorted(seen) == [*range(1, 31)]


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("instant", ["0001-01-01 00:00:00+00", "0001-01-01 00:00:01+00", "0001-06-01 00:00:00+00"])
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_pages_beside_the_first_year(database: Database, store: str, instant: str, newest_first: bool) -> None:
    """The first instant that Python knows is not minus infinity, though it is read as that: each row is on one page."""
    ledger = await opened(database, store)
    await execute(database, ["UPDATE orders SET due_at = '-infinity' WHERE id > 3"])
    await change(database, store, 7, due_at=f"'{instant}'")
    pages, cursor, seen = SqlTaskPages(ledger), None, []
    while True:
        page = await pages.page(Filter(state=State.WAITING), cursor=cursor, limit=7, newest_first=newest_first)
        seen += [task.id for task in page.items]
        cursor = page.cursor
        if cursor is None or len(seen) > 60:
            break
    assert sorted(seen) == [*range(1, 31)]


UPPER = "0B7C5A58-4F31-4C1B-9E0F-0D5A3F7F9E11"
FENCES = {
    "words": "'worker 7'", "capitals": f"'{UPPER}'", "no dashes": f"'{UPPER.replace('-', '').lower()}'", "empty": "''",
    "none": "NULL",
}  # fmt: skip


@pytest.mark.parametrize("written", FENCES.values(), ids=FENCES)
async def test_a_strangers_fence_is_rescued(database: Database, store: str, written: str) -> None:
    """A held row whose fence is not one of ours comes back too, with the others, and is settled once."""
    columns = COLUMNS[store].replace("claim_id uuid", "claim_id text").replace("shade shade", "shade text")
    await execute(database, [f"CREATE TABLE orders ({columns})"])
    try:
        await open_ledger(database, ORDERS)
    except TableError as error:
        await execute(database, error.migration)
    await execute(database, ["INSERT INTO orders DEFAULT VALUES"] * 3)
    ledger = await open_ledger(database, ORDERS)
    [ours, *_] = await ledger.claim(3, LEASE)
    await execute(database, [f"UPDATE orders SET claim_id = {written} WHERE id = 2"])
    await execute(database, ["UPDATE orders SET lease_until = '2001-01-01T00:00:00Z'"])
    found = {claim.task.id: claim for claim in await ledger.reclaim(9, LEASE)}
    assert set(found) == {1, 2, 3}
    assert found[1].claim_id == found[3].claim_id == ours.claim_id
    assert found[2].claim_id != ours.claim_id
    assert await ledger.extend(list(found.values()), LEASE) == []
    assert await ledger.settle([settlement(claim) for claim in found.values()], worker="keeper") == []
    assert [attempt.claim_id for attempt in await ledger.attempts(2)] == [found[2].claim_id]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_fence_of_bytes_is_rescued(database: Database, store: str) -> None:
    """SQLite keeps anything in a text column, bytes too."""
    ledger = await opened(database, store)
    await ledger.claim(30, LEASE)
    await execute(database, ["UPDATE orders SET claim_id = x'ff00', lease_until = '2001-01-01T00:00:00Z'"])
    found = await ledger.reclaim(99, LEASE)
    assert len(found) == 30
    assert await ledger.settle([settlement(claim) for claim in found], worker="keeper") == []


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_count_that_is_no_number(database: Database, store: str) -> None:
    """SQLite keeps text in a column of numbers: such a row is dead, and not an error in the middle of a run."""
    ledger = await opened(database, store)
    await change(database, store, 5, attempts="'many'")
    called = await run_all(ledger, Policy(retries=3))
    assert {task.id for task in called} == {*range(1, 31)} - {5}
    bad = await ledger.get(5)
    assert bad is not None
    assert bad.state is State.DEAD
    assert "column 'attempts'" in (bad.last_error or "")
