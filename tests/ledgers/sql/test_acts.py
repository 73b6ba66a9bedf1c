"""Acts on many rows: cancelling in the caller's own transaction, and pruning kind by kind."""

import pytest
from sqlalchemy.exc import DBAPIError

from redrive import Redrive
from redrive.core.durations import ZERO
from redrive.core.outcome import Done
from redrive.core.states import State
from redrive.errors import UsageError
from redrive.ledgers.sql import acts
from redrive.testing import temporary_url
from tests.ledgers.homes import ADA, LEASE, Home, execute
from tests.ledgers.shapes import FLAGS


@pytest.mark.homes(lambda table: table.words.cancelled is not None)
@pytest.mark.parametrize("commit", [True, False])
async def test_cancelled_if_the_caller_commits(home: Home, commit: bool) -> None:
    """A waiting task is cancelled, with who did it, when the caller's transaction commits, and only then."""
    [waits] = await home.put()
    async with home.ledger.transaction() as transaction:
        changed = await transaction.connection.run_sync(
            lambda connection: home.ledger.cancel_sync([waits, waits], ADA, within=connection)
        )
        assert changed == [waits]
        if not commit:
            await transaction.connection.rollback()
    task = await home.ledger.get(waits)
    assert task is not None
    assert task.state is (State.CANCELLED if commit else State.WAITING)
    assert [deed.actor for deed in await home.ledger.deeds(waits)] == (["ada"] if commit else [])


@pytest.mark.homes(lambda table: table.words.cancelled is not None)
async def test_what_is_held_is_left_alone(home: Home) -> None:
    """A task that somebody runs just now is not cancelled."""
    [held] = await home.put()
    await home.claim_one()
    async with home.ledger.transaction() as transaction:
        changed = await transaction.connection.run_sync(
            lambda connection: home.ledger.cancel_sync([held], ADA, within=connection)
        )
    assert changed == []
    assert (await home.ledger.get(held)).state is State.CLAIMED  # type: ignore[union-attr]


REFUSING = {
    "sqlite": ["CREATE TRIGGER keep BEFORE DELETE ON redrive_task WHEN old.kind = 'kept' BEGIN SELECT RAISE(ABORT, 'by law'); END"],
    "postgres": [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''by law''; END'",
        "CREATE TRIGGER keep BEFORE DELETE ON redrive_task FOR EACH ROW WHEN (old.kind = 'kept') EXECUTE FUNCTION keep()",
    ],
}  # fmt: skip


WILLING = {"sqlite": ["DROP TRIGGER keep"], "postgres": ["DROP FUNCTION keep CASCADE"]}


@pytest.mark.homes(lambda table: table.name == "redrive_task")
async def test_old_tasks_go_kind_by_kind(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all kinds, in several looks and up to the limit; a kind whose rows nobody may delete keeps no other from it, and is told."""
    monkeypatch.setattr(acts, "KINDS_PER_LOOK_MAX", 2)
    kinds = ["kept", "later", "mail", "print", "scan"]
    for kind in kinds:
        await home.ledger.add([home.new(kind=kind), home.new(kind=kind)])
    for claim in await home.ledger.claim(10, LEASE):
        await home.settle(claim, Done())
    await home.ledger.add([home.new(kind="mail"), home.new(kind="waits")])
    await execute(home.database, REFUSING[home.store])
    try:
        gone = [await home.ledger.prune([State.DEAD, State.DONE], ZERO, limit=3) for _ in range(4)]
        assert sum(gone) == 8
        assert max(gone) == 3
        with pytest.raises(DBAPIError, match="by law"):
            await home.ledger.prune([State.DEAD, State.DONE], ZERO, limit=3)
    finally:  # the tables are those of the next test, too
        await execute(home.database, WILLING[home.store])
    counts = await home.ledger.counts()
    assert (counts[State.DONE], counts[State.WAITING]) == (2, 2)


def test_a_lane_that_was_never_opened_says_so() -> None:
    """Without an event loop the table cannot be checked, so it must have been before."""
    lane = Redrive(temporary_url()).adopt(FLAGS.table)
    with pytest.raises(UsageError, match=r"await app\.open\(\)"):
        lane.cancel_sync([1], actor="ada", within=None)
