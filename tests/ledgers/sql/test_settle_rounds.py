"""Tables that count their rounds: the count is raised by the settlement that writes done, and by nothing else."""

from typing import Any

import pytest
from sqlalchemy import Connection, text

from redrive.core import jitter
from redrive.core.backoff import Exponential
from redrive.core.decide import decide
from redrive.core.durations import ZERO, minutes, seconds
from redrive.core.outcome import Cancelled, Done, LeaseExpired, Outcome, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import LedgerTable, Words
from redrive.errors import TableError
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ports import Return
from redrive.testing import VirtualClock
from tests.ledgers.homes import ADA, LEASE, PERMANENT, TRANSIENT, execute

LETTERS = LedgerTable(
    "letters",
    key="name",
    id="id",
    words=Words(waiting="pending", done="sent", dead="failed", cancelled="closed"),
    due="send_at",
    count="sent_count",
    counts="done",
    last_error="last_error",
    updated_at="updated_at",
)
CREATE = {
    "sqlite": "CREATE TABLE letters (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, status TEXT NOT NULL DEFAULT 'pending',"
    " send_at DATETIME, sent_count INTEGER NOT NULL DEFAULT 0, sent_max INTEGER NOT NULL DEFAULT 3, last_error TEXT,"
    " updated_at DATETIME)",
    "postgres": "CREATE TABLE letters (id bigserial PRIMARY KEY, name text NOT NULL UNIQUE, status text NOT NULL DEFAULT 'pending',"
    " send_at timestamptz, sent_count integer NOT NULL DEFAULT 0, sent_max integer NOT NULL DEFAULT 3, last_error text,"
    " updated_at timestamptz)",
}
POLICY = Policy(Exponential(seconds(2), seconds(60)), attempts=999_999, jitter=jitter.none, name="letters")


@pytest.fixture
async def letters(database: Database, store: str) -> SqlLedger:
    """A table of letters with one letter, as its owner would make and adopt it."""
    await execute(database, [CREATE[store]])
    try:
        await open_ledger(database, LETTERS)
    except TableError as error:
        await execute(database, error.migration)
    await execute(database, ["INSERT INTO letters (name) VALUES ('a')"])
    return await open_ledger(database, LETTERS)


async def run(ledger: SqlLedger, outcome: Outcome) -> None:
    """Claim the one due letter and settle it."""
    [claim] = await ledger.claim(9, LEASE)
    assert await ledger.settle([decide(claim, outcome, POLICY)], worker="w") == []


async def row(ledger: SqlLedger) -> dict[str, Any]:
    def look(connection: Connection) -> dict[str, Any]:
        return dict(connection.execute(text("SELECT * FROM letters")).one()._mapping)

    return await ledger.database.read(look)


@pytest.mark.parametrize(
    ("outcome", "word", "count"),
    [
        (Done(), "sent", 1),
        (TRANSIENT, "pending", 0),
        (Snoozed(seconds(1), "later"), "pending", 0),
        (Released(), "pending", 0),
        (PERMANENT, "failed", 0),
        (Cancelled(), "closed", 0),
    ],
    ids=["done", "failed", "snoozed", "released", "dead", "cancelled"],
)
async def test_only_done_counts(letters: SqlLedger, outcome: Outcome, word: str, count: int) -> None:
    """Of all outcomes only done raises the count."""
    await run(letters, outcome)
    found = await row(letters)
    assert (found["status"], found["sent_count"]) == (word, count)


async def test_a_lost_worker_counts_nothing(letters: SqlLedger, clock: VirtualClock) -> None:
    """However often its worker is lost, the row keeps its count, waits again and never dies of it."""
    for _ in range(5):
        [claim] = await letters.claim(1, LEASE)
        clock.advance(LEASE + seconds(1))
        [lost] = await letters.reclaim(9, LEASE)
        assert await letters.settle([decide(lost, LeaseExpired(), POLICY)], worker="keeper") == []
        found = await row(letters)
        assert (found["status"], found["sent_count"]) == ("pending", 0)
        clock.advance(seconds(2))
    assert [one.outcome for one in await letters.attempts(claim.task.id)] == ["lease_expired"] * 5


async def test_backoff_grows_with_the_rounds(letters: SqlLedger, clock: VirtualClock) -> None:
    """A failure waits as long as the rounds say: 2 s before the first, 4 s after one, 8 s after two."""
    for rounds in range(3):
        began = clock.now()
        await run(letters, TRANSIENT)
        task = await letters.get_by_key("a")
        assert task is not None
        assert (task.failures, task.due_at) == (rounds, began + seconds(2 * 2**rounds))
        clock.advance(seconds(60))
        await run(letters, Done())
        await letters.return_([Return(id=task.id, failures=0, delay=ZERO)], ADA)


async def test_a_return_keeps_the_larger_count(letters: SqlLedger, clock: VirtualClock) -> None:
    """One who forgets the count does not set it back, one who knows better raises it."""
    await run(letters, Done())
    task = await letters.get_by_key("a")
    assert task is not None
    for given, expected in ((0, 1), (7, 7)):
        assert await letters.return_([Return(id=task.id, failures=given, delay=minutes(1))], ADA) == [task.id]
        assert (await row(letters))["sent_count"] == expected
        clock.advance(minutes(1))
        [claim] = await letters.claim(1, LEASE)
        assert (claim.task.failures, claim.task.payload["sent_max"]) == (expected, 3)
        await letters.settle([decide(claim, PERMANENT, POLICY)], worker="w")
    found = await letters.get_by_key("a")
    assert found is not None
    assert (found.state, found.failures) == (State.DEAD, 7)
