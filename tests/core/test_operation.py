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
    brake_says,
    braking,
    check_act,
    decide_next,
    end_says,
    fate_of,
    let_go_on,
    next_slot,
    read_ramp,
    read_share,
    read_steps,
    share_words,
    slots_now,
    step_name,
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


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            lambda: read_ramp(rate="5/s", all_now=True),
            "all now has no steps, no rate and no brake: leave them out, or leave out all now",
        ),
        (
            lambda: read_steps("1,x"),
            "steps are up to 20 numbers from 1 to 1,000,000, such as 1,5,25,100, not '1,x'",
        ),
        (lambda: read_share("110%"), "halt is a share such as 10% or 0.1, at most 100%, not '110%'"),
        (
            lambda: check_act(OperationAct.RESUME, OperationState.DONE, OperationState.RUNNING),
            "the operation is done: resume is for one that is halted or paused",
        ),
    ],
)
def test_what_is_said_of_a_wrong_word(given, sentence):
    """Whole sentences, with what would be right."""
    with pytest.raises((UsageError, TransitionError)) as refused:
        given()
    assert str(refused.value) == sentence


def test_the_ends_of_the_ranges_are_accepted():
    """The longest list of the largest steps, and brakes of nothing and of all."""
    assert read_steps([1_000_000] * 20) == (1_000_000,) * 20
    assert read_steps([1]) == (1,)
    assert read_steps(" 1 ,, 5 ") == (1, 5)
    assert (read_share(0), read_share(1), read_share("100%"), read_share(" 2.5% "), read_share(None)) == (
        0.0, 1.0, 1.0, 0.025, 0.1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ramp", "interval_us", "out_max", "words"),
    [
        (Ramp(), 50_000, 200, "20 a second"),
        (Ramp(rate=3), 333_334, 100, "3 a second"),
        (Ramp(rate=1000, per=timedelta(minutes=1)), 60_000, 166, "1,000 a minute"),
        (Ramp(rate=50, per=timedelta(hours=1), steps=(500,)), 72_000_000, 500, "50 an hour"),
        (ALL_NOW, 0, float("inf"), "as fast as the database takes them"),
    ],
)
def test_a_ramp_in_numbers_and_words(ramp, interval_us, out_max, words):
    """The interval is rounded up, and never fewer may be out than the largest step."""
    assert ramp.interval == timedelta(microseconds=interval_us)
    assert ramp.out_max == out_max
    assert ramp.rate_words == words


@pytest.mark.parametrize(
    ("tally", "sentence"),
    [
        (FateTally(), "no task matched"),
        (FateTally(total=1, done=1), "the one task is through: 1 done"),
        (
            FateTally(total=1500, done=1100, failed=1, ended=2, skipped=3, unfit=394),
            "all 1,500 are through: 1,100 done, 1 failed again, 2 ended otherwise, 3 skipped, 394 left as they were",
        ),
    ],
)
def test_the_end_is_told_in_a_sentence(tally, sentence):
    """Every fate that some task met, and no other."""
    assert end_says(tally) == sentence


def test_a_tally_adds_up():
    """What was released and has not ended is out; what was neither released nor left alone is still to come."""
    tally = FateTally(total=100, released=40, done=20, failed=5, ended=3, skipped=7, unfit=2)
    assert (tally.out, tally.left) == (12, 51)


@pytest.mark.parametrize(
    ("tally", "says"),
    [
        (FateTally(total=100, released=10, failed=1), None),
        (FateTally(total=100, released=20, failed=3), "3 of 20 released tasks"),
        (FateTally(total=100, released=1, failed=1), "the first task released"),
        (FateTally(total=1, released=1, failed=1), None),
        (FateTally(total=2000, released=1001, failed=1000), "1,000 of 1,001 released tasks"),
    ],
)
def test_the_brake_says_why(tally, says):
    """Exactly its share may fail; a set of one has nothing to hold back."""
    whole = None if says is None else f"it stopped by itself: {says} failed again, and the limit is 10%"
    assert brake_says(RUNNING, tally) == whole


