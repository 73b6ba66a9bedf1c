"""Charts as pictures that the service draws: bars and lines over time, bars side by side, a ring, a gauge, and small trends.

Pure: it takes numbers and computes where to draw, x in percent of the width and y in pixels, so that a chart fits any width and its
text keeps its size. The step that is still under way is drawn pale. Templates draw what is here (`charts.html`) and name no number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

PLOT_TOP, PLOT_HEIGHT, AXIS_HEIGHT = 22, 130, 20
TREND_HEIGHT, SPARK_HEIGHT = 28, 40
MARKS_APART = 5
"""The time axis has about so many marks."""
TABLE_ROWS_MAX = 12
"""Of a longer chart the table behind it tells every second, third … step."""
NICE = (1, 2, 2.5, 5, 10)
LABEL_CHAR = 7.5
STEPS = (
    timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=10), timedelta(minutes=15), timedelta(minutes=20), timedelta(minutes=30),
    timedelta(hours=1), timedelta(hours=2), timedelta(hours=3), timedelta(hours=6), timedelta(hours=12), timedelta(days=1), timedelta(days=2),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Numbers of one sort, a number for each step; None where nobody counted. `look` is a class of the style sheet without its first letter."""

    name: str
    look: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    look: str
    x: float
    width: float
    y: float
    height: float
    pale: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """A line, or what lies under it, in a box of 100 by `PLOT_HEIGHT`."""

    look: str
    line: str
    area: str
    running: str = ""
    """The way to the step that still runs, which is drawn pale."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A word on an axis; one with an instant is shown in the zone of whoever looks."""

    place: float
    label: str
    anchor: str = "end"
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All that the template draws, and the same as a sentence and as a table."""

    name: str
    title: str
    lead: str = ""
    """The first words of the answer, which stand out."""
    answer: str = ""
    unit: str = ""
    boxes: Sequence[Box] = ()
    paths: Sequence[Path] = ()
    ys: Sequence[Mark] = ()
    xs: Sequence[Mark] = ()
    events: Sequence[Mark] = ()
    legend: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    sentence: str = ""
    size: str = ""
    ring: "Ring | None" = None
    gauge: "Gauge | None" = None
    margin: float = field(default=27, kw_only=True)
    top: int = PLOT_TOP
    height: int = PLOT_TOP + PLOT_HEIGHT + AXIS_HEIGHT
    floor: int = PLOT_TOP + PLOT_HEIGHT

    @property
    def shapes(self) -> list[tuple[str, bool, str]]:
        """The boxes of each look as one path, in a box of 100 by `height`: a hundred elements cost more than all else on a page."""
        paths: dict[tuple[str, bool], list[str]] = {}
        for one in self.boxes:
            bar = f"M{one.x:g} {one.y + one.height:g}V{one.y:g}h{one.width:g}v{one.height:g}z"
            paths.setdefault((one.look, one.pale), []).append(bar)
        return [(look, pale, "".join(bars)) for (look, pale), bars in paths.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Shares of a whole, as arcs."""

    arcs: Sequence[tuple[str, str, str]]
    """The look, the path, and what it is."""
    total: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A share on a half circle, with a mark."""

    look: str
    arc: str
    track: str
    mark: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPicture:
    """A small picture without axes, as wide as it has minutes."""

    shapes: Sequence[tuple[str, bool, str]]
    """The look, whether it is pale because it still runs, and the path."""
    sentence: str
    width: int
    height: int


def per_step(
    name: str, title: str, series: Sequence[Series], starts: Sequence[datetime], now: datetime, *,
    lead: str = "", answer: str = "", unit: str = "", lines: bool = False, events: Sequence[tuple[datetime, str]] = (), size: str = "", sentence: str = "",
    ahead: bool = False,
) -> Chart:  # fmt: skip
    """A chart over time: bars on top of each other, or lines. The last step is the one that still runs, unless all of it lies `ahead`."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(starts))]
    most = max((value or 0 for one in series for value in one.values), default=0) if lines else max(totals, default=0)
    top, ys = scale(most)
    step = starts[1] - starts[0] if len(starts) > 1 else timedelta(minutes=1)
    return Chart(
        name=name, title=title, lead=lead, answer=answer, unit=unit, size=size, ys=ys, xs=times(starts[0], starts[-1] + step, now + step * len(starts) * 2 if ahead else now),
        boxes=() if lines else _stacked(series, top, last_runs=not ahead), paths=[_path(one, top, fill=at == 0, last_runs=not ahead) for at, one in enumerate(series)] if lines else (),
        events=[_event(at, label, starts[0], step * len(starts)) for at, label in events if starts[0] <= at <= (starts[-1] if ahead else now)],
        legend=[(one.look, one.name) for one in series], columns=["From", *(one.name for one in series)],
        rows=_rows(series, starts, add=not lines), sentence=sentence or f"{title} {lead} {answer}", margin=_margin(ys),
    )  # fmt: skip


