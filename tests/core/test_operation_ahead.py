"""What an operation will do next, and about when: from the rate that it may have, and from the pace at which its tasks end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from redrive.core.operation import ALL_NOW, Course, FateTally, OperationState, Ramp
from redrive.core.operation_ahead import FORECAST_MAX, Ahead, ahead, ends_a_second, takes, time_left

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
RUNNING = Course(state=OperationState.RUNNING, ramp=Ramp(), step=3, in_step=100)
TALLY = FateTally(total=1318, released=131, done=88, failed=4)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def test_what_it_will_do_next_in_words():
    """The steps to come, the rest and the end, each in a line."""
    assert [one.does for one in ahead(RUNNING, TALLY, NOW)] == [
        "Waits for 39 that are out",
        "Releases the last 1,187, 20 a second",
        "Reports what failed again, and ends",
    ]
    halted = ahead(replace(RUNNING, state=OperationState.HALTED), TALLY, NOW)
    assert [one.does for one in halted] == [
        "39 that are out run on",
        "Does not release any of the 1,187 tasks that are left",
    ]
    assert ahead(replace(RUNNING, state=OperationState.DONE), replace(TALLY, total=92, released=92), NOW) == []


def test_when_each_line_is_through():
    """By the slower of rate and pace; one line behind the other."""
    waits, rest, ends = ahead(RUNNING, TALLY, NOW, pace=2.0)
    assert (waits.by, rest.by, ends.by) == (after(39 / 2), after(39 / 2 + 1187 / 2), None)
    _, fast, _ = ahead(RUNNING, TALLY, NOW, pace=39.0)
    assert fast.by == after(1 + 1187 / 20)
    first, *steps = ahead(
        replace(RUNNING, step=1, in_step=5), replace(TALLY, released=6, done=5, failed=0), NOW, pace=5
    )
    assert [first.by, *(one.by for one in steps[:3])] == [after(0.2), after(5.2), after(25.2), after(25.2 + 1187 / 5)]


def test_without_a_pace_only_the_rate_tells():
    """Nothing has ended lately: the rest takes at least as long as the rate says, and without a rate nobody knows."""
    waits, rest, _ = ahead(RUNNING, TALLY, NOW)
    assert waits.by is None
    assert (rest.by, rest.at_the_earliest) == (after(1187 / 20), True)
    assert ahead(replace(RUNNING, ramp=ALL_NOW, step=0), TALLY, NOW)[1].by is None
    assert time_left(RUNNING, TALLY, None) is None
    assert takes(10**9, Ramp(), 1e-9) is None


def test_time_left_is_of_operations_that_run():
    """Out first, then what is left; one that is paused, or through, has none."""
    assert time_left(RUNNING, TALLY, 20.0) == timedelta(seconds=39 / 20 + 1187 / 20)
    assert time_left(replace(RUNNING, state=OperationState.PAUSED), TALLY, 20.0) is None
    assert time_left(RUNNING, FateTally(total=1, released=1, done=1), 20.0) is None


def test_the_pace_is_that_of_the_last_minute():
    """How many ended, by the time since the first of them; two ends tell nothing, and old ones do not count."""
    recent = [NOW - timedelta(seconds=at) for at in (1, 5, 10)]
    assert ends_a_second(recent, NOW) == 0.3
    assert ends_a_second([*recent, NOW - timedelta(seconds=61)], NOW) == 0.3
    assert ends_a_second(recent[:2], NOW) is None
    assert ends_a_second([NOW] * 3, NOW) == 3
    assert ends_a_second([NOW - timedelta(minutes=1)] * 3, NOW) == 3 / 60
    assert ends_a_second([NOW + timedelta(seconds=1)] * 3, NOW) is None


ONE_OUT = FateTally(total=2, released=1)
ENDS = Ahead(does="Reports what failed again, and ends", means="those stay dead, each with its new cause")


@pytest.mark.parametrize(
    ("state", "tally", "lines"),
    [
        (
            OperationState.GATHERING,
            FateTally(total=1318),
            [("Stores its set: 1,318 so far", "then it begins with the first step")],
        ),
        (
            OperationState.UNAPPROVED,
            FateTally(total=7),
            [("Waits for another person's approval", "nothing has been released")],
        ),
        (
            OperationState.PAUSED,
            ONE_OUT,
            [
                ("1 that is out runs on", "what was released is not taken back"),
                ("Does not release the one task that is left", "until somebody resumes it or gives it back"),
            ],
        ),
        (
            OperationState.HALTED,
            TALLY,
            [
                ("39 that are out run on", "what was released is not taken back"),
                (
                    "Does not release any of the 1,187 tasks that are left",
                    "until somebody resumes it or gives them back",
                ),
            ],
        ),
        (
            OperationState.PAUSED,
            FateTally(total=1, released=1, done=1),
            [("Releases nothing: none are left", "resume it, and it ends")],
        ),
        (OperationState.GIVEN_BACK, ONE_OUT, [("1 that is out runs on", "it releases nothing more")]),
        (OperationState.DONE, FateTally(total=1, released=1, done=1), []),
    ],
)
def test_each_state_says_what_it_will_do(state, tally, lines):
    """What is out, what is not released, and what a person can do about it."""
    told = ahead(replace(RUNNING, state=state), tally, NOW, pace=1.0)
    assert told == [Ahead(does=does, means=means) for does, means in lines]


def test_a_run_tells_each_of_its_steps():
    """What is out first, then what is missing of this step and the steps to come, then the rest, each with what it waits for."""
    course = Course(state=OperationState.RUNNING, ramp=Ramp(), step=1, in_step=2)
    tally = FateTally(total=1318, released=6, done=5)
    out = "each is done, dead again, or waits for a second try"
    step = "when the step before has ended"
    assert Ramp().steps == (1, 5, 25, 100)
    assert ahead(course, tally, NOW) == [
        Ahead(does="Waits for 1 that is out", means=out),
        Ahead(does="Releases 3 of step 2", means=step),
        Ahead(does="Releases 25 of step 3", means=step),
        Ahead(does="Releases 100 of step 4", means=step),
        Ahead(
            does="Releases then the last 1,184, 20 a second",
            by=NOW + timedelta(seconds=1184 / 20),
            at_the_earliest=True,
        ),
        ENDS,
    ]
    assert ahead(course, replace(tally, released=11, done=5), NOW)[0] == Ahead(
        does="Waits for 6 that are out", means=out
    )
    whole = replace(course, in_step=5)
    assert [one.does for one in ahead(whole, replace(tally, total=12), NOW)] == [
        "Waits for 1 that is out",
        "Releases 6 of step 3",
        "Reports what failed again, and ends",
    ]


def test_a_forecast_of_more_than_a_year_is_none():
    """By the pace or by the rate: whichever is too slow. A year itself is still told."""
    year = int(FORECAST_MAX.total_seconds())
    fast, slow = Ramp(rate=None), Ramp(rate=1, per=timedelta(days=1))
    assert takes(year, fast, 1.0) == FORECAST_MAX
    assert takes(year + 1, fast, 1.0) is None
    assert takes(365, slow, 1.0) == FORECAST_MAX
    assert takes(366, slow, 1.0) is None


def test_what_is_left_or_out_has_a_time_left():
    """As much as is there of the two; with neither, or with one that nobody can foretell, there is none."""
    assert time_left(RUNNING, FateTally(total=20), 20.0) == timedelta(seconds=1)
    assert time_left(RUNNING, FateTally(total=20, released=20), 20.0) == timedelta(seconds=1)
    assert time_left(RUNNING, FateTally(total=40, released=20), 20.0) == timedelta(seconds=2)
    far = FateTally(total=10**9 + 1, released=1)
    assert time_left(RUNNING, far, 20.0) is None