def test_the_brake_counts_from_where_somebody_let_it_go_on():
    """What had been released and had ended, and what had failed, is known."""
    tally = FateTally(total=100, released=50, done=30, failed=10, ended=4)
    course = let_go_on(replace(RUNNING, state=OperationState.HALTED), tally)
    assert course == replace(RUNNING, braked_at=(44, 10))
    assert braking(course, replace(tally, released=60, failed=12)) == (16, 2)


def test_words_for_steps_and_shares():
    """As pages show them."""
    assert (step_name(replace(RUNNING, step=3)), step_name(replace(RUNNING, step=4))) == ("step 4", "the rest")
    assert (share_words(0.1), share_words(0.125), share_words(1)) == ("10%", "12.5%", "100%")
    assert (RUNNING.steps, replace(RUNNING, ramp=ALL_NOW).steps, RUNNING.size) == (5, 1, 1)


def test_slots_keep_their_distance():
    """One at once, then one behind each interval; where they are closer than a loop comes round, a moment is made up for."""
    tick = timedelta(microseconds=1)
    assert next_slot(RUNNING, NOW) == NOW
    assert slots_now(RUNNING, NOW) == 1
    later = after_release(RUNNING, 3, NOW)
    assert (later.in_step, later.next_at) == (3, NOW + timedelta(milliseconds=150))
    assert after_release(replace(later, in_step=2), 1, NOW).in_step == 3
    assert slots_now(later, NOW + timedelta(milliseconds=150) - tick) == 0
    assert slots_now(later, NOW + timedelta(milliseconds=150)) == 1
    assert next_slot(later, NOW + timedelta(seconds=9)) == NOW + timedelta(seconds=9)
    for rate, before_ms, slots in ((25, 40, 2), (1000, 40, 41), (24, 0, 1)):
        fast = replace(RUNNING, ramp=Ramp(rate=rate))
        assert next_slot(fast, NOW) == NOW - timedelta(milliseconds=before_ms)
        assert slots_now(fast, NOW) == slots
    assert slots_now(replace(RUNNING, ramp=ALL_NOW), NOW) == float("inf")


@pytest.mark.parametrize(
    ("course", "tally", "expected"),
    [
        ({}, FateTally(total=100), Release(1, RUNNING, "releases 1 of step 1")),
        ({}, FateTally(), Finish("no task matched")),
        ({"step": 2}, FateTally(total=2000, released=2000, done=800), Wait("waits for the last 1,200 to end")),
        ({"in_step": 1}, FateTally(total=9999, released=1200), Wait("waits for the last 1,200 of step 1")),
        ({"step": 4}, FateTally(total=9999, released=1200), Wait("waits: 1,200 are out, and have not ended yet")),
        (
            {"next_at": NOW + timedelta(seconds=1)},
            FateTally(total=9),
            Wait("keeps to the rate", NOW + timedelta(seconds=1)),
        ),
    ],
)
def test_each_step_is_told_in_a_sentence(course, tally, expected):
    """What it does or waits for, with how many."""
    assert decide_next(replace(RUNNING, **course), tally, NOW) == expected


@pytest.mark.parametrize(
    ("total", "in_step", "out", "amount"), [(9999, 0, 0, 500), (300, 0, 0, 300), (9999, 900, 0, 100), (9999, 999, 7, 1)]
)
def test_as_many_as_fit(total, in_step, out, amount):
    """Of a step, of what is left, and of what one transaction releases: the least."""
    ramp = Ramp(steps=(1000,), rate=None)
    asked = decide_next(replace(RUNNING, ramp=ramp, in_step=in_step), FateTally(total=total, released=out), NOW)
    assert isinstance(asked, Release)
    assert (asked.amount, asked.says) == (amount, f"releases {amount:,} of step 1")
