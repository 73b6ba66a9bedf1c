"""A preview shows the very times that deciding step by step then gives."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Linear, Schedule
from redrive.core.decide import decide
from redrive.core.durations import DURATION_MAX, days, hours, minutes, seconds
from redrive.core.outcome import Failed, LeaseExpired
from redrive.core.policy import Policy
from redrive.core.preview import TRIES_SHOWN_MAX, Try, preview
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.errors import UsageError

START = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
ZERO = timedelta(0)
BACKOFFS = [
    Exponential(seconds(1), hours(1)),
    Fixed(minutes(1)),
    Fixed(ZERO),
    Linear(seconds(1), seconds(7), minutes(10)),
    Schedule([minutes(1), minutes(5), minutes(15)]),
]
JITTERS = [
    jitter.none, jitter.full, jitter.equal, jitter.decorrelated, jitter.percent(20), jitter.additive(seconds(30)),
]  # fmt: skip
SHORT_SPANS = st.timedeltas(min_value=ZERO, max_value=hours(3))
POLICIES = st.builds(
    Policy,
    st.sampled_from(BACKOFFS),
    attempts=st.integers(min_value=1, max_value=40),
    jitter=st.sampled_from(JITTERS),
    deadline=st.none() | SHORT_SPANS,
    name=st.sampled_from(["default", "flags", "relay"]),
)


def lived(policy: Policy, key: str, outcome: object, **task: object) -> list[Try]:
    """The tries of a task that always fails, one decision after the other, time moved by hand."""
    row = Task(id=1, key=key, kind="k", payload=None, state=State.CLAIMED, created_at=START, **task)
    now, delay, tries = START, ZERO, []
    while True:
        tries.append(Try(number=row.failures + 1, at=now, delay=delay))
        settled = decide(Claim(task=row, claim_id=UUID(int=len(tries)), claimed_at=now).alone(), outcome, policy)
        if settled.state is not State.WAITING:
            return tries
        delay = settled.delay
        now += delay
        row = Task(
            id=1, key=key, kind="k", payload=None, state=State.CLAIMED, created_at=START,
            **task | {"failures": settled.failures},
        )  # fmt: skip


@given(
    POLICIES, st.text(max_size=20), st.integers(min_value=0, max_value=50), st.none() | st.integers(1, 50),
    st.none() | SHORT_SPANS, st.sampled_from([Failed(RuntimeError("boom")), LeaseExpired()]),
)  # fmt: skip
def test_what_is_shown_is_what_happens(policy, key, failures, own, left, outcome):
    """Number, time and delay of every previewed try equal what claiming and failing by hand gives."""
    task = {"failures_max": own, "deadline_at": None if left is None else START + left}
    assert preview(policy, key, START, failures=failures, **task) == lived(
        policy, key, outcome, failures=failures, **task
    )


@given(POLICIES, st.text(max_size=20))
def test_a_timeline_runs_forward_from_its_start(policy, key):
    """Tries count from one without gaps, the first at the start itself, each after the one before by its delay."""
    tries = preview(policy, key, START)
    assert tries[0] == Try(number=1, at=START, delay=ZERO)
    assert [each.number for each in tries] == list(range(1, len(tries) + 1))
    assert len(tries) <= policy.failures_max
    for before, after in pairwise(tries):
        assert after.at == before.at + after.delay
        assert policy.deadline is None or after.at < START + policy.deadline


def test_all_tries_are_shown():
    """`retries=3` shows four tries, `attempts=5` five, and a task's own number beats both."""
    assert len(preview(Policy(retries=3), "k", START)) == 4
    assert len(preview(Policy(attempts=5), "k", START)) == 5
    assert len(preview(Policy(attempts=5), "k", START, failures_max=2)) == 2
    assert len(preview(Policy(attempts=5), "k", START, failures_max=9)) == 9


def test_a_row_at_its_maximum_is_tried_once_more():
    """A task whose retries are all counted but which is still due has one try left, and it is shown."""
    [last] = preview(Policy(retries=3), "k", START, failures=3)
    assert (last.number, last.at) == (4, START)


def test_a_deadline_is_never_reached():
    """A try that would fall on the deadline itself is not shown, one just before it is."""
    policy = Policy(Fixed(minutes(1)), jitter=jitter.none, attempts=9)
    tick = timedelta(microseconds=1)
    assert len(preview(policy, "k", START, deadline_at=START + minutes(3))) == 3
    assert len(preview(policy, "k", START, deadline_at=START + minutes(3) + tick)) == 4


def test_a_preview_has_a_limit():
    """A policy of a million tries with the longest waits shows the first thousand and does not overflow."""
    policy = Policy(Fixed(DURATION_MAX), attempts=999_999, jitter=jitter.additive(DURATION_MAX))
    tries = preview(policy, "k", START)
    assert len(tries) == TRIES_SHOWN_MAX
    assert tries[-1].at > START + 999 * DURATION_MAX


def test_the_zone_of_the_start_is_kept():
    """The same instants come out in whatever zone the start was given."""
    there = timezone(timedelta(hours=5, minutes=30))
    here, moved = preview(Policy(), "k", START), preview(Policy(), "k", START.astimezone(there))
    assert moved == here
    assert all(each.at.tzinfo is there for each in moved)


def test_times_without_zone_are_refused():
    """A start or deadline without a zone is refused with the remedy."""
    naive = datetime(2026, 1, 1)
    with pytest.raises(UsageError, match=r"start must carry a time zone, such as datetime\.now\(UTC\)"):
        preview(Policy(), "k", naive)
    with pytest.raises(UsageError, match="deadline_at must carry a time zone"):
        preview(Policy(), "k", START, deadline_at=naive)


def test_keys_and_policy_names_have_timelines_of_their_own():
    """Two tasks under one policy, or one task under two, come back at different times."""
    policy = Policy(Fixed(days(1)), jitter=jitter.full)
    renamed = Policy(Fixed(days(1)), jitter=jitter.full, name="other")
    assert preview(policy, "a", START) == preview(policy, "a", START)
    assert preview(policy, "a", START)[1:] != preview(policy, "b", START)[1:]
    assert preview(policy, "a", START)[1:] != preview(renamed, "a", START)[1:]


def test_waits_behind_a_gate_that_tripped_are_longer() -> None:
    """Each so many times as long, and no try after the deadline."""
    start = datetime(2026, 1, 31, tzinfo=UTC)
    policy = Policy(Fixed(timedelta(minutes=1)), retries=5, jitter=jitter.none)
    tries = preview(policy, "k", start, stretch=4, deadline_at=start + timedelta(minutes=12))
    assert [(one.at - start, one.delay) for one in tries] == [
        (timedelta(0), timedelta(0)),
        (timedelta(minutes=4), timedelta(minutes=4)),
        (timedelta(minutes=8), timedelta(minutes=4)),
    ]


def test_a_policys_own_deadline_ends_a_preview() -> None:
    """Counted from the start, with or without one of the task's own; a try at the deadline itself is not shown."""
    policy = Policy(Fixed(minutes(1)), attempts=9, jitter=jitter.none, deadline=minutes(3))
    assert [one.at - START for one in preview(policy, "a", START)] == [ZERO, minutes(1), minutes(2)]
    nearer = preview(policy, "a", START, deadline_at=START + minutes(2))
    assert [one.at - START for one in nearer] == [ZERO, minutes(1)]
