"""Settlements to observe, made by the real `decide`."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.jitter import none
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Claim, Task

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POLICY = Policy(Fixed(timedelta(seconds=10)), retries=2, jitter=none)


@pytest.fixture
def make_claim():
    def make(
        *, kind="mail", failures=0, late=timedelta(seconds=2), abandoned=None, payload=None, trace=None, alone=False
    ):
        task = Task(
            id=7,
            key="mail-7",
            kind=kind,
            payload=payload,
            state=State.CLAIMED,
            failures=failures,
            due_at=NOW - late,
            trace=trace,
        )
        claim = Claim(task=task, claim_id=UUID(int=1), claimed_at=NOW, abandoned=abandoned)
        return claim.alone() if alone else claim

    return make


@pytest.fixture
def make_settlement(make_claim):
    def make(outcome, *, elapsed=timedelta(seconds=0.5), **options):
        return decide(make_claim(**options), outcome, POLICY, elapsed=elapsed)

    return make
