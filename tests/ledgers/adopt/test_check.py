"""Adopting other people's tables: every misfit is named, and the printed migration mends it."""

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from redrive.core.states import State
from redrive.core.table import Counts, LedgerTable, Words
from redrive.core.task import NewTask
from redrive.errors import TableError
from redrive.ledgers.adopt.check import adopt, examine
from redrive.ledgers.adopt.guess import Guess, as_code, corrected, guess
from redrive.ledgers.adopt.notices import notices
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.sql.pages import SqlTaskPages
from redrive.ports import Filter, Return
from tests.ledgers.homes import ADA, LEASE, PERMANENT, TRANSIENT, execute, settlement
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
    assert not [statement for statement in caught.value.migration if "UPDATE" in statement.upper()]
    return caught.value


async def mended(database: Database, error: TableError, table: LedgerTable = THINGS) -> None:
    """Run the printed migration; then the table is adopted as the error says, and works."""
    _, found = await database.read(examine, table)
    await execute(database, error.migration)
    ledger = await open_ledger(database, replace(table, **found.mapping))
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
    """Seconds or milliseconds since 1970 are no time of their own; the migration turns them into instants, or adds a column."""
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
    if store == "sqlite":
        assert any("name due='redrive_due' in the LedgerTable" in problem for problem in error.problems)
        return
    task = await (await open_ledger(database, THINGS)).get_by_key("a")
    assert task is not None
    assert task.due_at is not None
    assert task.due_at.timestamp() == 1893452400


async def fitted(database: Database, table: LedgerTable = THINGS) -> SqlLedger:
    """The table with its migration."""
    await execute(database, (await problems(database, table)).migration)
    return await open_ledger(database, table)


async def test_a_word_that_nobody_mapped(database: Database, store: str, caplog: pytest.LogCaptureFixture) -> None:
    """Such rows are not ours: they are left alone, stop no start, break no list, and are named in the log."""
    await make(database, store)
    await execute(
        database,
        [
            "INSERT INTO things (key, body, status) VALUES ('a', '1', 'limbo')",
            "INSERT INTO things (key, body) VALUES ('b', '2')",
        ],
    )
    with caplog.at_level(logging.WARNING, logger="redrive"):
        ledger = await fitted(database)
    assert [said for said in caplog.messages if "rows whose 'status' is 'limbo' are left alone" in said]
    assert [task.key for task in (await ledger.find(Filter())).items] == ["b"]
    assert await ledger.get_by_key("a") is None
    assert sum((await ledger.counts()).values()) == 1
    assert (await SqlTaskPages(ledger).page(Filter())).items == (await ledger.find(Filter())).items
    [claim] = await ledger.claim(9, LEASE)
    assert claim.task.key == "b"
    assert await ledger.redrive([1, 2], ADA) == []
    words = await database.read(
        lambda connection: list(connection.exec_driver_sql("SELECT status FROM things WHERE key = 'a'").scalars())
    )
    assert words == ["limbo"]


async def test_no_status_and_no_kind(database: Database, store: str, caplog: pytest.LogCaptureFixture) -> None:
    """A row without a status is left alone, one without a kind is never claimed: both are said clearly."""
    await make(database, store, status="text", kind="text")
    await execute(
        database,
        [
            "INSERT INTO things (key, body, status, kind) VALUES ('a', '1', NULL, 'mail')",
            "INSERT INTO things (key, body, status, kind) VALUES ('b', '1', 'waiting', NULL)",
            "INSERT INTO things (key, body, status, kind) VALUES ('c', '1', 'waiting', 'mail')",
        ],
    )
    with caplog.at_level(logging.WARNING, logger="redrive"):
        ledger = await fitted(database, replace(THINGS, kind="kind"))
    assert [said for said in caplog.messages if "rows without a 'status' (NULL) are left alone" in said]
    assert [said for said in caplog.messages if "waiting rows without a 'kind' (NULL) are never claimed" in said]
    assert [claim.task.key for claim in await ledger.claim(9, LEASE)] == ["c"]
    assert [task.key for task in (await ledger.find(Filter())).items] == ["b", "c"]


NUMBERS = Words(waiting="0", claimed="1", done="2", dead="3", cancelled="-1")


