"""Settling on PostgreSQL: what a table of somebody else's may do to the one statement."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, event

from redrive import Fixed, Policy, jitter
from redrive.core.decide import decide
from redrive.core.outcome import Cancelled, Done, Failed, Outcome, Released, Snoozed
from redrive.core.task import ClaimLocked, NewTask
from redrive.errors import UsageError
from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.database import Database
from tests.ledgers.homes import LEASE, execute, settlement

SUPPRESS = (
    "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "CREATE TRIGGER keep BEFORE UPDATE ON redrive_task FOR EACH ROW WHEN (OLD.key = 'kept' AND NEW.state = 'done')"
    " EXECUTE FUNCTION keep()",
)


@pytest.fixture
def store() -> str:
    return "postgres"


async def test_a_group_is_one_statement(real_time_database: Database) -> None:
    """As long as nothing is wrong a group is settled, and extended, in one statement each."""
    ledger = own_ledger(real_time_database)
    await ledger.add([NewTask(kind="job", key=f"k{number}") for number in range(5)])
    claims = await ledger.claim(5, LEASE)
    settled = [settlement(claim) for claim in claims]
    seen: list[str] = []

    def listened(connection: Connection) -> tuple[list[object], list[object]]:
        event.listen(connection, "before_cursor_execute", lambda *args: seen.append(args[2]))
        return ledger._extend(connection, claims, LEASE), ledger._settle(connection, settled, "w")

    assert await real_time_database.statement(listened) == ([], [])
    assert len(seen) == 2


FAILED: list[Outcome] = [Failed(ValueError("odd")), Failed(KeyError("even"))]


@pytest.mark.parametrize(
    "outcomes",
    [
        [Done(), *FAILED, Snoozed(timedelta(hours=1)), Released()],
        [Done()],
        [Snoozed(timedelta(hours=1))],
        [Released()],
        [Cancelled("not needed")],
        FAILED[:1],
    ],
    ids=["of each sort", "done", "snoozed", "released", "cancelled", "failed"],
)
async def test_each_task_of_a_group_gets_its_own_end(real_time_database: Database, outcomes: list[Outcome]) -> None:
    """What several tasks or all came to travels once, and still each row and each try tells its own story, whatever stands beside it."""
    ledger = own_ledger(real_time_database)
    await ledger.add([NewTask(kind="job", key=f"k{number}") for number in range(24)])
    claims = [*await ledger.claim(14, LEASE), *await ledger.claim(10, LEASE)]
    wanted = [outcomes[at % len(outcomes)] for at in range(len(claims))]
    policy = Policy(Fixed(timedelta(minutes=1)), jitter=jitter.full)  # a wait of its own for each
    group = [
        decide(claim, outcome, policy, elapsed=timedelta(milliseconds=at))
        for at, (claim, outcome) in enumerate(zip(claims, wanted, strict=True))
    ]
    assert await ledger.settle(group, worker="w") == []
    for one in group:
        task = await ledger.get(one.claim.task.id)
        assert task is not None
        [attempt] = await ledger.attempts(one.claim.task.id)
        assert (task.state, task.failures, task.last_error) == (one.state, one.failures, one.error)
        assert (attempt.outcome, attempt.delay, attempt.error) == (one.outcome, one.delay, one.error)
        assert (attempt.claim_id, attempt.duration) == (one.claim.claim_id, one.elapsed)
        explained = None if one.explanation is None else one.explanation.as_json()
        assert attempt.explanation == explained


async def test_a_table_that_suppresses_updates_is_told(real_time_database: Database) -> None:
    """A row that a trigger keeps from being changed is an error with its remedy, and not a row that is locked for ever."""
    ledger = own_ledger(real_time_database)
    await execute(real_time_database, SUPPRESS)
    await ledger.add([NewTask(kind="job", key="kept")])
    [kept] = await ledger.claim(1, LEASE)
    assert await ledger.settle([settlement(kept)], worker="w") == [ClaimLocked(kept)]
    with pytest.raises(UsageError, match="a trigger, a rule or a row policy"):
        await ledger.settle([settlement(kept)], worker="w", wait=timedelta(seconds=1))
    await ledger.add([NewTask(kind="job", key="fine")])
    [fine] = await ledger.claim(1, LEASE)
    with pytest.raises(UsageError, match="a trigger, a rule or a row policy"):
        await ledger.settle([settlement(kept), settlement(fine)], worker="w")
    assert await ledger.settled_by([kept, fine], "w") == [fine], "whoever asks learns what was written all the same"
