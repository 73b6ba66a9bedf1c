"""Backoffs: the formulas, their bounds for any count, and what is refused."""

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.backoff import Exponential, Fixed, Linear, Schedule, read_backoff
from redrive.core.durations import DURATION_MAX, hours, minutes, seconds
from redrive.errors import DurationError, PolicyError

ZERO = timedelta(0)
TICK = timedelta(microseconds=1)
SPANS = st.timedeltas(min_value=ZERO, max_value=DURATION_MAX)
COUNTS = st.one_of(
    st.integers(min_value=-3, max_value=40),
    st.integers(),
    st.sampled_from([0, -1, 10**6, -(10**6), 2**63, 10**400, -(10**400)]),
)


@st.composite
def exponentials(draw):
    first, cap = sorted((draw(SPANS), draw(SPANS)))
    factor = draw(st.one_of(st.sampled_from([1, 2, 1.5, 1000, 1.0000001]), st.floats(min_value=1, max_value=1000)))
    return Exponential(first, cap, factor=factor)


@st.composite
def linears(draw):
    first, cap = sorted((draw(SPANS), draw(SPANS)))
    return Linear(first, draw(SPANS), cap)


SCHEDULES = st.lists(SPANS, min_size=1, max_size=10).map(Schedule)
BACKOFFS = st.one_of(exponentials(), linears(), SCHEDULES, SPANS.map(Fixed))
MONOTONE = st.one_of(exponentials(), linears(), SPANS.map(Fixed), st.lists(SPANS, min_size=1).map(sorted).map(Schedule))


@given(BACKOFFS, COUNTS)
def test_wait_is_total_and_bounded(backoff, failures):
    """Any integer gives a wait between zero and the cap, without overflow."""
    wait = backoff.wait(failures)
    assert isinstance(wait, timedelta)
    assert ZERO <= wait <= backoff.cap <= DURATION_MAX


@given(BACKOFFS, st.integers(max_value=1))
def test_a_count_below_one_counts_as_one(backoff, failures):
    """Zero and negative counts wait like the first failure."""
    assert backoff.wait(failures) == backoff.wait(1)


@given(MONOTONE, COUNTS, COUNTS)
def test_more_failures_never_wait_shorter(backoff, some, more):
    """Waits of the growing backoffs never fall as failures rise."""
    assert backoff.wait(min(some, more)) <= backoff.wait(max(some, more))