async def test_states_that_are_numbers(database: Database, store: str) -> None:
    """An integer column may hold the states: every verb writes and reads its numbers."""
    await make(database, store, status="smallint NOT NULL DEFAULT 0")
    wrong = await problems(database)
    assert any("'status' (status) is" in problem and "cannot hold 'waiting'" in problem for problem in wrong.problems)
    table = replace(THINGS, words=NUMBERS)
    await execute(database, ["INSERT INTO things (key, body, status) VALUES ('stranger', '1', 77)"])
    ledger = await fitted(database, table)
    added = await ledger.add([NewTask(kind="things", key=key) for key in "abcd"])
    a, b, c, d = (one.id for one in added)
    claims = {claim.task.id: claim for claim in await ledger.claim(3, LEASE)}
    assert set(claims) == {a, b, c}
    ends = [settlement(claims[a]), settlement(claims[b], PERMANENT), settlement(claims[c], TRANSIENT)]
    assert await ledger.settle(ends, worker="w") == []
    assert await ledger.cancel([d], ADA) == [d]
    states = {task.id: task.state for task in (await ledger.find(Filter())).items}
    assert states == {a: State.DONE, b: State.DEAD, c: State.WAITING, d: State.CANCELLED}
    assert await ledger.redrive([b], ADA) == [b]
    assert await ledger.return_([Return(id=a, failures=1, delay=timedelta(0))], ADA) == [a]
    assert {claim.task.id for claim in await ledger.claim(9, LEASE)} == {a, b}
    kept = await database.read(
        lambda connection: connection.exec_driver_sql("SELECT status FROM things WHERE key = 'stranger'").scalar_one()
    )
    assert kept == 77


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
    if store == "sqlite":
        assert any("name due='redrive_due' in the LedgerTable" in problem for problem in error.problems)
        await execute(database, error.migration)
        ledger = await open_ledger(database, replace(THINGS, due="redrive_due"))
        assert [claim.task.key for claim in await ledger.claim(9, LEASE)] == ["a"]
        return
    await mended(database, error)
    task = await (await open_ledger(database, THINGS)).get_by_key("a")
    assert task is not None
    assert task.due_at is not None
    assert task.due_at.isoformat() == "2029-12-31T23:00:00+00:00"


async def test_rows_from_before_the_status_are_left_alone(database: Database, store: str) -> None:
    """A table of mails that were sent long ago gets a status, and none of them is sent again; the problem says so."""
    await make(database, store, status=None)
    insert = "INSERT INTO things (key, body) VALUES ('{}', '1')"
    await execute(database, [insert.format("old")])
    error = await problems(database)
    assert any("will have none and be left alone, those to try need 'waiting'" in problem for problem in error.problems)
    await execute(database, error.migration)
    ledger = await open_ledger(database, THINGS)
    assert await ledger.claim(9, LEASE) == []
    await execute(database, [insert.format("new")])
    assert [claim.task.key for claim in await ledger.claim(9, LEASE)] == (["new"] if store == "postgres" else [])


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


async def test_a_composite_key_is_guessed_as_one_column(database: Database, store: str) -> None:
    """No part of a primary key of several columns is unique, so none is the key: the column that the migration adds is id and key."""
    await execute(database, [f"CREATE TABLE things ({SHARED[store]})"])
    await execute(database, [f"INSERT INTO things (tenant, id) VALUES ({tenant}, 1)" for tenant in (1, 2)])
    table = (await database.read(guess, "things")).table
    assert (table.key, table.id) == ("redrive_id", None)
    error = await problems(database, table)
    await execute(database, error.migration)
    ledger = await open_ledger(database, table)
    claims = await ledger.claim(9, LEASE)
    for claim in claims:
        found = await ledger.get_by_key(claim.task.key)
        assert found is not None
        assert found.id == claim.task.id
    assert len({claim.task.key for claim in claims}) == 2


async def test_a_table_in_which_nothing_is_unique(database: Database, store: str) -> None:
    """PostgreSQL gives its rows an id; SQLite cannot, so that is said, and no column is added that nobody could fill."""
    await execute(database, [f"CREATE TABLE things ({SHARED[store].replace(', PRIMARY KEY (tenant, id)', '').replace(' id ', ' number ')})"])  # fmt: skip
    await execute(database, ["INSERT INTO things (tenant, number) VALUES (1, 1)"] * 2)
    table = (await database.read(guess, "things")).table
    assert (table.key, table.id) == ("id", None)
    error = await problems(database, table)
    if store == "sqlite":
        assert any("no column of it is unique" in problem and "id INTEGER PRIMARY KEY" in problem for problem in error.problems)  # fmt: skip
        assert not any("ADD COLUMN" in statement for statement in error.migration)
        return
    await execute(database, error.migration)
    ledger = await open_ledger(database, table)
    assert len({claim.task.id for claim in await ledger.claim(9, LEASE)}) == 2


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
    return (await database.read(guess, table.name, table.schema)).table


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
    found = (await database.read(guess, "things")).table
    assert found.words == Words(waiting="queued", claimed="running", done="succeeded", dead="discarded")


