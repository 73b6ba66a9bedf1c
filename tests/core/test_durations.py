"""Spans of time: constructors, the parser, the printer and their bounds."""

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Linear, Schedule
from redrive.core.durations import (
    DURATION_MAX,
    OptionalSpanField,
    SpanField,
    days,
    format_duration,
    hours,
    minutes,
    parse_duration,
    read_span,
    rounded,
    seconds,
)
from redrive.core.outcome import Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import DurationError, RedriveError
from redrive.lane import make_task

SPANS = st.timedeltas(min_value=timedelta(0), max_value=DURATION_MAX)
AMOUNTS_REFUSED = [
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
    "soon",
    None,
    10**400,
    1e308,
    367 * 86400,
]


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


@pytest.mark.parametrize("text", ["", " ", "s", "-5s", "+5", "5 parsecs", "1e3", "1:30", "5ss", "1h 30m", "٣x"])
def test_parse_refuses_and_shows_how_to_write_it(text):
    """What is not a duration is refused with examples of what is."""
    with pytest.raises(
        DurationError, match=r"^duration must be written as seconds \(90\) or with a unit \(250ms, 5s, 2m, 1\.5h, 30d\)"
    ):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["367d", "9" * 400, "99999999999999h", float("inf"), timedelta(days=-1), timedelta.max]
)
def test_parse_refuses_what_is_out_of_bounds(text):
    """A readable span outside of zero to `DURATION_MAX` is refused as a `DurationError`."""
    with pytest.raises(DurationError):
        parse_duration(text)


def test_a_span_names_the_argument_and_the_remedy():
    """The error says which argument is wrong and what would be right."""
    with pytest.raises(
        DurationError, match=r"^lease must be a number of seconds, text with a unit or a timedelta, .*, not b'5'$"
    ):
        read_span("lease", b"5")
    with pytest.raises(DurationError, match=r"^lease must be written as seconds \(90\) or with a unit .*, not 'soon'$"):
        read_span("lease", "soon")
    with pytest.raises(DurationError, match=r"^lease must lie between 0 and 366 days, not -1d"):
        read_span("lease", timedelta(days=-1))
    with pytest.raises(DurationError, match=r"give a number, such as 2 or 0\.5"):
        seconds("5")


@pytest.mark.parametrize(
    ("take", "sentence"),
    [
        (lambda: seconds(-1), "seconds must lie between 0 and 366 days, not -1s"),
        (lambda: minutes(-1), "minutes must lie between 0 and 366 days, not -1m"),
        (lambda: hours(-1), "hours must lie between 0 and 366 days, not -1h"),
        (lambda: days(367), "days must lie between 0 and 366 days, not 367d"),
        (lambda: parse_duration("367d"), "duration must lie between 0 and 366 days, not 367d"),
        (lambda: parse_duration(-1), "duration must lie between 0 and 366 days, not -1s"),
        (
            lambda: read_span("lease", True),
            "lease must be a number of seconds, text with a unit or a timedelta, such as 300, '5m' or minutes(5), not True",
        ),
        (lambda: seconds("5"), "'5' is not an amount of time: give a number, such as 2 or 0.5"),
        (lambda: seconds(float("inf")), "inf is not an amount of time: give a finite number"),
        (lambda: days(10**400), "that amount of time lies beyond 366 days: give a shorter one"),
        (
            lambda: parse_duration("5 parsecs"),
            "duration must be written as seconds (90) or with a unit (250ms, 5s, 2m, 1.5h, 30d), not '5 parsecs'",
        ),
    ],
)
def test_what_is_said_of_a_wrong_span(take, sentence):
    """Each sentence names what was given, as what, and what would be right."""
    with pytest.raises(DurationError) as refused:
        take()
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (timedelta(seconds=59.6), timedelta(seconds=60)),
        (timedelta(minutes=59, seconds=59.4), timedelta(minutes=59, seconds=59)),
        (timedelta(hours=1), timedelta(hours=1)),
        (timedelta(hours=1, seconds=31), timedelta(hours=1, minutes=1)),
        (timedelta(days=1) - timedelta(seconds=31), timedelta(days=1) - timedelta(minutes=1)),
        (timedelta(days=1), timedelta(days=1)),
        (timedelta(days=1, minutes=31), timedelta(days=1, hours=1)),
        (-timedelta(hours=1, seconds=31), -timedelta(hours=1, minutes=1)),
    ],
)
def test_a_span_is_rounded_to_what_a_reader_wants_to_know(span, expected):
    """Seconds below an hour, minutes below a day, hours above, also of what is past."""
    assert rounded(span) == expected


