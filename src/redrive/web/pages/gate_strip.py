"""The last hour of a gate as a strip: a thin line where it let tasks through, a block where it held, stairs where it returned.

Pure: it takes spans and computes where to draw, x in percent of the width and y in pixels, so that it fits any width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.operator.gates import GateDoes, GateSpan, moment

STRIP = timedelta(hours=1)
HEIGHT = 28
STAIRS = 4
LABELLED_FROM_PERCENT = 15.0
ENDS_PERCENT = 26.0
"""So near an end there is no mark: on the narrowest strip, 11 rem, one label and a half is as wide."""
SAID_MAX = 12
"""Spans that the sentence tells of; of more it tells the last."""
LOOKS = {
    GateDoes.LETTING_THROUGH: ("through", 12.0, 4.0),
    GateDoes.HOLDING: ("holds", 3.0, 22.0),
    GateDoes.PAUSED: ("paused", 6.0, 16.0),
}
"""The class, the top and the height of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripPart:
    """A rectangle of the picture."""

    look: str
    x: float
    width: float
    y: float
    height: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStrip:
    """All that the template draws, and the same in words."""

    parts: Sequence[StripPart]
    sentence: str
    height: int = HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class StripHour:
    """A mark on the axis."""

    x: float
    label: str
    anchor: str
    at: datetime | None = None


def draw_strip(spans: Sequence[GateSpan], now: datetime, doing: GateDoes, since: datetime | None) -> GateStrip:
    """The strip of one gate. What it does now counts, though nobody may have recorded it yet."""
    start = now - STRIP
    told = _whole(spans, now, doing, since)
    parts, at = list[StripPart](), start
    for does, begins, ends in told:
        begins, ends = max(begins, at, start), min(ends, now)
        if ends <= begins:
            continue
        parts += _drawn(GateDoes.LETTING_THROUGH, at, begins, start)
        parts += _drawn(does, begins, ends, start)
        at = ends
    parts += _drawn(GateDoes.LETTING_THROUGH, at, now, start)
    return GateStrip(parts=parts, sentence=_sentence([one for one in told if one[2] > start], now))


def _whole(
    spans: Sequence[GateSpan], now: datetime, doing: GateDoes, since: datetime | None
) -> list[tuple[GateDoes, datetime, datetime]]:
    told = [(one.does, one.began_at, now if one.ended_at is None else one.ended_at) for one in spans]
    lasting = spans[-1] if spans and spans[-1].ended_at is None else None
    if lasting is not None and lasting.does is not doing:
        told[-1] = (lasting.does, lasting.began_at, max(lasting.began_at, since or now))
    if doing is not GateDoes.LETTING_THROUGH and (lasting is None or lasting.does is not doing):
        told.append((doing, since or now, now))
    return told


def _drawn(does: GateDoes, begins: datetime, ends: datetime, start: datetime) -> list[StripPart]:
    x, width = _percent(begins - start), _percent(ends - begins)
    if width <= 0:
        return []
    if does is not GateDoes.RETURNING:
        look, y, height = LOOKS[does]
        label = "paused" if does is GateDoes.PAUSED and width >= LABELLED_FROM_PERCENT else ""
        return [StripPart(look=look, x=x, width=width, y=y, height=height, label=label)]
    step = width / STAIRS
    return [
        StripPart(
            look="returns", x=round(x + step * number, 2), width=round(step * 0.9, 2),
            y=17.5 - 3.5 * number, height=7.5 + 3.5 * number,
        )
        for number in range(STAIRS)
    ]  # fmt: skip


def _percent(span: timedelta) -> float:
    return round(span / STRIP * 100, 2)


def _sentence(told: Sequence[tuple[GateDoes, datetime, datetime]], now: datetime) -> str:
    if not told:
        return "Let tasks through all the last hour"
    said = [
        f"{does} since {moment(begins, now)}" if ends >= now else f"{does} {moment(begins, now)} to {moment(ends, now)}"
        for does, begins, ends in told[-SAID_MAX:]
    ]
    return f"{said[0][:1].upper()}{', '.join(said)[1:]}; else it let tasks through"


def hours_of(now: datetime) -> list[StripHour]:
    """The axis: every twenty minutes of the clock that is not too near an end."""
    start = now - STRIP
    marks = [StripHour(x=0, label=f"{start:%H:%M}", anchor="start", at=start)]
    at = start.replace(minute=start.minute // 20 * 20, second=0, microsecond=0) + timedelta(minutes=20)
    while at < now:
        if ENDS_PERCENT <= (x := _percent(at - start)) <= 100 - ENDS_PERCENT:
            marks.append(StripHour(x=x, label=f"{at:%H:%M}", anchor="middle", at=at))
        at += timedelta(minutes=20)
    return [*marks, StripHour(x=100, label="now", anchor="end")]
