"""Adopting other people's tables: every misfit is named, and the printed migration mends it."""

from dataclasses import replace
from typing import Any

import pytest

from redrive.core.states import State
from redrive.core.table import Counts, LedgerTable, Words
from redrive.core.task import NewTask
from redrive.errors import TableError
from redrive.ledgers.adopt.check import adopt
from redrive.ledgers.adopt.guess import as_code, guess
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ports import Filter
from tests.ledgers.homes import LEASE, execute, settlement
from tests.ledgers.shapes import EVENTS, FLAGS, FOREIGN, JOBS, LEGACY, Shape

COLUMNS = {
    "sqlite": {
        "id": "INTEGER PRIMARY KEY", "key": "TEXT NOT NULL UNIQUE", "body": "TEXT NOT NULL",
        "status": "TEXT NOT NULL DEFAULT 'waiting'", "due_at": "TEXT", "failures": "INTEGER NOT NULL DEFAULT 0",
        "lease_until": "TEXT", "claim_id": "TEXT",
    },
    "postgres": {
        "id": "bigserial PRIMARY KEY", "key": "text NOT NULL UNIQUE", "body": "jsonb NOT NULL",
        "status": "text NOT NULL DEFAULT 'waiting'", "due_at": "timestamptz", "failures": "integer NOT NULL DEFAULT 0",
        "lease_until": "timestamptz", "claim_id": "uuid",
    },
}  # fmt: skip
THINGS = LedgerTable("things", key="key", id="id", payload="body")


async def make(database: Database, store: str, **changed: str | None) -> None:
    """A table that fits but for the columns that are given otherwise, or left out."""
    columns = {name: type_ for name, type_ in (COLUMNS[store] | changed).items() if type_ is not None}
    await execute(database, [f"CREATE TABLE things ({', '.join(f'{n} {t}' for n, t in columns.items())})"])


async def problems(database: Database, table: LedgerTable = THINGS) -> TableError:
    """The error that adopting raises."""
    with pytest.raises(TableError) as caught:
        await database.read(adopt, table)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    assert all(statement in str(caught.value) for statement in caught.value.migration)
    return caught.value


async def mended(database: Database, error: TableError, table: LedgerTable = THINGS) -> None:
    """Run the printed migration; then the table is adopted, and works."""
    await execute(database, error.migration)
    ledger = await open_ledger(database, table)
    [added] = await ledger.add([NewTask(kind="things", key="new")])
    assert added.id in {claim.task.id for claim in await ledger.claim(9, LEASE)}


async def test_a_missing_table(database: Database) -> None:
    """What is not there is named, and the migration makes it."""
    error = await problems(database)
    assert error.problems[0] == "there is no such table"
    assert any(statement.startswith("CREATE TABLE things") for statement in error.migration)
    await mended(database, error)


@pytest.mark.parametrize("name", ["due_at", "failures", "lease_until", "claim_id", "status"])
async def test_a_missing_column(database: Database, store: str, name: str) -> None:
    """A column that is not there is named with what it is for, and the migration adds it."""
    await make(database, store, **{name: None})
    error = await problems(database)
    assert any(f"column {name!r}" in problem and "missing" in problem for problem in error.problems)
    await mended(database, error)


async def test_missing_indexes(database: Database, store: str) -> None:
    """The three indexes are named one by one; what is there is not made again."""
    await make(database, store)
    error = await problems(database)
    assert [problem.split("'")[1] for problem in error.problems] == [
        "things_first_idx", "things_retry_idx", "things_lease_idx",
    ]  # fmt: skip
    await execute(database, error.migration[:1])
    again = await problems(database)
    assert len(again.problems) == 2
    await mended(database, again)


async def test_all_is_said_at_once(database: Database, store: str) -> None:
    """One error lists columns and indexes together, and one migration mends all."""
    await make(database, store, lease_until=None, claim_id=None, key="text NOT NULL")
    error = await problems(database)
    assert len(error.problems) == 6
    await mended(database, error)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_timestamp_without_zone(database: Database, store: str) -> None:
    """A time without a zone would change with the session; the migration reads it as UTC."""
    await make(database, store, due_at="timestamp")
    await execute(database, ["INSERT INTO things (key, body, due_at) VALUES ('a', '1', '2029-12-31 23:00')"])
    error = await problems(database)
    assert any("'due_at' (due) has no time zone" in problem for problem in error.problems)
    await mended(database, error)
    ledger = await open_ledger(database, THINGS)
    task = await ledger.get_by_key("a")
    assert task is not None
    assert task.due_at is not None
    assert task.due_at.isoformat() == "2029-12-31T23:00:00+00:00"