async def test_guessing_a_table_that_is_not_there(database: Database) -> None:
    """There is nothing to guess from."""
    with pytest.raises(TableError, match="no such table"):
        await database.read(guess, LEGACY.name)


async def guess_of(database: Database, *statements: str, name: str = "emails") -> Guess:
    await execute(database, statements)
    return await database.read(guess, name)


INSTANT = {"sqlite": "text", "postgres": "timestamptz"}


@pytest.mark.parametrize("rows", [0, 1])
async def test_a_text_that_is_not_json_is_no_payload(database: Database, store: str, rows: int) -> None:
    """The body of an e-mail is not JSON, or is not known to be: it is not guessed, and an empty table leaves a question."""
    found = await guess_of(
        database,
        "CREATE TABLE emails (id integer PRIMARY KEY, recipient text NOT NULL, body text NOT NULL,"
        " status text NOT NULL DEFAULT 'pending', attempts integer NOT NULL DEFAULT 0,"
        f" next_attempt_at {INSTANT[store]}, last_error text)",
        *["INSERT INTO emails (id, recipient, body) VALUES (1, 'ada@example.com', 'Hello')"] * rows,
    )
    assert found.table.payload is None
    assert bool([doubt for doubt in found.doubts if "payload='body', if it holds JSON" in doubt]) is (rows == 0)
    assert (found.table.due, found.table.count, found.table.last_error) == ("next_attempt_at", "attempts", "last_error")


async def test_a_guess_finds_what_is_called_otherwise(database: Database, store: str) -> None:
    """Primary keys of any name, `send_after`, `max_tries`, a check of the words, and names in camel case."""
    found = await guess_of(
        database,
        "CREATE TABLE emails (mail_no integer PRIMARY KEY, id integer, status text NOT NULL CHECK (status IN ('New', 'Sent', 'Failed')),"
        f' tries integer NOT NULL DEFAULT 0, max_tries integer, send_after {INSTANT[store]}, "lastError" text, data json)',
    )
    table = found.table
    assert (table.key, table.id_column, table.due, table.count_max) == ("mail_no", "mail_no", "send_after", "max_tries")
    assert (table.last_error, table.payload) == ("lastError", "data")
    assert table.words == Words(waiting="New", done="Sent", dead="Failed")


async def test_numbers_are_not_guessed(database: Database, store: str) -> None:
    """What 0, 1 and 2 mean nobody can know: the question says which there are."""
    found = await guess_of(
        database,
        f"CREATE TABLE emails (id integer PRIMARY KEY, state integer NOT NULL, tries integer NOT NULL, due_at {INSTANT[store]})",
        "INSERT INTO emails (id, state, tries) VALUES (1, 0, 0), (2, 5, 1)",
    )
    assert [doubt for doubt in found.doubts if "the numbers of 'state' are yours to name" in doubt and "0, 5" in doubt]


async def test_a_mapping_is_corrected(database: Database, store: str) -> None:
    """Columns that are not there are replaced by those that are, and a payload that is not JSON is none."""
    await guess_of(
        database,
        "CREATE TABLE emails (no integer PRIMARY KEY, body text NOT NULL, status text NOT NULL,"
        f" attempts integer NOT NULL DEFAULT 0, next_attempt_at {INSTANT[store]})",
        "INSERT INTO emails (no, body, status) VALUES (1, 'Hello', 'waiting')",
    )
    declared = LedgerTable("emails", payload="body", count="failures", due="due")
    right = await database.read(corrected, declared, {})
    assert right == LedgerTable("emails", key="no", payload=None, count="attempts", due="next_attempt_at")


async def test_a_payload_that_changes_is_said(database: Database, store: str) -> None:
    """JSON columns of SQLite and jsonb of PostgreSQL keep numbers in a way of their own; text columns do not."""
    for type_, said in (
        ("json", store == "sqlite"),
        ("jsonb" if store == "postgres" else "JSON", True),
        ("text", False),
    ):
        await make(database, store, body=f"{type_} NOT NULL")
        table, _ = await database.read(examine, THINGS)
        assert bool(await database.read(notices, THINGS, table)) is said
        await execute(database, ["DROP TABLE things"])
