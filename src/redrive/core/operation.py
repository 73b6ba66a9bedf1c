"""A redrive operation: a frozen set of dead tasks that comes back step by step, with a brake. What to do next is decided here.

Pure: no clock, no store. `operator/sql/operations.py` writes what is decided, and `operator/carrier.py` comes back for more.

A step is released when the one before has ended: each of its tasks is done, is dead again, or waits for a second try. What is left
after the last step follows at the rate. The brake is a share: of the tasks released since somebody last let it go on, so many may
fail again, and not one more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from redrive.core.durations import ZERO
from redrive.core.gate_rules import SECOND, read_rate
from redrive.core.states import State
from redrive.errors import TransitionError, UsageError

STEPS = (1, 5, 25, 100)
RATE = "20/s"
HALT = 0.1
STEPS_MAX = 20
STEP_MAX = 1_000_000
RELEASED_AT_ONCE = 500
"""How many one transaction releases."""
BURST = timedelta(milliseconds=40)
"""Slots that were missed are made up for this far back, and no further: any second stays within 4 % of the rate."""
OUT_MIN = 100
OUT_SPAN = timedelta(seconds=10)
"""After the last step so many are out at once, or as many as the rate releases in this span: the brake must see them end."""


class OperationState(StrEnum):
    """Where an operation stands."""

    GATHERING = "gathering"
    UNAPPROVED = "waiting for approval"
    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    DONE = "done"
    GIVEN_BACK = "given back"


class OperationAct(StrEnum):
    """What moves an operation from one state to another."""

    FREEZE = "freeze"
    APPROVE = "approve"
    PAUSE = "pause"
    RESUME = "resume"
    HALT = "halt"
    GIVE_BACK = "give back"
    FINISH = "finish"


_G, _U, _R, _P, _H, _D, _B = OperationState

TRANSITIONS: dict[OperationAct, frozenset[tuple[OperationState, OperationState]]] = {
    OperationAct.FREEZE: frozenset({(_G, _R), (_G, _U), (_G, _D)}),
    OperationAct.APPROVE: frozenset({(_U, _R)}),
    OperationAct.PAUSE: frozenset({(_R, _P)}),
    OperationAct.RESUME: frozenset({(_P, _R), (_H, _R)}),
    OperationAct.HALT: frozenset({(_R, _H), (_P, _H)}),
    OperationAct.GIVE_BACK: frozenset({(_G, _B), (_U, _B), (_R, _B), (_P, _B), (_H, _B)}),
    OperationAct.FINISH: frozenset({(_R, _D)}),
}
"""For each act the changes of state that it may make; every pair not listed is refused."""

ENDED = frozenset({OperationState.DONE, OperationState.GIVEN_BACK})
"""States that nothing leaves."""

AFTER = {
    OperationAct.APPROVE: OperationState.RUNNING,
    OperationAct.PAUSE: OperationState.PAUSED,
    OperationAct.RESUME: OperationState.RUNNING,
    OperationAct.HALT: OperationState.HALTED,
    OperationAct.GIVE_BACK: OperationState.GIVEN_BACK,
}
"""Where the acts of people lead."""


def check_act(act: OperationAct, before: OperationState, after: OperationState) -> None:
    """Raise `TransitionError` unless `act` may lead from `before` to `after`."""
    if (before, after) not in TRANSITIONS[act]:
        allowed = " or ".join(sorted({source for source, _ in TRANSITIONS[act]}))
        raise TransitionError(f"the operation is {before}: {act} is for one that is {allowed}")


class Fate(StrEnum):
    """What has become of one task of the set."""

    FROZEN = "frozen"
    """It is dead as it was, and its turn is to come."""
    RELEASED = "released"
    """It was redriven, and has not ended yet."""
    DONE = "done"
    FAILED = "failed"
    """It failed again: it is dead, or waits for a second try."""
    ENDED = "ended"
    """It ended otherwise: cancelled, or deleted."""
    SKIPPED = "skipped"
    """Somebody or something else has changed it since the set was frozen."""
    UNFIT = "unfit"
    """The edit does not fit it: it was left as it was."""


def fate_of(state: State | None, failures: int) -> Fate:
    """What has become of a released task, by its row; None where there is no row any more."""
    match state:
        case State.DONE:
            return Fate.DONE
        case State.DEAD:
            return Fate.FAILED
        case State.CANCELLED | None:
            return Fate.ENDED
        case _:
            return Fate.FAILED if failures else Fate.RELEASED


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """How an operation goes: its steps, the rate, and the brake. A rate of None is none; a `halt` of 1 never brakes."""

    steps: tuple[int, ...] = STEPS
    rate: int | None = 20
    per: timedelta = SECOND
    halt: float = HALT

    @property
    def interval(self) -> timedelta:
        """From one task to the next; rounded up, so that the rate is never exceeded."""
        return ZERO if self.rate is None else -(-self.per // self.rate)

    @property
    def out_max(self) -> float:
        """How many may be out at once after the last step."""
        if self.rate is None:
            return math.inf
        return max(OUT_MIN, *self.steps, OUT_SPAN // self.interval)

    @property
    def rate_words(self) -> str:
        """`20 a second`, or `as fast as the database takes them`."""
        if self.rate is None:
            return "as fast as the database takes them"
        each = {1: "a second", 60: "a minute", 3600: "an hour"}[round(self.per.total_seconds())]
        return f"{self.rate:,} {each}"


ALL_NOW = Ramp(steps=(), rate=None, halt=1.0)
"""No steps, no rate, no brake."""


def read_ramp(
    steps: Sequence[int] | str | None = None,
    rate: str | int | None = None,
    halt: float | str | None = None,
    *,
    all_now: bool = False,
) -> Ramp:
    """A ramp as people write it: `"1,5,25,100"`, `"20/s"`, `"10%"`; what is not given is the default."""
    if all_now:
        if (steps, rate, halt) != (None, None, None):
            raise UsageError("all now has no steps, no rate and no brake: leave them out, or leave out all now")
        return ALL_NOW
    amount, per = read_rate(RATE if rate is None else rate)
    return Ramp(steps=read_steps(STEPS if steps is None else steps), rate=amount, per=per, halt=read_share(halt))


def read_steps(given: Sequence[int] | str) -> tuple[int, ...]:
    """`"1,5,25"` or numbers; none is written as an empty text."""
    try:
        steps = [int(one) for one in given.split(",") if one.strip()] if isinstance(given, str) else list(given)
    except ValueError:
        steps = [0]
    whole = all(isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= STEP_MAX for one in steps)
    if len(steps) > STEPS_MAX or not whole:
        raise UsageError(
            f"steps are up to {STEPS_MAX} numbers from 1 to {STEP_MAX:,}, such as 1,5,25,100, not {given!r:.80}"
        )
    return tuple(steps)


def read_share(given: float | str | None) -> float:
    """`"10%"`, `"0.1"` or 0.1."""
    if given is None:
        return HALT
    try:
        if isinstance(given, str):
            text = given.strip()
            share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
        else:
            share = float(given)
    except (TypeError, ValueError):
        share = math.nan
    if isinstance(given, bool) or not 0 <= share <= 1:
        raise UsageError(f"halt is a share such as 10% or 0.1, at most 100%, not {given!r:.80}")
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class FateTally:
    """How many tasks of the set met which fate."""

    total: int = 0
    released: int = 0
    """All that were ever released, whatever became of them."""
    done: int = 0
    failed: int = 0
    ended: int = 0
    skipped: int = 0
    unfit: int = 0

    @property
    def out(self) -> int:
        """Released, and not ended yet."""
        return self.released - self.done - self.failed - self.ended

    @property
    def left(self) -> int:
        """Still to come."""
        return self.total - self.released - self.skipped - self.unfit


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far an operation has come, as far as decisions need it."""

    state: OperationState
    ramp: Ramp
    step: int = 0
    """The step it is in, from zero; behind the last one is the rest."""
    in_step: int = 0
    """How many of this step have been released."""
    next_at: datetime | None = None
    """When the next task may be released; None before the first."""
    braked_at: tuple[int, int] = (0, 0)
    """How many had been released and had ended, and how many had failed, when somebody last let it go on."""

    @property
    def steps(self) -> int:
        """How many steps there are, the rest included."""
        return len(self.ramp.steps) + 1

    @property
    def size(self) -> int | None:
        """How many the current step releases; None for the rest."""
        return self.ramp.steps[self.step] if self.step < len(self.ramp.steps) else None


