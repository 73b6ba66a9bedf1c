"""Cancelling in the caller's own transaction."""

import pytest

from redrive import Redrive
from redrive.core.states import State
from redrive.errors import UsageError
from redrive.testing import temporary_url
from tests.ledgers.homes import ADA, Home
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


def test_a_lane_that_was_never_opened_says_so() -> None:
    """Without an event loop the table cannot be checked, so it must have been before."""
    lane = Redrive(temporary_url()).adopt(FLAGS.table)
    with pytest.raises(UsageError, match=r"await app\.open\(\)"):
        lane.cancel_sync([1], actor="ada", within=None)
