"""Redrive operations as people and stores know them: what is asked, how far it has come, what became of each task.

What an operation does next is decided in `core.operation`. It is kept by an `Operations` (see `ports`), carried on by a `Carrier`, and
started and steered through `operator.operating`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from redrive.core.edit import Edit, PayloadChange, difference
from redrive.core.operation import (
    Course,
    Fate,
    FateTally,
    OperationState,
    Ramp,
    decide_next,
    share_words,
)
from redrive.core.operation_ahead import Ahead, ahead
from redrive.core.preview import Try
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.ports import Filter

IDS_MAX = 10_000
"""How many tasks are named one by one; more are asked for by a filter."""
KEPT = timedelta(days=90)
"""How long an operation that has ended can be looked at."""
SAMPLE = 20
"""On so many tasks an edit is tried before anybody starts it."""
BY_ITSELF = "redrive"
"""Who did what an operation did by itself."""
NO_OPERATIONS = "operations are kept in SQL, beside the tasks that they bring back: over items of DynamoDB redrive tasks directly, in portions of your own"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperation:
    """An operation to be started. `approval_over` is from how many tasks on another person must approve; None where nobody need."""

    ledger: str
    asked: Filter
    ramp: Ramp
    actor: str
    reason: str
    edit: Edit | None = None
    approval_over: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation as it stands."""

    id: str
    ledger: str
    course: Course
    tally: FateTally
    asked: Mapping[str, Any]
    until: datetime
    """The instant that its set is frozen at."""
    started_by: str
    reason: str
    started_at: datetime
    edit: Edit | None = None
    approval_over: int | None = None
    approved_by: str | None = None
    approved_at: datetime | None = None
    frozen_at: datetime | None = None
    """When its set was complete."""
    why: str = ""
    """Why it stands where it stands."""
    changed_by: str
    changed_at: datetime
    """Who brought it there, and when."""
    ended_at: datetime | None = None
    cursor: str | None = None

    @property
    def state(self) -> OperationState:
        """Where it stands."""
        return self.course.state

    @property
    def halted_itself(self) -> bool:
        """Whether its brake was pulled, and not by a person."""
        return self.state is OperationState.HALTED and self.changed_by == BY_ITSELF

    def says(self, now: datetime) -> str:
        """What it does now, or why it does nothing, in a sentence."""
        match self.state:
            case OperationState.GATHERING:
                return f"stores its set: {self.tally.total:,} tasks so far"
            case OperationState.UNAPPROVED:
                return f"waits for another person's approval: {self.tally.total:,} tasks are more than {self.approval_over:,}"
            case OperationState.RUNNING:
                following = decide_next(self.course, self.tally, now)
                return getattr(following, "says", self.why)
            case OperationState.PAUSED:
                return f"paused by {self.changed_by}: {self.why}"
            case OperationState.HALTED if not self.halted_itself:
                return f"halted by {self.changed_by}: {self.why}"
            case OperationState.GIVEN_BACK:
                left = self.tally.left
                return f"given back by {self.changed_by}: {left:,} stay dead as they were; {self.why}"
            case _:
                return self.why

    def ahead(self, now: datetime, pace: float | None = None) -> list[Ahead]:
        """What it will do next, line by line; `pace` is how many of its tasks end in a second."""
        return ahead(self.course, self.tally, now, pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTask:
    """One task of the frozen set."""

    position: int
    task_id: str
    fate: Fate
    step: int | None
    released_at: datetime | None
    ended_at: datetime | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatelyMoved:
    """When tasks of an operation were released and when they ended lately, up to some thousands; in no order."""

    released: Sequence[datetime] = ()
    ended: Sequence[datetime] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTally:
    """What became of the tasks of one step; `number` counts from one."""

    number: int
    fates: Mapping[Fate, int]
    began_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def released(self) -> int:
        """All that were released."""
        return sum(self.fates.get(fate, 0) for fate in (Fate.RELEASED, Fate.DONE, Fate.FAILED, Fate.ENDED))


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedTask:
    """A payload that an operation changed: as it was, and as it has been since."""

    task_id: str
    at: datetime
    operation: str
    actor: str
    reason: str
    before: Any
    after: Any

    @property
    def changes(self) -> list[PayloadChange]:
        """The difference."""
        return difference(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """An edit tried on one task: what it would change, or why it does not fit."""

    task_id: TaskId
    changes: Sequence[PayloadChange] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSet:
    """What is known of dead tasks that match, before anybody touches them."""

    amount: int
    kinds: Sequence[tuple[str, int]] = ()
    causes: Sequence[tuple[str, str, int]] = ()
    """What they died of: the cause, one of its errors, how many; as of the last census."""
    oldest: datetime | None = None
    newest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A dry run: what an operation would take, and what would happen."""

    ledger: str
    until: datetime
    ramp: Ramp
    dead: DeadSet
    tries: Mapping[str, Sequence[Try]] = field(default_factory=dict)
    """For each kind of which a handler is known here: the tries of one task, if each fails."""
    sampled: Sequence[Sampled] = ()
    needs_approval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What one round of an operation came to."""

    operation: Operation
    released: Sequence[TaskId] = ()
    wait: timedelta = timedelta(0)
    """How long nothing is to be done."""
    changed: bool = False
    """Whether its state is another since."""
    followed: int = -1
    """Behind which position to look next at what is out."""


def asked_json(asked: Filter) -> dict[str, Any]:
    """A filter for the store. What it must be dead for is not said: operations take dead tasks only."""
    found: dict[str, Any] = {
        name: value for name in ("kind", "key", "error", "cause") if (value := getattr(asked, name)) is not None
    }
    if asked.older_than is not None:
        found["older_than_seconds"] = asked.older_than.total_seconds()
    if asked.ids is not None:
        found["ids"] = [str(id_) for id_ in asked.ids]
    return found


def read_asked(stored: Mapping[str, Any], until: datetime, read_id: Any) -> Filter:
    """A filter as `asked_json` wrote it, frozen at an instant."""
    known = dict(stored)
    seconds, ids = known.pop("older_than_seconds", None), known.pop("ids", None)
    return Filter(
        state=State.DEAD,
        until=until,
        older_than=None if seconds is None else timedelta(seconds=seconds),
        ids=None if ids is None else [read_id(one) for one in ids],
        **known,
    )


def check_asked(asked: Filter) -> Filter:
    """The filter if an operation can take what it asks for, else a `UsageError`."""
    if asked.state not in (None, State.DEAD):
        raise UsageError(f"an operation brings dead tasks back, not {asked.state} ones")
    if asked.text is not None:
        raise UsageError(
            "an operation takes kind, key, error, cause, age or ids: a text is searched for in the background"
        )
    if asked.ids is not None and len(asked.ids) > IDS_MAX:
        raise UsageError(f"name at most {IDS_MAX:,} tasks one by one, not {len(asked.ids):,}: ask for more by a filter")
    return replace(asked, state=State.DEAD)


def asked_words(asked: Mapping[str, Any]) -> str:
    """What was asked for, in a few words."""
    words = []
    if "kind" in asked:
        words.append(f"kind {asked['kind']}")
    if "cause" in asked:
        words.append(f"cause {asked['cause']}")
    if "key" in asked:
        words.append(f"key {asked['key']}")
    if "error" in asked:
        words.append(f"error with “{asked['error']}”")
    if "older_than_seconds" in asked:
        words.append(f"older than {timedelta(seconds=asked['older_than_seconds'])}")
    if "ids" in asked:
        amount = len(asked["ids"])
        named = f"{amount:,} named {'task' if amount == 1 else 'tasks'}"
        words.insert(0, f"the first {amount:,} of" if words else named)
        return " ".join([words[0], ", ".join(words[1:])]).strip()
    return ", ".join(words) or "all dead tasks"


def ramp_words(ramp: Ramp) -> str:
    """A ramp in a line."""
    if not ramp.steps and ramp.rate is None:
        return "all now, without a brake"
    steps = f"{', '.join(f'{one:,}' for one in ramp.steps)}, then the rest" if ramp.steps else "all of them"
    return f"{steps}; {ramp.rate_words}; stops above {share_words(ramp.halt)}"