@dataclass(frozen=True, slots=True)
class Release:
    """Release so many of this step now."""

    amount: int
    course: Course
    """With the step that they belong to."""
    says: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something ends, or until this instant."""

    says: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """Pull the brake."""

    says: str


@dataclass(frozen=True, slots=True)
class Finish:
    """All have ended."""

    says: str


@dataclass(frozen=True, slots=True)
class Rest:
    """It does not run."""


Next = Release | Wait | Halt | Finish | Rest


def decide_next(course: Course, tally: FateTally, now: datetime) -> Next:
    """What an operation does now, and why, in a sentence."""
    if course.state is not OperationState.RUNNING:
        return Rest()
    if (brake := brake_says(course, tally)) is not None:
        return Halt(brake)
    if not tally.left:
        return Finish(end_says(tally)) if not tally.out else Wait(f"waits for the last {tally.out:,} to end")
    if course.size is not None and course.in_step >= course.size:
        if tally.out:
            return Wait(f"waits for the last {tally.out:,} of step {course.step + 1}")
        course = replace(course, step=course.step + 1, in_step=0)
    room = course.ramp.out_max - tally.out if course.size is None else course.size - course.in_step
    if room < 1:
        return Wait(f"waits: {tally.out:,} are out, and have not ended yet")
    slots = slots_now(course, now)
    if slots < 1:
        return Wait("keeps to the rate", next_slot(course, now))
    amount = int(min(room, tally.left, slots, RELEASED_AT_ONCE))
    return Release(amount, course, f"releases {amount:,} of {step_name(course)}")


def slots_now(course: Course, now: datetime) -> float:
    """How many tasks the rate lets out at this instant."""
    if course.ramp.rate is None:
        return math.inf
    slot = next_slot(course, now)
    return 0 if slot > now else (now - slot) // course.ramp.interval + 1


def next_slot(course: Course, now: datetime) -> datetime:
    """The instant at which the next task may be released: one interval behind the last one.

    Where slots are closer together than a loop comes round, those of the last moment are made up for.
    """
    earliest = now - BURST if course.ramp.interval <= BURST else now
    return earliest if course.next_at is None else max(course.next_at, earliest)


def after_release(course: Course, amount: int, now: datetime) -> Course:
    """The course once so many have been released."""
    next_at = next_slot(course, now) + course.ramp.interval * amount
    return replace(course, in_step=course.in_step + amount, next_at=next_at)


def let_go_on(course: Course, tally: FateTally) -> Course:
    """The course when a person lets it go on: what failed until now is known, and does not brake again."""
    return replace(course, state=OperationState.RUNNING, braked_at=(tally.released - tally.out, tally.failed))


def braking(course: Course, tally: FateTally) -> tuple[int, int]:
    """Of how many released tasks how many failed, as the brake sees it."""
    return tally.released - course.braked_at[0], tally.failed - course.braked_at[1]


def brake_says(course: Course, tally: FateTally) -> str | None:
    """Why the brake is pulled; None if it is not. A set of one has nothing that it could hold back."""
    released, failed = braking(course, tally)
    if failed <= course.ramp.halt * released or tally.total == 1:
        return None
    again = "the first task released" if released == 1 else f"{failed:,} of {released:,} released tasks"
    return f"it stopped by itself: {again} failed again, and the limit is {share_words(course.ramp.halt)}"


def share_words(share: float) -> str:
    """`10%`."""
    return f"{share * 100:.3g}%"


def step_name(course: Course) -> str:
    """`step 2`, or `the rest`."""
    return f"step {course.step + 1}" if course.size is not None else "the rest"


def end_says(tally: FateTally) -> str:
    """What an operation came to."""
    parts = [
        f"{amount:,} {word}"
        for amount, word in (
            (tally.done, "done"), (tally.failed, "failed again"), (tally.ended, "ended otherwise"),
            (tally.skipped, "skipped"), (tally.unfit, "left as they were"),
        )
        if amount
    ]  # fmt: skip
    whole = "the one task is" if tally.total == 1 else f"all {tally.total:,} are"
    return f"{whole} through: {', '.join(parts)}" if parts else "no task matched"
