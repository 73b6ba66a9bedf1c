"""The steps of an operation as a picture: one square is one task, to scale. And its brake and its rate, as two gauges. Pure.

Squares are patterns in rectangles: a step of a thousand tasks is drawn with a dozen shapes, and costs no more than one of ten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, sqrt

from redrive.core.durations import format_duration, rounded
from redrive.core.operation import Fate, OperationState, braking, share_words
from redrive.core.operation_ahead import LATELY, takes
from redrive.operator.operations import Operation, StepTally

SQUARE, PITCH = 8, 10
"""A square and the way to the next one, in px."""
COLUMNS_MAX = 63
SQUARES_MAX = 1500
"""More tasks of one step than this share squares, and the picture says how many."""
NARROW = 9
"""Steps of up to so many stand in one column."""
BARS = 31
SHOWN = (Fate.DONE, Fate.FAILED, Fate.ENDED, Fate.RELEASED)
WORDS = {Fate.DONE: "done", Fate.FAILED: "failed again", Fate.ENDED: "ended otherwise", Fate.RELEASED: "running"}
TO_COME = "to-come"
NOW = {OperationState.PAUSED: "paused", OperationState.HALTED: "stopped here"}
"""Where it stands still; elsewhere it is in its step now."""


@dataclass(frozen=True, slots=True)
class Block:
    """Squares of one look, in full lines."""

    look: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """One step: its squares, and what is told of it."""

    number: int
    title: str
    when: str
    """`past`, `now`, `stopped` or `next`."""
    size: int
    width: int
    height: int
    blocks: Sequence[Block]
    told: str
    tasks_per_square: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """How far from the brake it is; places are percent of the width."""

    share: str
    told: str
    limit: str
    filled: float
    limit_at: float
    end: str
    halts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBars:
    """What was released in the last minute, in steps of two seconds; places are percent of the width, heights are px of 22."""

    now: str
    told: str
    bars: Sequence[tuple[float, float]]
    most: int


def draw_steps(operation: Operation, tallies: Sequence[StepTally], pace: float | None = None) -> list[StepPicture]:
    """All steps that the set is large enough for, the rest included; `pace` is how many tasks end in a second."""
    known = {one.number: one for one in tallies}
    course, tally = operation.course, operation.tally
    left, pictures = tally.left, []
    for index, planned in enumerate([*course.ramp.steps, None]):
        met = known.get(index + 1, StepTally(number=index + 1, fates={}))
        missing = left if planned is None else min(left, max(0, planned - met.released))
        left -= missing
        if not met.released and not missing and not met.fates:
            continue
        past = index < course.step or (not tally.left and not met.fates.get(Fate.RELEASED))
        when = (
            "past"
            if past and met.released
            else "now"
            if index == course.step and operation.ended_at is None
            else "next"
        )
        pictures.append(_step(index, planned, met, missing, when, operation, pace))
    return pictures


def _step(
    index: int,
    planned: int | None,
    met: StepTally,
    missing: int,
    when: str,
    operation: Operation,
    pace: float | None,
) -> StepPicture:
    size = met.released + missing
    each = max(1, ceil(size / SQUARES_MAX))
    runs = [(fate.value, ceil(met.fates.get(fate, 0) / each)) for fate in SHOWN] + [(TO_COME, ceil(missing / each))]
    squares = sum(amount for _, amount in runs)
    columns = _columns(squares, rest=planned is None)
    lines = max(1, ceil(squares / columns))
    blocks, start = list[Block](), 0
    for look, amount in runs:
        blocks += _blocks(look, start, start + amount, columns, lines)
        start += amount
    name = f"Step {index + 1}"
    if planned is None:
        name = "All of them" if not operation.course.ramp.steps else f"{name}, the rest"
    return StepPicture(
        number=index + 1,
        title=f"{name}, {NOW.get(operation.state, 'now')}" if when == "now" else name,
        when=when if when != "now" or operation.state is not OperationState.HALTED else "stopped",
        size=size,
        width=max(1, min(columns, squares)) * PITCH - PITCH + SQUARE,
        height=lines * PITCH - PITCH + SQUARE,
        blocks=blocks,
        told=_told(met, missing, when, operation, pace, rest=planned is None),
        tasks_per_square=each,
    )


def _columns(squares: int, *, rest: bool) -> int:
    if squares <= NARROW:
        return 1
    return min(COLUMNS_MAX, ceil(sqrt(squares * (3 if rest else 1))))


def _blocks(look: str, start: int, end: int, columns: int, lines: int) -> list[Block]:
    """The squares from `start` to `end`, line by line from the bottom left: at most three rectangles."""
    found = []
    while start < end:
        line, column = divmod(start, columns)
        if column or end - start < columns:
            amount, high = min(columns - column, end - start), 1
        else:
            high = (end - start) // columns
            amount = columns
        top = lines - line - high
        wide, tall = amount * PITCH - PITCH + SQUARE, high * PITCH - PITCH + SQUARE
        found.append(Block(look, column * PITCH, top * PITCH, wide, tall))
        start += amount * high
    return found


def _told(met: StepTally, missing: int, when: str, operation: Operation, pace: float | None, *, rest: bool) -> str:
    ramp = operation.course.ramp
    parts = [f"{met.fates[fate]:,} {WORDS[fate]}" for fate in SHOWN if met.fates.get(fate)]
    if missing and (when == "next" or rest):
        parts.append(f"{missing:,} to come, {ramp.rate_words}" if rest else f"{missing:,} to come")
    said = ", ".join(parts)
    if when == "past" and met.began_at is not None and met.ended_at is not None:
        said += f" in {format_duration(rounded(met.ended_at - met.began_at))}"
    lasts = takes(met.fates.get(Fate.RELEASED, 0) + missing, ramp, pace)
    if lasts and when != "past" and operation.state is OperationState.RUNNING:
        said += f"{'; ends' if when == 'now' else ','} in about {about(lasts)}"
    skipped = met.fates.get(Fate.SKIPPED, 0)
    if skipped:
        said += f"; {skipped:,} skipped"
    unfit = met.fates.get(Fate.UNFIT, 0)
    if unfit:
        said += f"; {unfit:,} left as {'it was' if unfit == 1 else 'they were'}: the edit cannot be applied"
    return said


def about(span: timedelta) -> str:
    """A span as nobody knows it better: `20s`, `1m 30s`, `2h`."""
    seconds = span.total_seconds()
    step = 1 if seconds < 10 else 5 if seconds < 60 else 30 if seconds < 600 else 60
    return format_duration(rounded(timedelta(seconds=max(1, step * round(seconds / step)))))


def draw_brake(operation: Operation) -> Brake:
    """The share that failed again, and the one that stops it."""
    course = operation.course
    released, failed = braking(course, operation.tally)
    share, limit = failed / released if released else 0.0, course.ramp.halt
    end = min(1.0, max(1.5 * limit, 1.2 * share, 0.05))
    since = " since it was last resumed" if course.braked_at != (0, 0) else ""
    return Brake(
        share=share_words(share),
        told=f"{failed:,} of {released:,} released{since} failed again" if released else "nothing released yet",
        limit=share_words(limit),
        filled=round(100 * min(1.0, share / end), 2),
        limit_at=round(100 * min(1.0, limit / end), 2),
        end=share_words(end),
        halts=limit < 1 and operation.tally.total != 1,
    )


def draw_rate(operation: Operation, released_at: Sequence[datetime], now: datetime) -> RateBars:
    """How many a second were released in the last minute."""
    ramp = operation.course.ramp
    width = LATELY / BARS
    counts = [0] * BARS
    for at in released_at:
        index = BARS - 1 - int((now - at) / width)
        if 0 <= index < BARS:
            counts[index] += 1
    a_second = [count / width.total_seconds() for count in counts]
    limit = None if ramp.rate is None else ramp.rate / ramp.per.total_seconds()
    top = max(limit or 0.0, *a_second, 1e-9)
    bars = [
        (round(100 * index / BARS, 2), round(22 * min(1.0, one / top), 2)) for index, one in enumerate(a_second) if one
    ]
    last = sum(1 for at in released_at if now - at < timedelta(seconds=1))
    running = operation.state is OperationState.RUNNING
    return RateBars(
        now=f"{last:,}",
        told="a second now" if running else f"a second: it is {operation.state}",
        bars=bars,
        most=ceil(max(a_second)),
    )
