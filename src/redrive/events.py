"""Frozen facts that the engine announces to observers, after they are durable."""

from dataclasses import dataclass
from datetime import timedelta

from redrive.core.decide import Settlement
from redrive.core.operation import OperationState
from redrive.core.states import Act
from redrive.core.task import Claim, TaskId

__all__ = [
    "Act", "AttemptEnded", "AttemptStarted", "Claim", "Event", "LedgerAway", "LedgerBack", "LoopBlocked", "OperationChanged",
    "SettleFailed", "SettleLost", "Settlement", "TaskAdded", "TasksChanged", "TasksPruned", "ThreadsLeft",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskAdded:
    """A task is stored; `new` is false if its key was there already."""

    ledger: str
    kind: str
    key: str
    id: TaskId
    new: bool


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A handler is about to be called."""

    ledger: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """A settlement is written: the task is done, waits for its next try, is dead or cancelled."""

    ledger: str
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class SettleLost:
    """A settlement was refused by the fence: somebody else owns the task now."""

    ledger: str
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class SettleFailed:
    """A settlement cannot be written now, though the ledger is there: it is kept and tried again, after longer and longer pauses."""

    ledger: str
    settlement: Settlement
    error: str


@dataclass(frozen=True, slots=True)
class TasksChanged:
    """A person or a system acted on tasks: redriven, cancelled, resolved, returned."""

    ledger: str
    act: Act
    ids: tuple[TaskId, ...]
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class OperationChanged:
    """A redrive operation stands elsewhere now: it runs, was halted, is done; by whom and why."""

    ledger: str
    id: str
    state: OperationState
    why: str
    actor: str


@dataclass(frozen=True, slots=True)
class TasksPruned:
    """Tasks that ended long ago were deleted."""

    ledger: str
    amount: int


@dataclass(frozen=True, slots=True)
class ThreadsLeft:
    """A worker that stops still has plain handlers in threads, which nothing can stop: their claims are kept meanwhile."""

    ledger: str
    kinds: tuple[str, ...]
    amount: int


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """The event loop stood still: a handler of these kinds ran without awaiting anything, and everybody waited for it."""

    ledger: str
    kinds: tuple[str, ...]
    span: timedelta


@dataclass(frozen=True, slots=True)
class LedgerAway:
    """The ledger cannot be reached; announced once, not at every try."""

    ledger: str
    error: str


@dataclass(frozen=True, slots=True)
class LedgerBack:
    """The ledger can be reached again."""

    ledger: str
    after: timedelta


Event = (
    TaskAdded
    | AttemptStarted
    | AttemptEnded
    | SettleLost
    | SettleFailed
    | TasksChanged
    | OperationChanged
    | TasksPruned
    | ThreadsLeft
    | LoopBlocked
    | LedgerAway
    | LedgerBack
)