def test_a_span_field_knows_its_name_and_its_default():
    """It reads what it is given as its own name; without a default it has none, and an optional one is None."""

    class Holder:
        most = SpanField(timedelta(seconds=2))
        least = SpanField()
        perhaps = OptionalSpanField()

    assert (Holder.most, Holder.perhaps) == (timedelta(seconds=2), None)
    with pytest.raises(AttributeError, match=r"^least$"):
        _ = Holder.least
    holder = Holder()
    holder.most, holder.least, holder.perhaps = 3, minutes(1), None
    assert (holder.most, holder.least, holder.perhaps) == (seconds(3), seconds(60), None)
    holder.perhaps = 4
    assert holder.perhaps == seconds(4)
    for name in ("most", "perhaps"):
        with pytest.raises(DurationError, match=f"^{name} must lie"):
            setattr(holder, name, -1)


def test_duration_error_is_a_value_error_of_ours():
    """Callers can catch a bad duration as `ValueError` or as `RedriveError`."""
    assert issubclass(DurationError, ValueError)
    assert issubclass(DurationError, RedriveError)


@given(SPANS)
def test_a_span_within_the_bounds_passes(span):
    """A timedelta within the bounds passes unchanged, a number is that many seconds."""
    assert read_span("span", span) is span
    assert abs(read_span("span", span.total_seconds()) - span) <= timedelta(microseconds=1)


@pytest.mark.parametrize("amount", AMOUNTS_REFUSED, ids=lambda amount: f"{amount!r:.12}")
def test_every_taker_of_a_span_refuses_what_is_none(amount):
    """Backoffs, snoozes, delays and worker settings read their spans in one place, with one error."""
    takers = [
        Fixed, Exponential, lambda span: Linear(1, span), lambda span: Schedule([span]), Snoozed, jitter.additive,
        lambda span: make_task("mail", delay=span), lambda span: make_task("mail", deadline=span),
        lambda span: WorkerSettings(lease=span), lambda span: WorkerSettings(retention={State.DONE: span}),
    ]  # fmt: skip
    for take in takers:
        if amount is not None or take is not takers[7]:
            with pytest.raises(DurationError):
                take(amount)


def test_every_taker_of_a_span_reads_numbers_as_seconds():
    """What they keep is a timedelta."""
    assert Fixed(5).every == Exponential(5).first == Linear(5, 1).first == Snoozed(5).delay == seconds(5)
    assert Schedule([1, 0.5]).waits == (seconds(1), timedelta(milliseconds=500))
    assert make_task("mail", delay=5, deadline=60).delay == seconds(5)
    assert make_task("mail", delay=5, deadline=60).deadline == minutes(1)
    settings = WorkerSettings(lease=60, grace=0, poll=0.5, prune_every=3600, retention={State.DONE: 86400})
    assert (settings.lease, settings.grace, settings.retention) == (minutes(1), seconds(0), {State.DONE: days(1)})
    assert WorkerSettings().lease == seconds(30)


def test_every_taker_of_a_span_reads_text_with_a_unit():
    """What `wait="2s"` says on a handler, every other span may say too."""
    assert Fixed("5s").every == Exponential("5s").first == Linear("5s", 1).first == Snoozed("5s").delay == seconds(5)
    assert Schedule([1, "5m"]).waits == (seconds(1), minutes(5))
    assert Policy(deadline="2h", retry_after_max="1d").deadline == hours(2)
    task = make_task("mail", delay="5m", deadline="1.5h")
    assert (task.delay, task.deadline) == (minutes(5), minutes(90))
    assert WorkerSettings(lease="1m", retention={State.DONE: "30d"}).retention == {State.DONE: days(30)}
    assert jitter.additive("2s") == jitter.additive(2)


def test_a_span_must_be_given():
    """A field without a default is missed as every other argument is."""
    with pytest.raises(TypeError, match="every"):
        Fixed()
    with pytest.raises(FrozenInstanceError):
        Fixed(1).every = 2


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
        (timedelta(milliseconds=999.6), "1s"),
        (-timedelta(milliseconds=250), "-250ms"),
        (timedelta(seconds=2), "2s"),
        (timedelta(seconds=10), "10s"),
        (timedelta(seconds=2.05), "2.05s"),
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
