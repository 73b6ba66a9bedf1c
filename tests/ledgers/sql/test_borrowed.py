"""A plain connection of `sqlite3` or `psycopg` takes our statements into its owner's transaction, and stays as it was."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from sqlalchemy import make_url

from redrive.core.task import NewTask
from redrive.errors import KeyTakenError, UsageError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.borrowed import is_plain
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ports import Actor

A = NewTask(kind="print", key="a", payload={"n": 1})


def connect(url: str, *, autocommit: bool = False) -> Any:
    """A plain connection, as its owner would have it: with other rows and another JSON than the driver's own."""
    if url.startswith("sqlite"):
        plain: Any = sqlite3.connect(str(make_url(url).database), isolation_level=None if autocommit else "")
        plain.row_factory = sqlite3.Row
    else:
        plain = psycopg.connect(
            make_url(url).set(drivername="postgresql").render_as_string(hide_password=False),
            autocommit=autocommit, row_factory=dict_row, cursor_factory=psycopg.ClientCursor,
        )  # fmt: skip
        set_json_loads(lambda text: "the owner's", plain)
    return plain


@pytest.fixture
async def ledger(database: Database) -> SqlLedger:
    """redrive's own table."""
    return await open_ledger(database)


@pytest.fixture
def plain(url: str, ledger: SqlLedger) -> Iterator[Any]:
    """The caller's own connection."""
    with closing(connect(url)) as made:
        yield made


@pytest.mark.parametrize("commit", [True, False])
async def test_a_task_is_there_if_the_owner_commits(ledger: SqlLedger, plain: Any, commit: bool) -> None:
    """And only then; adding it twice is one task with one payload."""
    [added] = ledger.add_sync([A], within=plain)
    [again] = ledger.add_sync([A], within=plain)
    assert (added.new, again.new, again.id, again.same_payload) == (True, False, added.id, True)
    plain.commit() if commit else plain.rollback()
    assert (await ledger.get_by_key("a") is not None) is commit


async def test_a_savepoint_takes_back_only_its_own(ledger: SqlLedger, plain: Any) -> None:
    """The transaction goes on as its owner wishes."""
    ledger.add_sync([A], within=plain)
    plain.execute("SAVEPOINT inner_one")
    ledger.add_sync([NewTask(kind="print", key="b")], within=plain)
    plain.execute("ROLLBACK TO SAVEPOINT inner_one")
    plain.commit()
    assert (await ledger.get_by_key("a") is not None, await ledger.get_by_key("b")) == (True, None)


async def test_what_commits_each_statement_commits_all_of_it_or_nothing(ledger: SqlLedger, url: str) -> None:
    """Without a transaction of the owner's, an addition is one commit."""
    with closing(connect(url, autocommit=True)) as plain:
        ledger.add_sync([A], within=plain)
        assert await ledger.get_by_key("a") is not None
        with pytest.raises(KeyTakenError):
            ledger.add_sync([NewTask(kind="print", key="b"), NewTask(kind="other", key="a")], within=plain)
        assert await ledger.get_by_key("b") is None
        plain.execute("BEGIN")
        ledger.add_sync([NewTask(kind="print", key="c")], within=plain)
        plain.execute("ROLLBACK")
        assert await ledger.get_by_key("c") is None


async def test_the_connection_stays_as_its_owner_made_it(ledger: SqlLedger, plain: Any, store: str) -> None:
    """Rows, functions and JSON are the owner's afterwards as before."""
    if store == "sqlite":
        plain.create_function("regexp", 2, lambda pattern, text: 7)
    ledger.add_sync([A], within=plain)
    asked = "SELECT 1 AS one, 'b' REGEXP 'a' AS two" if store == "sqlite" else """SELECT 1 AS one, '{}'::jsonb AS two"""
    row = plain.execute(asked).fetchone()
    assert (row["one"], row["two"]) == (1, 7 if store == "sqlite" else "the owner's")


async def test_cancelling_joins_it_too(ledger: SqlLedger, plain: Any) -> None:
    """What is cancelled there is cancelled when the owner commits."""
    [added] = await ledger.add([A])
    assert ledger.cancel_sync([added.id], Actor(name="ada"), within=plain) == [added.id]
    plain.rollback()
    task = await ledger.get_by_key("a")
    assert task is not None
    assert task.state == "waiting"


def test_other_connections_are_refused_by_name() -> None:
    """What we cannot use is not taken."""
    assert not is_plain(object())


async def test_async_code_may_lend_one_as_well(ledger: SqlLedger, plain: Any) -> None:
    """`add` takes what `add_sync` takes."""
    await ledger.add([A], within=plain)
    plain.commit()
    assert await ledger.get_by_key("a") is not None
    with pytest.raises(UsageError, match="a connection of sqlite3 or psycopg, not str"):
        await ledger.add([A], within="a connection")
