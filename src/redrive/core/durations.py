"""Spans of time: short constructors, one parser, one bound.

Every wait in redrive is a `timedelta` between zero and `DURATION_MAX`, so sums of instants and waits never
leave what `datetime` and the databases can hold.
"""

import math
import re
from datetime import timedelta

from redrive.errors import DurationError

DURATION_MAX = timedelta(days=366)
ZERO = timedelta(0)

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.IGNORECASE)


def seconds(amount: float) -> timedelta:
    """`seconds(2)` is two seconds."""
    return checked("seconds", _span(amount, 1))


def minutes(amount: float) -> timedelta:
    """`minutes(5)` is five minutes."""
    return checked("minutes", _span(amount, 60))


def hours(amount: float) -> timedelta:
    """`hours(1)` is one hour."""
    return checked("hours", _span(amount, 3600))


def days(amount: float) -> timedelta:
    """`days(30)` is thirty days."""
    return checked("days", _span(amount, 86400))


def parse_duration(text: str | float | timedelta) -> timedelta:
    """Read `"90"` (seconds), `"250ms"`, `"5s"`, `"2m"`, `"1.5h"` or `"30d"`."""
    if isinstance(text, timedelta):
        return checked("duration", text)
    if isinstance(text, int | float):
        return checked("duration", _span(text, 1))
    matched = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise DurationError(f"{text!r} is not a duration: write seconds (90) or a unit (250ms, 5s, 2m, 1.5h, 30d)")
    number, unit = matched.groups()
    return checked("duration", _span(float(number), _UNITS[(unit or "s").lower()]))


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


def checked(name: str, span: timedelta) -> timedelta:
    """Return `span` if it lies within zero and `DURATION_MAX`, else raise."""
    if not isinstance(span, timedelta):
        raise DurationError(f"{name} must be a timedelta, such as seconds(2), not {span!r}")
    if not ZERO <= span <= DURATION_MAX:
        raise DurationError(f"{name} must lie between 0 and {DURATION_MAX.days} days, not {span}")
    return span


def _span(amount: float, unit_seconds: float) -> timedelta:
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
