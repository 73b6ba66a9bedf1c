"""Spans of time: short constructors, one reader, one bound.

Wherever redrive takes a span, a number is seconds and text may have a unit. `read_span` is the one place that reads what was
given; what it returns is a `timedelta` between zero and `DURATION_MAX`, so sums of instants and waits never leave what
`datetime` and the databases can hold.
"""

import math
import re
from datetime import timedelta
from typing import Any

from redrive.errors import DurationError

DURATION_MAX = timedelta(days=366)
ZERO = timedelta(0)

Span = timedelta | float | str
"""What is taken for a span: a `timedelta`, a number of seconds, or text such as `"5m"`."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.IGNORECASE)


def seconds(amount: float) -> timedelta:
    """`seconds(2)` is two seconds."""
    return read_span("seconds", _amount(amount, 1))


def minutes(amount: float) -> timedelta:
    """`minutes(5)` is five minutes."""
    return read_span("minutes", _amount(amount, 60))


def hours(amount: float) -> timedelta:
    """`hours(1)` is one hour."""
    return read_span("hours", _amount(amount, 3600))


def days(amount: float) -> timedelta:
    """`days(30)` is thirty days."""
    return read_span("days", _amount(amount, 86400))


def read_span(name: str, span: Span) -> timedelta:
    """The span that was given for `name`, if it lies within zero and `DURATION_MAX`; else raise."""
    if isinstance(span, str):
        span = _written(name, span)
    elif not isinstance(span, timedelta):
        if isinstance(span, bool) or not isinstance(span, int | float):
            raise DurationError(
                f"{name} must be a number of seconds, text with a unit or a timedelta, such as 300, '5m' or minutes(5), not {span!r}"
            )
        span = _amount(span, 1)
    if not ZERO <= span <= DURATION_MAX:
        raise DurationError(f"{name} must lie between 0 and {DURATION_MAX.days} days, not {format_duration(span)}")
    return span


def parse_duration(text: Span) -> timedelta:
    """Read `"90"` (seconds), `"250ms"`, `"5s"`, `"2m"`, `"1.5h"` or `"30d"`."""
    return read_span("duration", text)


def format_duration(span: timedelta) -> str:
    """The largest units first and no noise: `1h 30m`, `2m 5s`, `250ms`."""
    left_ms = round(span / timedelta(milliseconds=1))
    sign, left_ms = ("-", -left_ms) if left_ms < 0 else ("", left_ms)
    if left_ms < 1000:
        return f"{sign}{left_ms}ms" if left_ms else "0s"
    parts = []
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        amount, left_ms = divmod(left_ms, unit_ms)
        if amount:
            parts.append(f"{amount}{unit}")
    if left_ms:
        parts.append(f"{left_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s")
    return sign + " ".join(parts[:2])


def _written(name: str, text: str) -> timedelta:
    matched = _WRITTEN.fullmatch(text)
    if matched is None:
        raise DurationError(
            f"{name} must be written as seconds (90) or with a unit (250ms, 5s, 2m, 1.5h, 30d), not {text!r:.80}"
        )
    number, unit = matched.groups()
    return _amount(float(number), _UNITS[(unit or "s").lower()])


def _amount(amount: float, unit_seconds: float) -> timedelta:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise DurationError(f"{amount!r} is not an amount of time: give a number, such as 2 or 0.5")
    if isinstance(amount, float) and not math.isfinite(amount):
        raise DurationError(f"{amount!r} is not an amount of time: give a finite number")
    try:
        return timedelta(seconds=amount * unit_seconds)
    except OverflowError:
        raise DurationError(f"that amount of time lies beyond {DURATION_MAX.days} days: give a shorter one") from None


def rounded(span: timedelta) -> timedelta:
    """What a reader wants to know of a span: seconds below an hour, minutes below a day, hours above."""
    unit = 3600 if abs(span) >= timedelta(days=1) else 60 if abs(span) >= timedelta(hours=1) else 1
    return timedelta(seconds=round(span.total_seconds() / unit) * unit)


class SpanField:
    """A field of a frozen dataclass that takes a span and holds a `timedelta`; without a default it must be given.

    A descriptor, because it alone has one type for what is given and another for what is held. A class with such fields
    has no slots.
    """

    def __init__(self, default: timedelta | None = None) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: Any, owner: type | None = None) -> timedelta:
        if holder is None:  # how `dataclass` asks for the default
            if self._default is None:
                raise AttributeError(self._name)
            return self._default
        held: timedelta = holder.__dict__[self._name]
        return held

    def __set__(self, holder: Any, span: Span) -> None:
        holder.__dict__[self._name] = read_span(self._name, span)


class OptionalSpanField:
    """The same for a span that may be None, and is if nothing is given."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: Any, owner: type | None = None) -> timedelta | None:
        held: timedelta | None = None if holder is None else holder.__dict__[self._name]
        return held

    def __set__(self, holder: Any, span: Span | None) -> None:
        holder.__dict__[self._name] = None if span is None else read_span(self._name, span)
