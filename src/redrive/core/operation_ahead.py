"""What an operation will do next, line by line, and about when. Pure: what it does now is decided in `core.operation`.

Two rates tell when: the one that it may release at, and the one at which its tasks have ended lately. The slower one counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.core.operation import Course, FateTally, OperationState, Ramp

LATELY = timedelta(minutes=1)
"""How far back the pace is measured."""
ENDED_MIN = 3
"""Fewer ends tell no pace."""
FORECAST_MAX = timedelta(days=365)
"""What would take longer has no forecast that anybody could use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """One line of what comes: what it does, what that means, and by when it is through."""

    does: str
    means: str = ""
    by: datetime | None = None
    """About when it is through; None where nothing tells."""
    at_the_earliest: bool = False
    """Only the rate is known: it may take longer than that."""


def ends_a_second(ended: Sequence[datetime], now: datetime) -> float | None:
    """At which pace tasks have ended lately; None where too few have to tell."""
    recent = [at for at in ended if timedelta(0) <= now - at <= LATELY]
    if len(recent) < ENDED_MIN:
        return None
    return len(recent) / max(1.0, (now - min(recent)).total_seconds())


def takes(amount: int, ramp: Ramp, pace: float | None) -> timedelta | None:
    """About how long so many tasks take from their release to their end: `max(amount / rate, amount / pace)`."""
    if pace is None:
        return None
    ends_in = amount / pace
    if ends_in > FORECAST_MAX.total_seconds() or ramp.interval * amount > FORECAST_MAX:
        return None
    return max(ramp.interval * amount, timedelta(seconds=ends_in))


def time_left(course: Course, tally: FateTally, pace: float | None) -> timedelta | None:
    """About how long a running operation still takes; None where nothing tells."""
    if course.state is not OperationState.RUNNING or not tally.left + tally.out:
        return None
    waits, comes = takes(tally.out, Ramp(rate=None), pace), takes(tally.left, course.ramp, pace)
    return None if waits is None or comes is None else waits + comes


def ahead(course: Course, tally: FateTally, now: datetime, pace: float | None = None) -> list[Ahead]:
    """What an operation will do next; `pace` is how many of its tasks end in a second."""
    match course.state:
        case OperationState.GATHERING:
            return [Ahead(does=f"Stores its set: {tally.total:,} so far", means="then it begins with the first step")]
        case OperationState.UNAPPROVED:
            return [Ahead(does="Waits for another person's approval", means="nothing has been released")]
        case OperationState.PAUSED | OperationState.HALTED:
            return [*_out_runs_on(tally, "what was released is not taken back"), _releases_none(tally)]
        case OperationState.DONE | OperationState.GIVEN_BACK:
            return _out_runs_on(tally, "it releases nothing more")
        case OperationState.RUNNING:
            return _running(course, tally, now, pace)


def _out_runs_on(tally: FateTally, means: str) -> list[Ahead]:
    they = "1 that is out runs on" if tally.out == 1 else f"{tally.out:,} that are out run on"
    return [Ahead(does=they, means=means)] if tally.out else []


def _releases_none(tally: FateTally) -> Ahead:
    if not tally.left:
        return Ahead(does="Releases nothing: none are left", means="resume it, and it ends")
    them = "the one task that is left" if tally.left == 1 else f"any of the {tally.left:,} tasks that are left"
    means = f"until somebody resumes it or gives {'it' if tally.left == 1 else 'them'} back"
    return Ahead(does=f"Does not release {them}", means=means)


def _running(course: Course, tally: FateTally, now: datetime, pace: float | None) -> list[Ahead]:
    lines: list[Ahead] = []
    by: datetime | None = now

    def then(span: timedelta | None) -> datetime | None:
        nonlocal by
        by = None if by is None or span is None else by + span
        return by

    left, step, in_step = tally.left, course.step, course.in_step
    if tally.out:
        means = "each is done, dead again, or waits for a second try"
        lines.append(
            Ahead(
                does=f"Waits for {tally.out:,} that {'is' if tally.out == 1 else 'are'} out",
                means=means,
                by=then(takes(tally.out, Ramp(rate=None), pace)),
            )
        )
    while left and step < len(course.ramp.steps):
        amount = min(left, course.ramp.steps[step] - in_step)
        if amount:
            through = then(takes(amount, course.ramp, pace))
            means = "when the step before has ended"
            lines.append(Ahead(does=f"Releases {amount:,} of step {step + 1}", means=means, by=through))
        left, step, in_step = left - amount, step + 1, 0
    if left:
        last = "the last" if tally.left == left else "then the last"
        does = f"Releases {last} {left:,}, {course.ramp.rate_words}"
        through = then(takes(left, course.ramp, pace))
        if through is None and course.ramp.rate is not None and course.ramp.interval * left <= FORECAST_MAX:
            lines.append(Ahead(does=does, by=now + course.ramp.interval * left, at_the_earliest=True))
        else:
            lines.append(Ahead(does=does, by=through))
    lines.append(Ahead(does="Reports what failed again, and ends", means="those stay dead, each with its new cause"))
    return lines
