"""Replaying recorded tries under a policy: what it keeps, what it bounds, and what it says that it assumed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Linear, Schedule
from redrive.core.backtest import TRIES_MAX, BackTest, RecordedTask, RecordedTry
from redrive.core.durations import ZERO, hours, minutes, seconds
from redrive.core.failure import ErrorClass
from redrive.core.policy import Policy
from redrive.core.states import State

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
POLICIES = st.builds(
    Policy,
    st.sampled_from(
        [
            Exponential(seconds(1), hours(1)),
            Fixed(minutes(1)),
            Linear(seconds(1), seconds(7), minutes(10)),
            Schedule([seconds(9)]),
        ]
    ),
    attempts=st.integers(1, 8),
    jitter=st.sampled_from([jitter.none, jitter.full, jitter.equal]),
    deadline=st.none() | st.sampled_from([minutes(2), hours(3)]),
)
TOOK = st.timedeltas(min_value=ZERO, max_value=seconds(30))


@st.composite
def lives(draw: st.DrawFn, policy: Policy) -> RecordedTask:
    """A task as it lives under a policy: it fails so often, for so long, then goes well unless it is dead before."""
    key, fails, took = draw(st.text("ab", min_size=1, max_size=3)), draw(st.integers(0, 9)), draw(TOOK)
    at = START + draw(st.timedeltas(min_value=ZERO, max_value=hours(1)))
    created, tries = at, list[RecordedTry]()
    for failures in range(1, fails + 2):
        done = failures == fails + 1
        fatal = not done and draw(st.integers(0, 9)) == 0
        ended = at + took
        delay = None if done or fatal or failures >= policy.failures_max else policy.delay(failures, key)
        if delay is not None and policy.deadline is not None and ended + delay >= created + policy.deadline:
            delay = None
        state = State.DONE if done else State.DEAD if delay is None else State.WAITING
        tries.append(
            RecordedTry(
                started_at=at, ended_at=ended, state=state, failed=not done, delay=delay,
                error_class=None if done else ErrorClass.PERMANENT if fatal else ErrorClass.TRANSIENT,
            )
        )  # fmt: skip
        if delay is None:
            break
        at = ended + delay
    return RecordedTask(key=key, tries=tries)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Policy, list[RecordedTask]]:
    """A policy, and tasks that lived under it."""
    policy = draw(POLICIES)
    return policy, draw(st.lists(lives(policy), max_size=5))


def replayed(policy: Policy, *tasks: RecordedTask) -> BackTest:
    """What it comes to."""
    test = BackTest(policy)
    test.take(tasks)
    return test


@given(history=histories())
def test_the_policy_that_was_in_force_gives_what_happened(history: tuple[Policy, list[RecordedTask]]):
    """The same tries at the same times, the same waits, the same deaths; nothing is assumed."""
    policy, tasks = history
    test = replayed(policy, *tasks)
    assert test.would == test.happened
    assert (test.tasks_assumed, test.tries_assumed, test.tries_not_made, test.tasks_cut) == (0, 0, 0, 0)
    assert test.deaths_at_least == test.happened.deaths


@given(history=histories(), other=POLICIES)
def test_every_try_is_accounted_for(history: tuple[Policy, list[RecordedTask]], other: Policy):
    """Those that would have been made are those that were, without those left out, and with those that are assumed."""
    test = replayed(other, *history[1])
    assert test.would.tries == test.happened.tries - test.tries_not_made + test.tries_assumed
    assert test.would.tries == test.would.load.minutes.total()
    assert test.happened.tries == test.happened.load.minutes.total()
    assert test.deaths_at_least + test.tasks_assumed == test.would.deaths
    assert test.would.deaths <= test.tasks


@given(history=histories(), other=POLICIES)
def test_the_order_of_tasks_does_not_matter(history: tuple[Policy, list[RecordedTask]], other: Policy):
    """However they are read, one by one or together."""
    together, apart = replayed(other, *history[1]), BackTest(other)
    for task in reversed(history[1]):
        apart.take([task])
    assert apart == together


@given(history=histories(), attempts=st.integers(1, 8))
def test_a_larger_budget_never_kills_more(history: tuple[Policy, list[RecordedTask]], attempts: int):
    """And never makes fewer tries."""
    few, more = (replayed(Policy(Fixed(ZERO), attempts=one), *history[1]) for one in (attempts, attempts + 1))
    assert more.deaths_at_least <= few.deaths_at_least
    assert more.would.tries >= few.would.tries


def task(
    *states: State, error_class: ErrorClass = ErrorClass.TRANSIENT, floor: timedelta | None = None
) -> RecordedTask:
    """A task whose tries took a second each and were a minute apart."""
    tries = [
        RecordedTry(
            started_at=START + minutes(number), ended_at=START + minutes(number) + seconds(1), state=state,
            failed=state is not State.DONE, error_class=None if state is State.DONE else error_class, floor=floor,
        )
        for number, state in enumerate(states)
    ]  # fmt: skip
    return RecordedTask(key="a", tries=tries)


W, DONE, DEAD = State.WAITING, State.DONE, State.DEAD
PLAIN = Policy(Fixed(seconds(10)), attempts=3, jitter=jitter.none)


def test_what_would_have_been_given_up_before_it_went_well_is_counted():
    """Its later tries are not made."""
    test = replayed(PLAIN, task(W, W, W, DONE))
    assert (test.would.tries, test.would.deaths, test.tasks_cut, test.tries_not_made) == (3, 1, 1, 1)
    assert (test.happened.deaths, test.would.waited, test.happened.waited) == (0, seconds(20), seconds(59 * 3))


def test_tries_that_never_happened_are_taken_to_fail_and_said_to_be():
    """A death by a spent budget may not have been one; one by an error that is never tried again is one."""
    test = replayed(PLAIN, task(DEAD), task(DEAD, error_class=ErrorClass.PERMANENT))
    assert (test.would.tries, test.would.deaths, test.deaths_at_least) == (4, 2, 1)
    assert (test.tries_assumed, test.tasks_assumed) == (2, 1)


def test_what_is_not_at_its_end_is_replayed_as_far_as_it_is_known():
    """Neither dead nor tried again."""
    test = replayed(PLAIN, task(W, W))
    assert (test.tasks_open, test.would.tries, test.would.deaths, test.would.waited) == (1, 2, 0, seconds(10))
    assert replayed(PLAIN, task(W, W, W)).would.deaths == 1


def test_what_a_destination_asked_for_holds_under_every_policy():
    """A wait is never shorter than a Retry-After, up to the policy's own limit."""
    assert replayed(PLAIN, task(W, DONE, floor=minutes(5))).would.waited == minutes(5)


def test_a_failure_that_was_not_charged_is_not_charged_again():
    """Its own wait stays."""
    spared = RecordedTry(started_at=START, ended_at=START, state=W, failed=False, delay=seconds(7))
    once = replayed(Policy(attempts=1), RecordedTask(key="a", tries=[spared, *task(DONE).tries]))
    assert (once.would.tries, once.would.deaths, once.would.waited) == (2, 0, seconds(7))


def test_a_policy_without_an_end_is_cut():
    """Nobody waits for a million tries of each task."""
    test = replayed(Policy(Fixed(ZERO), attempts=900_000), task(DEAD))
    assert test.tries_assumed == TRIES_MAX


@pytest.mark.parametrize("before", [1, 2])
def test_failures_from_before_count(before: int):
    """Of a task whose first tries are older than what is read."""
    test = replayed(PLAIN, RecordedTask(key="a", tries=task(W, W, W).tries, failures_before=before))
    assert (test.would.tries, test.would.deaths) == (3 - before, 1)
