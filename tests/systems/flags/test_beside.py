"""The audit of schedules: in the commit of what it tells, field by field, and in nobody's way."""

import pytest

from redrive import State
from redrive.extend import LeaseExpired, Settlement, decide
from redrive.systems.flags.policy import POLICY

from .conftest import MINUTE, Home


async def settle(home: Home, outcome: object) -> Settlement:
    """Settle the one schedule that is due, as a worker does that dies right after the commit: no observer is told."""
    home.clock.advance(MINUTE)
    ledger = await home.flags.lane.ledger()
    [claim] = await ledger.claim(1, MINUTE)
    settlement = decide(claim, outcome, POLICY)  # type: ignore[arg-type]
    assert await ledger.settle([settlement], worker="doomed") == []
    return settlement


@pytest.mark.parametrize(("retries", "state", "action"), [(3, State.WAITING, "retried"), (0, State.DEAD, "failed")])
async def test_a_settlement_has_its_audit_row(home: Home, retries: int, state: State, action: str) -> None:
    """A failed try that is settled is in the audit, also if its process dies right after the commit."""
    made = await home.plan(max_retries=retries)
    assert (await settle(home, LeaseExpired())).state is state
    assert await home.actions(made.id) == ["created", action]
