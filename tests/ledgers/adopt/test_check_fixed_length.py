"""Columns of a fixed length, which PostgreSQL fills up with blanks: the blanks are no part of an id, a key, a kind or a word."""

from datetime import timedelta

import pytest

from redrive.core.durations import hours
from redrive.core.states import State
from redrive.core.table import LedgerTable, Words
from redrive.core.task import NewTask
from redrive.errors import TableError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ports import Filter
from redrive.testing import VirtualClock
from tests.ledgers.homes import ADA, LEASE, PERMANENT, execute, settlement

LETTERS = LedgerTable(
    "letters", kind="kind", payload="body", words=Words(claimed="held", cancelled="off"), ended_at="ended_at"
)


@pytest.fixture
async def ledger(database: Database, store: str) -> SqlLedger:
    """A table whose id, kind, status and fence are of a fixed length."""
    instant = "TEXT" if store == "sqlite" else "timestamptz"
    await execute(
        database,
        [
            "CREATE TABLE letters (id char(12) PRIMARY KEY, kind char(10) NOT NULL, status char(10) NOT NULL, body text NOT NULL,"
            f" due_at {instant}, failures integer NOT NULL DEFAULT 0, ended_at {instant}, claim_id char(40))"
        ],
    )
    try:
        await open_ledger(database, LETTERS)
    except TableError as error:
        await execute(database, error.migration)
    return await open_ledger(database, LETTERS)


async def test_blanks_are_no_part_of_an_id(ledger: SqlLedger, database: Database, clock: VirtualClock) -> None:
    """Claimed, extended, settled, rescued, redriven and pruned, each finds its row."""
    await execute(database, ["INSERT INTO letters (id, kind, status, body) VALUES ('a', 'post', 'waiting', '{}')"])
    added = await ledger.add([NewTask(kind="post", key=key) for key in ("a", "b", "c")])
    assert [(one.id, one.new) for one in added] == [("a", False), ("b", True), ("c", True)]
    assert await ledger.open_kinds() == ["post"]
    claims = {claim.task.id: claim for claim in await ledger.claim(9, LEASE, kinds=["post"])}
    assert set(claims) == {"a", "b", "c"}
    assert {claim.task.kind for claim in claims.values()} == {"post"}
    assert await ledger.extend(list(claims.values()), LEASE) == []
    ends = [settlement(claims["a"]), settlement(claims["b"], PERMANENT)]
    assert await ledger.settle(ends, worker="w") == []
    clock.advance(hours(1))
    [lost] = await ledger.reclaim(9, LEASE)
    assert (lost.task.id, lost.claim_id) == ("c", claims["c"].claim_id)
    assert await ledger.settle([settlement(lost)], worker="keeper") == []
    states = {task.id: task.state for task in (await ledger.find(Filter())).items}
    assert states == {"a": State.DONE, "b": State.DEAD, "c": State.DONE}
    assert len(await ledger.attempts("c")) == 1
    assert await ledger.redrive(["b"], ADA) == ["b"]
    page = await ledger.find(Filter(), limit=1)
    assert (page.cursor, (await ledger.find(Filter(), cursor=page.cursor)).items[0].id) == ("a", "b")
    assert await ledger.prune([State.DONE], timedelta(0)) == 2
    assert await ledger.get("a") is None
