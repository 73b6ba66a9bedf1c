"""What a redrive operation does next, and why: a pure function over a table of states."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.operation import (
    ALL_NOW,
    ENDED,
    TRANSITIONS,
    Course,
    Fate,
    FateTally,
    Finish,
    Halt,
    OperationAct,
    OperationState,
    Ramp,
    Release,
    Rest,
    Wait,
    after_release,
    check_act,
    decide_next,
    fate_of,
    let_go_on,
    read_ramp,
    read_share,
    read_steps,
)
from redrive.core.states import State
from redrive.errors import TransitionError, UsageError

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
RUNNING = Course(state=OperationState.RUNNING, ramp=Ramp())


def walked(*, fails, total=10_000, ramp=None, seconds_max=100_000):
    """Carry an operation on; of each task `fails(n)` says whether it fails again. What was released by then, and the last word."""
    course, tally, now = replace(RUNNING, ramp=ramp or Ramp()), FateTally(total=total), NOW
    released_at = []
    for _ in range(seconds_max):
        match decide_next(course, tally, now):
            case Release(amount, stepped, _):
                released_at += [now] * amount
                course = after_release(stepped, amount, now)
                tally = replace(tally, released=tally.released + amount)
            case Wait(_, until) if until is not None:
                now = until
            case Wait():
                failed = sum(fails(number) for number in range(tally.released - tally.out, tally.released))
                tally = replace(tally, failed=tally.failed + failed, done=tally.done + tally.out - failed)
            case last:
                return released_at, tally, last
    raise AssertionError("it does not end")


def test_every_change_of_state_is_in_the_table():
    """What the table lists is allowed, whatever else is refused, and nothing leaves an end."""
    for act, before, after in product(OperationAct, OperationState, OperationState):
        if (before, after) in TRANSITIONS[act]:
            assert before not in ENDED
            check_act(act, before, after)
        else:
            with pytest.raises(TransitionError, match="the operation is"):
                check_act(act, before, after)


def test_a_cause_that_is_not_mended_costs_at_most_six_tries():
    """The brake stops after the first step that fails: of 10,000 dead tasks at most six run again."""
    released, tally, last = walked(fails=lambda number: True)
    assert isinstance(last, Halt)
    assert len(released) == tally.released <= 6
    assert last.says == "it stopped by itself: the first task released failed again, and the limit is 10%"


def test_a_first_task_that_works_lets_five_more_through():
    """Where only the first one works, the second step is the last."""
    released, _, last = walked(fails=lambda number: number > 0)
    assert isinstance(last, Halt)
    assert len(released) == 6


def test_a_mended_cause_brings_all_back_and_no_second_exceeds_the_rate():
    """All come back, and no second of the way sees more than the rate and 5 %."""
    released, tally, last = walked(fails=lambda number: False, total=2000)
    assert (tally.done, type(last)) == (2000, Finish)
    assert _most_in_a_second(released) <= 21


@given(rate=st.integers(1, 5000), late_ms=st.lists(st.integers(0, 300), min_size=50, max_size=50))
def test_no_second_exceeds_the_rate_whenever_the_carrier_comes(rate, late_ms):
    """However late or early somebody looks, any second has at most the rate and 5 %, or a single task."""
    course, now, released = replace(RUNNING, ramp=read_ramp("", rate, 1.0)), NOW, []
    for late in late_ms:
        match decide_next(course, FateTally(total=10**6), now):
            case Release(amount, stepped, _):
                released += [now] * amount
                course = after_release(stepped, amount, now)
            case _:
                pass
        now += timedelta(milliseconds=late)
    assert _most_in_a_second(released) <= max(1, rate * 1.05)


def _most_in_a_second(released):
    most = start = 0
    for end, at in enumerate(released):
        while at - released[start] >= timedelta(seconds=1):
            start += 1
        most = max(most, end - start + 1)
    return most


def test_a_step_waits_for_the_one_before():
    """Nothing of the next step is released while one task of this step has not ended."""
    course = replace(RUNNING, step=1, in_step=5)
    out = FateTally(total=100, released=6, done=5)
    assert decide_next(course, out, NOW) == Wait("waits for the last 1 of step 2")
    released = decide_next(course, replace(out, done=6), NOW)
    assert isinstance(released, Release)
    assert (released.course.step, released.says) == (2, "releases 1 of step 3")


def test_the_rest_waits_where_nothing_ends():
    """Without workers nothing ends: only so many are out, so that the brake would still see them."""
    course = replace(RUNNING, step=4)
    full = FateTally(total=10_000, released=331, done=131)
    assert decide_next(course, full, NOW) == Wait("waits: 200 are out, and have not ended yet")
    assert isinstance(decide_next(course, replace(full, done=132), NOW), Release)


def test_whoever_lets_it_go_on_knows_what_failed_before():
    """After a resume the brake looks at what was released since, and at what was still out."""
    course = replace(RUNNING, state=OperationState.HALTED, step=1, in_step=5)
    tally = FateTally(total=100, released=6, failed=4, done=1)
    course = let_go_on(course, tally)
    assert isinstance(decide_next(course, tally, NOW), Wait)
    assert isinstance(decide_next(course, replace(tally, failed=5), NOW), Halt)
    assert isinstance(decide_next(course, replace(tally, done=2), NOW), Release)


def test_all_now_has_neither_steps_nor_brake():
    """One flag gives the plain act: everything, as fast as it goes."""
    ramp = read_ramp(all_now=True)
    assert ramp == ALL_NOW
    course = replace(RUNNING, ramp=ramp)
    asked = decide_next(course, FateTally(total=10_000, released=5000, failed=5000), NOW)
    assert isinstance(asked, Release)
    assert asked.amount == 500
    with pytest.raises(UsageError, match="all now has no steps"):
        read_ramp(rate="5/s", all_now=True)


@pytest.mark.parametrize("state", [state for state in OperationState if state is not OperationState.RUNNING])
def test_only_what_runs_releases(state):
    """A paused, halted, unapproved or ended operation does nothing."""
    assert decide_next(replace(RUNNING, state=state), FateTally(total=5), NOW) == Rest()


@pytest.mark.parametrize(
    ("state", "failures", "fate"),
    [
        (State.WAITING, 0, Fate.RELEASED),
        (State.CLAIMED, 0, Fate.RELEASED),
        (State.WAITING, 1, Fate.FAILED),
        (State.CLAIMED, 2, Fate.FAILED),
        (State.DEAD, 0, Fate.FAILED),
        (State.DONE, 3, Fate.DONE),
        (State.CANCELLED, 0, Fate.ENDED),
        (None, 0, Fate.ENDED),
    ],
)
def test_what_became_of_a_released_task(state, failures, fate):
    """Dead again or waiting for a second try is failed again; a row that is gone has ended."""
    assert fate_of(state, failures) is fate


def test_ramps_as_people_write_them():
    """Steps, a rate and a share, with defaults that make sense."""
    assert read_ramp() == Ramp(steps=(1, 5, 25, 100), rate=20, halt=0.1)
    assert read_ramp("1, 10", "100/m", "25%") == Ramp(steps=(1, 10), rate=100, per=timedelta(minutes=1), halt=0.25)
    assert read_steps("") == ()
    assert read_share("0.5") == 0.5


@pytest.mark.parametrize("steps", ["0", "1,x", "-1", [True], [10**9], [1] * 21])
def test_steps_that_are_none(steps):
    """What is not a list of numbers is refused with a sentence."""
    with pytest.raises(UsageError, match="steps are up to 20 numbers"):
        read_steps(steps)


@pytest.mark.parametrize("share", ["110%", "x", -0.1, True, "nan"])
def test_shares_that_are_none(share):
    """What is not a share is refused with a sentence."""
    with pytest.raises(UsageError, match="halt is a share"):
        read_share(share)
