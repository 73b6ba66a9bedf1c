"""Adding on PostgreSQL: what a task costs that is added alone, as an endpoint does."""

import asyncio

import pytest
from sqlalchemy import Connection, event, text

from redrive.core.durations import hours
from redrive.core.task import Added, NewTask
from redrive.errors import KeyTakenError, LedgerAwayError
from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.database import Database

PLANS = text(
    "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%INTO redrive_task%'"
)
CUSTOM_PLANS_AT_FIRST = 5
"""So many plans PostgreSQL makes of a statement for just what is asked, before it compares them with one for anything."""


@pytest.fixture
def store() -> str:
    return "postgres"


async def test_a_task_that_is_added_alone_is_one_statement(real_time_database: Database) -> None:
    """The task and the counter of its minute are one statement, which commits by itself."""
    ledger = own_ledger(real_time_database)
    seen: list[str] = []

    def listened(connection: Connection) -> list[Added]:
        event.listen(connection, "before_cursor_execute", lambda *args: seen.append(args[2]))
        return ledger._insert_lone(connection, [NewTask(kind="job", key="k")])  # type: ignore[return-value]

    [one] = await real_time_database.statement(listened)
    assert one.new
    assert len(seen) == 1
    counted = text("SELECT sum(added) FROM redrive_minute")
    assert await real_time_database.read(lambda connection: connection.execute(counted).scalar()) == 1


async def test_callers_at_once_answer_for_themselves(real_time_database: Database) -> None:
    """Tasks that are added at once share a statement; whose key is taken is refused, and costs nobody else the answer."""
    ledger = own_ledger(real_time_database)
    await ledger.add([NewTask(kind="mail", key="taken")])
    tasks = [
        NewTask(kind="job", key="a", payload=1),
        NewTask(kind="job", key="taken"),
        NewTask(kind="job", key="a", payload=2),
        NewTask(kind="job", key="b"),
    ]
    answers = await asyncio.gather(*(ledger.add([task]) for task in tasks), return_exceptions=True)
    [a], taken, [again], [b] = answers  # type: ignore[misc]
    assert (a.new, b.new) == (True, True)
    assert (again.id, again.new, again.same_payload) == (a.id, False, False)
    assert isinstance(taken, KeyTakenError)
    counted = text("SELECT sum(added) FROM redrive_minute")
    assert await real_time_database.read(lambda connection: connection.execute(counted).scalar()) == 3


async def test_a_task_that_is_stored_is_added_though_nobody_hears(
    real_time_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement follows the commit: where it fails the task is there, and so is the answer."""
    ledger = own_ledger(real_time_database)
    asked: list[str] = []

    def away(_connection: Connection, name: str, **_how: bool) -> None:
        asked.append(name)
        raise LedgerAwayError("gone")

    monkeypatch.setattr(real_time_database, "announce", away)
    [one] = await ledger.add([NewTask(kind="job", key="k")])
    assert one.new
    assert asked == ["redrive_task"]
    await ledger.add([NewTask(kind="job", key="later", delay=hours(1))])
    assert asked == ["redrive_task"], "what is due later is found in time"


@pytest.mark.parametrize("amount", [1, 3])
async def test_adding_is_planned_once(real_time_database: Database, amount: int) -> None:
    """However few tasks are added, PostgreSQL keeps the plan: to make one takes longer than to insert a row."""
    ledger = own_ledger(real_time_database)
    for number in range(2 * CUSTOM_PLANS_AT_FIRST):
        await ledger.add([NewTask(kind="job", key=f"{number}-{place}", delay=hours(1)) for place in range(amount)])
    inserts = {"insert": "%INSERT INTO redrive_task %ON CONFLICT%"}
    made = await real_time_database.statement(lambda connection: connection.execute(PLANS, inserts).all())
    assert (CUSTOM_PLANS_AT_FIRST, CUSTOM_PLANS_AT_FIRST) in [tuple(one) for one in made]
