"""What an operation will do next, and about when: from the rate that it may have, and from the pace at which its tasks end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from redrive.core.operation import ALL_NOW, Course, FateTally, OperationState, Ramp
from redrive.core.operation_ahead import ahead, ends_a_second, takes, time_left

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