@pytest.mark.parametrize("written", [1893452400, 1893452400000], ids=["seconds", "milliseconds"])
async def test_an_integer_time_column(database: Database, store: str, written: int) -> None:
    """Seconds or milliseconds since 1970 are no time of their own; the migration turns them into instants."""
    await make(database, store, due_at="bigint")
    await execute(
        database,
        [
            f"INSERT INTO things (key, body, due_at) VALUES ('a', '1', {written})",
            "CREATE INDEX things_by_due ON things (due_at)",
        ],
    )
    error = await problems(database)
    assert any("must be a timestamp with zone or ISO 8601 text" in problem for problem in error.problems)
    await mended(database, error)
    task = await (await open_ledger(database, THINGS)).get_by_key("a")
    assert task is not None
    assert task.due_at is not None
    assert task.due_at.timestamp() == 1893452400


async def test_an_unknown_word(database: Database, store: str) -> None:
    """A row with a word that the mapping does not name would never be seen again; by the migration a person sees it."""
    await make(database, store)
    await execute(database, ["INSERT INTO things (key, body, status) VALUES ('a', '1', 'limbo')"])
    error = await problems(database)
    assert any("unknown status word 'limbo'" in problem for problem in error.problems)
    await mended(database, error)


async def test_a_due_time_that_must_not_be_null(database: Database, store: str) -> None:
    """What has ended has no due time, so the column must allow that; the values and indexes are kept."""
    await make(database, store, due_at=f"{COLUMNS[store]['due_at']} NOT NULL")
    await execute(
        database,
        [
            "INSERT INTO things (key, body, due_at) VALUES ('a', '1', '2029-12-31T23:00:00Z')",
            "CREATE INDEX things_by_due ON things (due_at)",
        ],
    )
    error = await problems(database)
    assert any("'due_at' (due) must allow NULL" in problem for problem in error.problems)
    await mended(database, error)
    task = await (await open_ledger(database, THINGS)).get_by_key("a")
    assert task is not None
    assert task.due_at is not None
    assert task.due_at.isoformat() == "2029-12-31T23:00:00+00:00"


@pytest.mark.parametrize("partial", [False, True])
async def test_a_key_that_is_not_unique(database: Database, store: str, partial: bool) -> None:
    """Adding is idempotent only on a unique key, and a partial index is none."""
    await make(database, store, key="text NOT NULL")
    if partial:
        await execute(database, ["CREATE UNIQUE INDEX partly ON things (key) WHERE failures = 0"])
    error = await problems(database)
    assert any("'key' (key) is not unique" in problem for problem in error.problems)
    await mended(database, error)


SHARED = {
    "sqlite": "tenant INTEGER NOT NULL, id INTEGER NOT NULL, status TEXT NOT NULL DEFAULT 'waiting', due_at TEXT,"
    " failures INTEGER NOT NULL DEFAULT 0, lease_until TEXT, claim_id TEXT, PRIMARY KEY (tenant, id)",
    "postgres": "tenant integer NOT NULL, id integer NOT NULL, status text NOT NULL DEFAULT 'waiting', due_at timestamptz,"
    " failures integer NOT NULL DEFAULT 0, lease_until timestamptz, claim_id uuid, PRIMARY KEY (tenant, id)",
}


async def test_an_id_that_is_part_of_a_key(database: Database, store: str) -> None:
    """With a primary key (tenant, id) an id means several rows: it is refused, and the way out settles each by itself."""
    await execute(database, [f"CREATE TABLE things ({SHARED[store]})"])
    await execute(database, [f"INSERT INTO things (tenant, id) VALUES ({tenant}, 1)" for tenant in (1, 2)])
    table = LedgerTable("things")
    error = await problems(database, table)
    assert any("'id' (id) is not unique, only (tenant, id) is" in problem for problem in error.problems)
    assert any("id='redrive_id'" in problem for problem in error.problems)
    assert not any("UPDATE" in statement for statement in error.migration)
    await execute(database, error.migration)
    ledger = await open_ledger(database, replace(table, id="redrive_id"))
    first, second = await ledger.claim(9, LEASE)
    assert first.task.id != second.task.id
    assert await ledger.settle([settlement(first)], worker="w") == []
    states = [(task.payload["tenant"], task.state) for task in (await ledger.find(Filter())).items]
    other = first.task.payload["tenant"] % 2 + 1
    assert sorted(states) == sorted([(first.task.payload["tenant"], State.DONE), (other, State.CLAIMED)])
    assert await ledger.settle([settlement(second)], worker="w") == []


async def test_an_id_that_is_not_unique(database: Database, store: str) -> None:
    """Without an index that says so an id is not unique, whatever the rows hold now, and a partial one says nothing."""
    await make(database, store, id="integer NOT NULL")
    table = LedgerTable("things")
    error = await problems(database, table)
    assert any("'id' (id) is not unique" in problem for problem in error.problems)
    await execute(database, error.migration)
    await open_ledger(database, table)


