"""Spans of time: constructors, the parser, the printer and their bounds."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.durations import DURATION_MAX, checked, days, format_duration, hours, minutes, parse_duration, seconds
from redrive.errors import DurationError, RedriveError

SPANS = st.timedeltas(min_value=timedelta(0), max_value=DURATION_MAX)
AMOUNTS_REFUSED = [-1, -0.001, float("nan"), float("inf"), -float("inf"), True, "5", None, 10**400, 1e308, 367 * 86400]


def test_constructors_are_their_unit():
    """Each constructor counts in the unit that it is named after, fractions included."""
    assert seconds(2) == timedelta(seconds=2)
    assert minutes(1.5) == timedelta(seconds=90)
    assert hours(1) == timedelta(hours=1)
    assert days(30) == timedelta(days=30)
    assert seconds(0) == timedelta(0)
    assert days(366) == DURATION_MAX


@pytest.mark.parametrize("construct", [seconds, minutes, hours, days])
@pytest.mark.parametrize("amount", AMOUNTS_REFUSED, ids=lambda amount: f"{amount!r:.12}")
def test_amounts_that_are_no_span_are_refused(construct, amount):
    """A negative, endless, overlong or non-numeric amount raises `DurationError`, never an error of `timedelta`."""
    with pytest.raises(DurationError):
        construct(amount)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", timedelta(seconds=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("5s", timedelta(seconds=5)),
        ("2m", timedelta(minutes=2)),
        ("1.5h", timedelta(minutes=90)),
        ("30d", timedelta(days=30)),
        (" 5 S ", timedelta(seconds=5)),
        ("0", timedelta(0)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(hours=3), timedelta(hours=3)),
    ],
)
def test_parse_reads_every_documented_form(text, expected):
    """A bare number is seconds, a unit is that unit, a timedelta is itself."""
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-5s", "+5", "5 parsecs", "1e3", "1:30", "5ss", "1h 30m", "٣x", None, b"5s", []]
)
def test_parse_refuses_and_shows_how_to_write_it(text):
    """What is not a duration is refused with examples of what is."""
    with pytest.raises(DurationError, match=r"write seconds \(90\) or a unit \(250ms, 5s, 2m, 1\.5h, 30d\)"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["367d", "9" * 400, "99999999999999h", float("inf"), timedelta(days=-1), timedelta.max]
)
def test_parse_refuses_what_is_out_of_bounds(text):
    """A readable span outside of zero to `DURATION_MAX` is refused as a `DurationError`."""
    with pytest.raises(DurationError):
        parse_duration(text)


def test_checked_names_the_argument_and_the_remedy():
    """The error says which argument is wrong and what would be right."""
    with pytest.raises(DurationError, match=r"^lease must be a timedelta, such as seconds\(2\), not 5$"):
        checked("lease", 5)
    with pytest.raises(DurationError, match=r"^lease must lie between 0 and 366 days, not -1 day"):
        checked("lease", timedelta(days=-1))
    with pytest.raises(DurationError, match=r"give a number, such as 2 or 0\.5"):
        seconds("5")


def test_duration_error_is_a_value_error_of_ours():
    """Callers can catch a bad duration as `ValueError` or as `RedriveError`."""
    assert issubclass(DurationError, ValueError)
    assert issubclass(DurationError, RedriveError)


@given(SPANS)
def test_checked_returns_what_lies_within(span):
    """A span within the bounds passes unchanged."""
    assert checked("span", span) is span


@given(st.floats(min_value=0, max_value=366 * 86400))
def test_parse_of_written_seconds_is_the_number(amount):
    """A decimal written as text is read as that many seconds."""
    assert parse_duration(f"{amount:.6f}") == timedelta(seconds=float(f"{amount:.6f}"))


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (timedelta(0), "0s"),
        (timedelta(microseconds=400), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=2), "2s"),
        (timedelta(seconds=2.5), "2.5s"),
        (timedelta(seconds=59.9996), "1m"),
        (timedelta(seconds=125), "2m 5s"),
        (timedelta(minutes=90), "1h 30m"),
        (timedelta(hours=1, seconds=5), "1h 5s"),
        (timedelta(days=2, hours=3, minutes=4), "2d 3h"),
        (timedelta(seconds=-90), "-1m 30s"),
        (DURATION_MAX, "366d"),
    ],
)
def test_format_shows_the_two_largest_units(span, expected):
    """A span is printed with its largest units first and no noise."""
    assert format_duration(span) == expected


@given(SPANS)
def test_format_is_never_far_off(span):
    """Read back part by part, the printed span misses the real one by less than its second unit."""
    parts = format_duration(span).split()
    smallest = {"ms": "1ms", "s": "1ms", "m": "1m", "h": "1h", "d": "1d"}[parts[-1].lstrip("0123456789.")]
    read = sum((parse_duration(part) for part in parts), timedelta(0))
    assert abs(span - read) <= parse_duration(smallest)