@given(exponentials(), st.integers(min_value=1, max_value=200))
def test_exponential_is_its_formula(backoff, failures):
    """The wait is `min(cap, first * factor ** (n - 1))`, computed here with exact fractions."""
    exact = Fraction(backoff.first // TICK) * Fraction(backoff.factor) ** (failures - 1)
    expected = min(Fraction(backoff.cap // TICK), exact)
    assert abs(backoff.wait(failures) // TICK - expected) <= 1 + expected / 10**9


@given(linears(), st.integers(min_value=1, max_value=10**6))
def test_linear_is_its_formula(backoff, failures):
    """The wait is `min(cap, first + step * (n - 1))`, to the microsecond."""
    exact = backoff.first // TICK + (failures - 1) * (backoff.step // TICK)
    assert backoff.wait(failures) // TICK == min(backoff.cap // TICK, exact)


@given(st.lists(SPANS, min_size=1, max_size=20), st.integers(min_value=1, max_value=10**6))
def test_schedule_gives_its_entries_then_the_last_for_ever(waits, failures):
    """The n-th failure waits the n-th entry; beyond the list the last entry holds."""
    assert Schedule(waits).wait(failures) == (waits[failures - 1] if failures <= len(waits) else waits[-1])


@pytest.mark.parametrize(
    ("backoff", "expected_seconds"),
    [
        (Exponential(seconds(1), seconds(10)), [1, 2, 4, 8, 10, 10]),
        (Exponential(seconds(1), seconds(8)), [1, 2, 4, 8, 8, 8]),
        (Exponential(seconds(3), seconds(100), factor=1), [3, 3, 3, 3, 3, 3]),
        (Exponential(seconds(2), minutes(5), factor=3), [2, 6, 18, 54, 162, 300]),
        (Exponential(seconds(4), minutes(5), factor=1.5), [4, 6, 9, 13.5, 20.25, 30.375]),
        (Exponential(ZERO, minutes(5)), [0, 0, 0, 0, 0, 0]),
        (Linear(seconds(5), seconds(10), seconds(30)), [5, 15, 25, 30, 30, 30]),
        (Linear(seconds(5), ZERO), [5, 5, 5, 5, 5, 5]),
        (Fixed(seconds(7)), [7, 7, 7, 7, 7, 7]),
        (Schedule([seconds(9), seconds(1), seconds(4)]), [9, 1, 4, 4, 4, 4]),
    ],
)
def test_the_first_six_waits(backoff, expected_seconds):
    """A table of waits that anyone can check in their head."""
    assert [backoff.wait(n).total_seconds() for n in range(1, 7)] == expected_seconds


def test_factor_one_never_reaches_the_cap():
    """A factor of one stays at the first wait also for counts that no float holds."""
    assert Exponential(seconds(3), hours(1), factor=1.0).wait(10**400) == seconds(3)


@pytest.mark.parametrize(
    ("build", "error", "phrase"),
    [
        (lambda: Exponential(seconds(2), seconds(1)), PolicyError, r"cap \(1s\) must not be shorter than first"),
        (lambda: Exponential(factor=0.5), PolicyError, "factor must lie between 1 and 1000, not 0.5"),
        (lambda: Exponential(factor=1001), PolicyError, "between 1 and 1000"),
        (lambda: Exponential(factor=float("nan")), PolicyError, "between 1 and 1000"),
        (lambda: Exponential(factor=float("inf")), PolicyError, "between 1 and 1000"),
        (lambda: Exponential(factor="2"), PolicyError, "between 1 and 1000"),
        (lambda: Exponential(factor=Fraction(3, 2)), PolicyError, "between 1 and 1000"),
        (
            lambda: Exponential("soon"),
            DurationError,
            "first must be written as seconds .*, not 'soon'",
        ),
        (lambda: Exponential(seconds(1), True), DurationError, "cap must be a number of seconds"),
        (lambda: Exponential(timedelta(seconds=-1)), DurationError, "first must lie between 0 and 366 days"),
        (lambda: Exponential(seconds(1), timedelta(days=400)), DurationError, "cap must lie between 0 and 366 days"),
        (lambda: Schedule([]), PolicyError, "a schedule has 1 to 1000 waits, not 0"),
        (lambda: Schedule([seconds(1)] * 1001), PolicyError, "not 1001"),
        (lambda: Schedule([1, "x"]), DurationError, "waits must be written as seconds"),
        (lambda: Schedule(seconds(5)), PolicyError, "a schedule takes a list of waits, such as"),
        (lambda: read_backoff("soon"), DurationError, "wait must be written as seconds"),
        (lambda: Schedule("5s"), PolicyError, "a schedule takes a list of waits, such as"),
        (lambda: Schedule(None), PolicyError, "a schedule takes a list of waits, such as"),
        (lambda: Fixed(None), DurationError, "every must be a number of seconds"),
        (lambda: Linear(seconds(5), seconds(1), seconds(4)), PolicyError, "cap .* must not be shorter than first"),
        (lambda: Linear(seconds(5), -seconds(1)), DurationError, "step must lie between 0 and 366 days"),
    ],
)
def test_bad_input_is_refused_by_name(build, error, phrase):
    """A backoff out of range raises an error that names the argument and its bounds."""
    with pytest.raises(error, match=phrase):
        build()


def test_describe_is_short_and_says_the_numbers():
    """Explanations call a backoff by its kind and its numbers."""
    assert Exponential(seconds(2), minutes(5)).describe() == "exponential 2s \N{MULTIPLICATION SIGN}2, cap 5m"
    assert Fixed(seconds(7)).describe() == "fixed 7s"
    assert Linear(seconds(5), seconds(10), minutes(1)).describe() == "linear 5s + 10s, cap 1m"
    assert Schedule([seconds(1), minutes(1)]).describe() == "schedule 1s, 1m"
    assert Schedule([seconds(n) for n in range(1, 9)]).describe() == "schedule 1s, 2s, 3s, 4s, 5s, 6s, …"


def test_backoffs_are_values():
    """Two backoffs of the same numbers are equal, usable as keys, and cannot be changed."""
    assert Schedule([seconds(1)]) == Schedule((seconds(1),))
    assert len({Exponential(), Exponential(), Fixed(seconds(1))}) == 2
    with pytest.raises(AttributeError):
        Fixed(seconds(1)).every = seconds(2)


@pytest.mark.parametrize(("amount", "more"), [(6, False), (7, True)])
def test_a_long_schedule_is_described_by_its_first_waits(amount, more):
    """Six waits are shown; only where there are others does it say so."""
    assert Schedule([seconds(1)] * amount).describe() == "schedule " + ", ".join(["1s"] * 6) + (", …" if more else "")


def test_a_schedule_may_have_a_thousand_waits():
    """The bound itself is allowed, and one more is not."""
    assert len(Schedule([seconds(1)] * 1000).waits) == 1000
    with pytest.raises(PolicyError, match="not 1001"):
        Schedule([seconds(1)] * 1001)