async def test_a_count_that_is_text(database: Database, store: str) -> None:
    """A count is a number."""
    await make(database, store, failures="text")
    error = await problems(database)
    assert any("'failures' (count) must be an integer" in problem for problem in error.problems)
    await mended(database, error)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_an_enum_without_a_word(database: Database, store: str) -> None:
    """A word that the enum does not have is named, and the migration adds it."""
    await execute(database, ["CREATE TYPE phase AS ENUM ('waiting', 'done')"])
    await make(database, store, status="phase NOT NULL DEFAULT 'waiting'")
    error = await problems(database)
    assert [problem for problem in error.problems if "enum" in problem] == ["the enum of 'status' has no word 'dead'"]
    await mended(database, error)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_text_times_without_our_function(database: Database, store: str) -> None:
    """Times in text need a function of ours on PostgreSQL; the migration makes it before the indexes."""
    await execute(database, ["DROP FUNCTION redrive_instant(text)"])
    await make(database, store, due_at="text")
    error = await problems(database)
    assert any("redrive_instant" in problem for problem in error.problems)
    await mended(database, error)


async def test_what_cannot_be_mended_is_said(database: Database, store: str) -> None:
    """An id that no statement could update by is refused without a promise."""
    await make(database, store, id="real PRIMARY KEY")
    error = await problems(database)
    assert any("'id' (id) must be an integer, a uuid or text" in problem for problem in error.problems)


async def test_adopting_changes_nothing(database: Database, store: str) -> None:
    """Looking at a table that does not fit leaves it as it was."""
    await make(database, store, lease_until=None)
    first, second = await problems(database), await problems(database)
    assert first.problems == second.problems
    assert first.migration == second.migration


# --- guessing ---------------------------------------------------------------------------------------------------------


async def guessed(database: Database, shape: Shape, store: str, rows: list[str]) -> LedgerTable:
    await execute(database, [*shape.create[store], *rows])
    table = shape.on(store)
    return await database.read(guess, table.name, table.schema)


def evaluated(code: str) -> Any:
    return eval(code, {"LedgerTable": LedgerTable, "Words": Words})


@pytest.mark.parametrize("shape", FOREIGN, ids=lambda shape: shape.name)
async def test_a_guess_can_be_pasted(database: Database, store: str, shape: Shape) -> None:
    """The printed mapping is Python that makes the mapping that was guessed."""
    found = await guessed(database, shape, store, [])
    assert evaluated(as_code(found)) == found


async def test_the_guess_of_flag_schedules(database: Database, store: str) -> None:
    """Both due columns, the count of retries and its maximum are found by their names, the words in the rows."""
    when = "'2030-01-01T00:00:00Z'"
    rows = [
        f"INSERT INTO feature_flag_schedules (flag_name, enabled, scheduled_at, status) VALUES ('f', true, {when}, '{word}')"
        for word in ("pending", "applied", "failed", "cancelled")
    ]
    found = await guessed(database, FLAGS, store, rows)
    assert (found.first_due, found.due, found.count, found.count_max) == (
        "scheduled_at", "next_retry_at", "retry_count", "max_retries",
    )  # fmt: skip
    assert found.counts is Counts.RETRIES
    assert (found.key, found.done_at, found.last_error) == ("id", "applied_at", "last_error")
    words = (found.words.waiting, found.words.done, found.words.dead, found.words.cancelled)
    assert words == ("pending", "applied", "failed", "cancelled")


async def test_the_guess_of_events_works(database: Database, store: str) -> None:
    """The guess of a webhook table, with its migration, is a ledger."""
    rows = [
        f"INSERT INTO events (idempotency_key, event_type, payload, received_at, status) VALUES ('k-{word}', 'push', '{{}}', "
        f"'2029-01-01T00:00:00Z', '{word}')"
        for word in ("pending", "processing", "completed", "failed")
    ]
    found = await guessed(database, EVENTS, store, rows)
    assert (found.key, found.id, found.kind, found.payload) == ("idempotency_key", "id", "event_type", "payload")
    assert found.words == replace(EVENTS.table.words)
    error = await problems(database, found)
    await execute(database, error.migration)
    ledger = await open_ledger(database, found)
    assert [claim.task.key for claim in await ledger.claim(9, LEASE)] == ["k-pending"]
    assert [claim.task.key for claim in await ledger.reclaim(9, LEASE)] == ["k-processing"]


async def test_the_words_of_an_enum_are_known_without_rows(database: Database, store: str) -> None:
    """An empty table tells its words by its enum, if it has one."""
    if store == "sqlite":
        found = await guessed(database, JOBS, store, [])
        assert found.words == Words()
        return
    await execute(database, ["CREATE TYPE phase AS ENUM ('queued', 'running', 'succeeded', 'discarded')"])
    await make(database, store, status="phase NOT NULL DEFAULT 'queued'")
    found = await database.read(guess, "things")
    assert found.words == Words(waiting="queued", claimed="running", done="succeeded", dead="discarded")


async def test_guessing_a_table_that_is_not_there(database: Database) -> None:
    """There is nothing to guess from."""
    with pytest.raises(TableError, match="no such table"):
        await database.read(guess, LEGACY.name)
