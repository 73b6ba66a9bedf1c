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


def a_try(after: timedelta, took: timedelta, state: State, *, failed: bool = True, **more: object) -> RecordedTry:
    return RecordedTry(started_at=START + after, ended_at=START + after + took, state=state, failed=failed, **more)  # type: ignore[arg-type]


MINUTE_ONE = int(START.timestamp()) // 60


def test_tasks_that_died_go_on_under_a_larger_budget() -> None:
    """Each further try is taken to fail like the last one, for as long; what is assumed is counted over all tasks."""
    tries = [a_try(ZERO, seconds(40), State.WAITING), a_try(seconds(100), seconds(40), State.DEAD)]
    test = replayed(
        Policy(Fixed(minutes(1)), attempts=4, jitter=jitter.none),
        RecordedTask(key="a", tries=tries),
        RecordedTask(key="b", tries=tries),
    )
    assert (test.tasks, test.tasks_assumed, test.tries_assumed) == (2, 2, 4)
    assert (test.would.tries, test.would.deaths, test.deaths_at_least) == (8, 2, 0)
    assert (test.happened.tries, test.happened.deaths) == (4, 2)
    assert (test.would.waited, test.happened.waited) == (minutes(6), minutes(2))
    assert test.would.load.minutes == {MINUTE_ONE + at: 2 for at in (0, 1, 3, 5)}
    assert test.happened.load.minutes == {MINUTE_ONE + at: 2 for at in (0, 1)}


def test_tries_after_a_death_are_not_made() -> None:
    """A smaller budget gives up before what is on record, also before tasks that went well later; both are counted over all tasks."""
    tries = [
        a_try(ZERO, ZERO, State.WAITING),
        a_try(minutes(1), ZERO, State.WAITING),
        a_try(minutes(2), ZERO, State.DONE, failed=False),
    ]
    dead = [*tries[:2], a_try(minutes(2), ZERO, State.DEAD)]
    test = replayed(
        Policy(Fixed(minutes(1)), attempts=1, jitter=jitter.none),
        *(RecordedTask(key="a", tries=one) for one in (tries, tries, dead)),
    )
    assert (test.tasks, test.tries_not_made, test.tasks_cut, test.deaths_at_least) == (3, 6, 2, 3)
    assert (test.would.tries, test.would.deaths, test.would.waited) == (3, 3, ZERO)


def test_what_had_not_ended_is_open() -> None:
    """Only what is on record is replayed: the wait behind the last try is not, be it a failure or a snooze; one between tries is."""
    open_after_failure = [a_try(ZERO, ZERO, State.WAITING, delay=minutes(5))]
    snoozed = [
        a_try(ZERO, ZERO, State.WAITING, failed=False, delay=minutes(5)),
        a_try(minutes(5), ZERO, State.WAITING, failed=False, delay=minutes(7)),
    ]
    test = replayed(
        Policy(Fixed(minutes(1)), attempts=9, jitter=jitter.none),
        RecordedTask(key="a", tries=open_after_failure),
        RecordedTask(key="b", tries=snoozed),
    )
    assert (test.tasks_open, test.would.deaths, test.would.tries) == (2, 0, 3)
    assert test.would.waited == minutes(5)
    assert test.would.load.minutes == {MINUTE_ONE: 2, MINUTE_ONE + 5: 1}


def test_a_deadline_ends_a_replay() -> None:
    """A try that would begin at the deadline is not made, counted from the first try; so it is with those that are assumed."""
    tries = [
        a_try(ZERO, ZERO, State.WAITING),
        a_try(minutes(9), ZERO, State.WAITING),
        a_try(minutes(18), ZERO, State.DEAD),
    ]
    policy = Policy(Fixed(minutes(1)), attempts=9, jitter=jitter.none, deadline=minutes(2))
    test = replayed(policy, RecordedTask(key="a", tries=tries))
    assert (test.would.tries, test.tries_not_made, test.deaths_at_least) == (2, 1, 1)
    slow = replayed(policy, RecordedTask(key="a", tries=[a_try(ZERO, seconds(61), State.WAITING), tries[1]]))
    assert slow.would.tries == 1
    assumed = replayed(
        Policy(Fixed(minutes(1)), attempts=9, jitter=jitter.none, deadline=seconds(150)),
        RecordedTask(key="a", tries=[a_try(ZERO, ZERO, State.DEAD)]),
    )
    assert (assumed.would.tries, assumed.tries_assumed, assumed.would.waited) == (3, 2, minutes(2))


def test_assumed_waits_are_those_of_the_task() -> None:
    """Jitter is drawn from the key: the waits that are assumed are those that the task would have had."""
    policy = Policy(Fixed(minutes(1)), attempts=4, jitter=jitter.full)
    test = replayed(policy, RecordedTask(key="a", tries=[a_try(ZERO, ZERO, State.DEAD)]))
    assert test.would.waited == policy.delay(1, "a") + policy.delay(2, "a") + policy.delay(3, "a")
    assert test.would.waited != policy.delay(1, "b") + policy.delay(2, "b") + policy.delay(3, "b")