def side_by_side(
    name: str, title: str, labels: Sequence[str], series: Series, *, lead: str = "", answer: str = "", unit: str = "",
    column: str = "", looks: Sequence[str] = (), size: str = "",
) -> Chart:  # fmt: skip
    """Bars with a word under each; of many, every second or third has one."""
    top, ys = scale(max((value or 0 for value in series.values), default=0))
    wide = 100 / max(1, len(labels))
    boxes = [
        Box(looks[at] if looks else series.look, round(at * wide + wide * 0.1, 2), round(wide * 0.8, 2), *_bar(value or 0, top))
        for at, value in enumerate(series.values)
    ]  # fmt: skip
    every = max(1, math.ceil(len(labels) / 6))
    xs = [Mark(round((at + 0.5) * wide, 2), label, "middle") for at, label in enumerate(labels) if at % every == 0]
    rows = [(label, few(value or 0)) for label, value in zip(labels, series.values, strict=True)]
    return Chart(
        name=name, title=title, lead=lead, answer=answer, unit=unit, boxes=boxes, xs=xs, ys=ys, columns=[column, series.name], rows=rows, size=size,
        sentence=f"{title} {lead} {answer}", margin=_margin(ys),
    )  # fmt: skip


def ring(amounts: Sequence[tuple[str, str, float]]) -> Ring:
    """Shares of a whole: the look, the name and the amount of each."""
    total = sum(amount for _, _, amount in amounts)
    arcs, at = list[tuple[str, str, str]](), 0.0
    for look, name, amount in amounts:
        if amount > 0:
            share = amount / total
            arcs.append((look, _arc(60, 60, 46, at, min(at + share, at + 0.9999)), f"{name}: {few(amount)}"))
            at += share
    return Ring(arcs=arcs, total=few(total))


def gauge(share: float, mark: float, said: str) -> Gauge:
    """A share on a half circle; its look says whether it reaches the mark."""
    look = "good" if share >= mark else "warn" if share >= 0.8 else "bad"

    def half(begin: float, end: float) -> str:
        return _arc(80, 84, 66, 0.75 + begin / 2, 0.75 + end / 2)

    return Gauge(
        look=look,
        arc=half(0, max(0.002, share)),
        track=half(0, 1),
        mark=half(mark - 0.004, mark + 0.004),
        said=said,
    )


def trend(
    tries: Sequence[float], failed: Sequence[float], sentence: str, *, height: int = TREND_HEIGHT
) -> SmallPicture:
    """Tries a minute, with those that failed at the foot of each bar; small amounts of failures stay visible."""
    most, room = max([*tries, 1]), height - 4
    foot = [max(bad / most * room, 1.5) if bad else 0.0 for bad in failed]
    whole = [max(amount / most * room, part) for amount, part in zip(tries, foot, strict=True)]
    return _small([("soft2", foot, whole), ("bad", [0.0] * len(foot), foot)], sentence, height)


def spark(points: Sequence[float], look: str, sentence: str, *, height: int = SPARK_HEIGHT) -> SmallPicture:
    """Amounts minute by minute."""
    most, room = max([*points, 1]), height - 5
    tops = [max(amount / most * room, 1.5) if amount else 0.0 for amount in points]
    return _small([(look, [0.0] * len(tops), tops)], sentence, height)


def _small(layers: Sequence[tuple[str, Sequence[float], Sequence[float]]], sentence: str, height: int) -> SmallPicture:
    """Bars from one height to another, all of one look in one path; the running minute in a pale one."""
    width = max((len(tops) for _, _, tops in layers), default=1) or 1
    shapes = []
    for look, feet, tops in layers:
        bars = [
            ""
            if top <= foot
            else f"M{at + 0.1:g} {height - 1 - foot:.1f}V{height - 1 - top:.1f}h.8V{height - 1 - foot:.1f}z"
            for at, (foot, top) in enumerate(zip(feet, tops, strict=True))
        ]
        shapes += [(look, pale, "".join(some)) for pale, some in ((False, bars[:-1]), (True, bars[-1:])) if any(some)]
    return SmallPicture(shapes=shapes, sentence=sentence, width=width, height=height)


def scale(most: float) -> tuple[float, list[Mark]]:
    """The top of an axis from zero that holds so much, and its marks."""
    rough = max(most, 1) / 3
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(one * magnitude for one in NICE if one * magnitude >= rough)
    if most <= 3:
        step = 1
    steps = max(1, math.ceil(most / step))
    top = step * steps
    return top, [Mark(round(_y(number * step, top), 2), few(number * step)) for number in range(steps + 1)]


