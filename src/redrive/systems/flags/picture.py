"""The picture of upcoming schedules: one line each, its next try and those that follow if that fails.

Pure: it takes instants and computes where to draw. Seconds and weeks stand side by side, so the time axis is logarithmic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SHOWN_MAX = 12
NAME_CHARS_MAX = 24
LEFT, WIDTH, RIGHT = 190.0, 700.0, 40.0
TOP, LINE, FOOT = 14, 30, 26
TICK_GAP_MIN = 46.0
UNIT = timedelta(minutes=1)
"""Below this lengths are drawn nearly as they are."""
HORIZON_MIN = timedelta(hours=1)
TICKS = (
    ("1m", timedelta(minutes=1)), ("5m", timedelta(minutes=5)), ("15m", timedelta(minutes=15)), ("1h", timedelta(hours=1)),
    ("3h", timedelta(hours=3)), ("12h", timedelta(hours=12)), ("1d", timedelta(days=1)), ("3d", timedelta(days=3)),
    ("1w", timedelta(days=7)), ("30d", timedelta(days=30)), ("100d", timedelta(days=100)), ("1y", timedelta(days=365)),
    ("3y", timedelta(days=1095)), ("10y", timedelta(days=3650)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """An upcoming schedule: its name, what it sets, and when it is tried, the next try first."""

    name: str
    sets: str
    tries: Sequence[datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryMark:
    """A try."""

    x: float
    first: bool
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLine:
    """One schedule."""

    y: int
    name: str
    title: str
    marks: Sequence[TryMark]
    ends: float
    """Where its last try is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingPicture:
    """All that the template draws."""

    lines: Sequence[ScheduleLine]
    ticks: Sequence[tuple[float, str]]
    sentence: str
    height: int
    width: float = LEFT + WIDTH + RIGHT
    left: float = LEFT
    top: int = TOP


def draw(coming: Sequence[Coming], now: datetime) -> UpcomingPicture | None:
    """The picture of the first few; None where nothing is upcoming."""
    shown = [one for one in coming if one.tries][:SHOWN_MAX]
    if not shown:
        return None
    horizon = max(HORIZON_MIN, *(one.tries[-1] - now for one in shown))
    lines = [_line(one, TOP + number * LINE + LINE // 2, now, horizon) for number, one in enumerate(shown)]
    return UpcomingPicture(
        lines=lines,
        ticks=_ticks(horizon),
        sentence="; ".join(line.title for line in lines),
        height=TOP + len(lines) * LINE + FOOT,
    )


def _line(one: Coming, y: int, now: datetime, horizon: timedelta) -> ScheduleLine:
    marks = [
        TryMark(
            x=_x(at - now, horizon),
            first=number == 0,
            title=f"{'tried' if number == 0 else 'if that fails'} {_exact(at)}",
        )
        for number, at in enumerate(one.tries)
    ]
    name = one.name if len(one.name) <= NAME_CHARS_MAX else f"{one.name[: NAME_CHARS_MAX - 1]}…"
    return ScheduleLine(
        y=y, name=name, title=f"{one.name}: {one.sets}, {_exact(one.tries[0])}", marks=marks, ends=marks[-1].x
    )  # fmt: skip


def _ticks(horizon: timedelta) -> list[tuple[float, str]]:
    """Now, and as many round spans as there is room for."""
    ticks = [(LEFT, "now")]
    for label, span in TICKS:
        x = _x(span, horizon)
        if span <= horizon and x - ticks[-1][0] >= TICK_GAP_MIN:
            ticks.append((x, label))
    return ticks


def _x(span: timedelta, horizon: timedelta) -> float:
    """What is overdue stands at now."""
    return round(LEFT + WIDTH * math.log1p(max(span, timedelta(0)) / UNIT) / math.log1p(horizon / UNIT), 1)


def _exact(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
