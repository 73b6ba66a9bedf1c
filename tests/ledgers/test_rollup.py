"""What settlements add to their minute."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.decide import Explanation, Settlement
from redrive.core.durations import seconds
from redrive.core.failure import ErrorClass
from redrive.core.histograms import TOOK, TRIES, took_bucket
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.ledgers.rollup import MEASURED, rolled_up

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
CAUSE = Explanation(ErrorClass.TRANSIENT, "default", "test", 1, 3, "retry")


def settled(
    state: State = State.DONE, outcome: str = "done", *, failures: int = 0, age: float | None = 0.0, ran: float = 0.0
) -> Settlement:
    """A settlement of a task that was stored `age` seconds before its claim."""
    created_at = None if age is None else NOON - timedelta(seconds=age)
    task = Task(id=1, key="k", kind="mail", payload=None, state=State.CLAIMED, failures=failures, created_at=created_at)
    explanation = CAUSE if outcome in ("failed", "lease_expired") else None
    claim = Claim(task, UUID(int=1), NOON)
    return Settlement(claim, outcome, state, failures, explanation=explanation, elapsed=seconds(ran))


def counted(*settlements: Settlement) -> dict[str, float]:
    """What is not zero."""
    return {name: amount for name, amount in rolled_up(settlements).items() if amount}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (settled(age=None), {"done": 1, "tries_1": 1}),
        (settled(State.DEAD, "failed"), {"dead": 1, "tries_1": 1}),
        (settled(State.CANCELLED, "cancelled"), {"cancelled": 1}),
        (settled(State.CANCELLED, "failed"), {"cancelled": 1}),
        (settled(State.WAITING, "failed"), {"retried": 1}),
        (settled(State.WAITING, "lease_expired"), {"retried": 1, "lease_expired": 1}),
        (settled(State.WAITING, "snoozed"), {"snoozed": 1}),
        (settled(State.WAITING, "released"), {"released": 1}),
    ],
    ids=lambda value: f"{value.outcome}-{value.state}" if isinstance(value, Settlement) else "",
)
def test_each_settlement_is_counted_by_its_state(one: Settlement, expected: dict[str, float]) -> None:
    """The state says what is counted; the outcome only adds what has a counter of its own."""
    assert counted(one) == expected


def test_how_long_a_task_took() -> None:
    """From when it was stored until its handler came back, not until it was written."""
    assert counted(settled(age=2.5, ran=1.0)) == {"done": 1, "tries_1": 1, took_bucket(3.5): 1, "run_seconds": 1.0}


def test_tries_of_ended_tasks() -> None:
    """The try that ended the task is counted too, and many tries share a bucket."""
    assert counted(settled(failures=1, age=None)) == {"done": 1, "tries_2": 1}
    assert counted(settled(State.DEAD, "failed", failures=99)) == {"dead": 1, "tries_more": 1}


STATES = st.sampled_from([State.DONE, State.DEAD, State.CANCELLED, State.WAITING])
SETTLED = st.builds(
    settled,
    STATES,
    st.sampled_from(["done", "failed", "snoozed", "released", "cancelled", "lease_expired"]),
    failures=st.integers(0, 10**6),
    age=st.one_of(st.none(), st.integers(0, 10**9).map(float)),
    ran=st.integers(0, 10**4).map(float),
)


@given(st.lists(SETTLED), st.lists(SETTLED))
def test_rollups_add_up(some: list[Settlement], others: list[Settlement]) -> None:
    """The rollup of two batches is the sum of theirs, and has every counter once."""
    first, second, both = rolled_up(some), rolled_up(others), rolled_up([*some, *others])
    assert set(both) == set(MEASURED)
    assert both == {name: first[name] + second[name] for name in MEASURED}
    ended = sum(one.state in (State.DONE, State.DEAD) for one in (*some, *others))
    assert sum(both[name] for name in TRIES) == ended
    assert sum(both[name] for name in TOOK) <= both["done"]