def times(start: datetime, end: datetime, now: datetime) -> list[Mark]:
    """Marks of a time axis: its start, whole steps of the clock that are not too near an end, and its end."""
    whole = end - start
    step = next((one for one in STEPS if whole / one <= MARKS_APART), STEPS[-1])
    marks = [Mark(0, _hour(start), "start", start)]
    at = datetime.fromtimestamp(
        math.ceil(start.timestamp() / step.total_seconds()) * step.total_seconds(), start.tzinfo
    )
    while at < end:
        if 18 <= (x := round((at - start) / whole * 100, 2)) <= 84:
            marks.append(Mark(x, _hour(at), "middle", at))
        at += step
    last = Mark(100, "now", "end") if end >= now else Mark(100, _hour(end), "end", end)
    if marks[-1].label == last.label:
        marks.pop()  # the same minute twice
    return [*marks, last]


def few(amount: float) -> str:
    """1,234; 0.5; 12.3: as many digits as people can use."""
    if amount >= 10 or amount == int(amount):
        return f"{amount:,.0f}"
    return f"{amount:.1f}" if amount >= 0.1 else f"{amount:.2g}"


def _hour(at: datetime) -> str:
    return f"{at:%H:%M}"


def _y(value: float, top: float) -> float:
    return PLOT_TOP + PLOT_HEIGHT * (1 - value / top)


def _bar(value: float, top: float, below: float = 0) -> tuple[float, float]:
    """Where a bar begins, and its height: what is there stays visible, however little."""
    height = PLOT_HEIGHT * value / top
    height = max(height, 1.5) if value else 0
    return round(PLOT_TOP + PLOT_HEIGHT - PLOT_HEIGHT * below / top - height, 2), round(height, 2)


def _stacked(series: Sequence[Series], top: float, *, last_runs: bool) -> list[Box]:
    boxes, amount = list[Box](), max((len(one.values) for one in series), default=0)
    wide = 100 / max(1, amount)
    for at in range(amount):
        below = 0.0
        for one in series:
            if value := one.values[at] or 0:
                y, height = _bar(value, top, below)
                x, width = round(at * wide + wide * 0.1, 2), round(wide * 0.8, 2)
                boxes.append(Box(one.look, x, width, y, height, last_runs and at == amount - 1))
                below += value
    return boxes


def _path(series: Series, top: float, *, fill: bool, last_runs: bool) -> Path:
    """A line through all that is known; where nobody counted it is broken. What lies under the first one is tinted.

    The step that still runs is not known yet: the way to it is a line of its own.
    """
    wide = 100 / max(1, len(series.values) - 1)
    points = [
        None if value is None else (round(at * wide, 2), round(PLOT_HEIGHT * (1 - value / top), 2))
        for at, value in enumerate(series.values)
    ]
    running = ""
    if last_runs and len(points) > 2 and (before := points[-2]) is not None and (last := points[-1]) is not None:
        running = f"M{before[0]} {before[1]}L{last[0]} {last[1]}"
        points.pop()
    known = [point for point in points if point is not None]
    begun = [(None, points[0]), *pairwise(points)] if points else []
    line = "".join(
        f"{'M' if before is None else 'L'}{point[0]} {point[1]}" for before, point in begun if point is not None
    )
    if len(known) == 1:
        line = f"M{max(0, known[0][0] - 1)} {known[0][1]}h1"
    whole = len(known) == len(points) and len(known) > 1
    area = f"{line}L{known[-1][0]} {PLOT_HEIGHT}L0 {PLOT_HEIGHT}Z" if whole and fill else ""
    return Path(series.look, line, area, running)


def _event(at: datetime, label: str, start: datetime, whole: timedelta) -> Mark:
    x = round((at - start) / whole * 100, 2)
    return Mark(x, label, "end" if x > 50 else "start", at)


def _rows(series: Sequence[Series], starts: Sequence[datetime], *, add: bool) -> list[tuple[object, ...]]:
    """What is behind a chart, in at most so many rows: amounts are added up, depths are those at the end."""
    every = math.ceil(len(starts) / TABLE_ROWS_MAX)
    rows: list[tuple[object, ...]] = []
    for at in range(0, len(starts), every):
        told: list[object] = [starts[at]]
        for one in series:
            known = [value for value in one.values[at : at + every] if value is not None]
            told.append(few(sum(known) if add else known[-1]) if known else "–")
        rows.append(tuple(told))
    return rows


def _margin(ys: Sequence[Mark]) -> float:
    return max(20.0, 7 + LABEL_CHAR * max((len(one.label) for one in ys), default=1))


def _arc(cx: float, cy: float, radius: float, begin: float, end: float) -> str:
    """A part of a circle, in turns from its top, clockwise."""

    def point(turn: float) -> str:
        angle = 2 * math.pi * (turn - 0.25)
        return f"{cx + radius * math.cos(angle):.2f} {cy + radius * math.sin(angle):.2f}"

    return f"M{point(begin)}A{radius} {radius} 0 {1 if end - begin > 0.5 else 0} 1 {point(end)}"
