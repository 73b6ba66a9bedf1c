"""What people ask of a store, and of a ledger, beside the engine's questions. Each promise holds for every store."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from redrive.core.durations import Span
from redrive.core.effect_mark import EffectAnswer
from redrive.core.gate_rules import GateRule
from redrive.core.operation import Fate, OperationAct, OperationState
from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.core.task import Added, NewTask, Task, TaskId
from redrive.engine.tally import KindCounts
from redrive.operator.alerts import Alert, News
from redrive.operator.audit import AuditEntry
from redrive.operator.chain import ChainHead, ChainVerdict
from redrive.operator.failed_again import FailedAgain
from redrive.operator.figures import SUMMED, Depth, Group, Point, States
from redrive.operator.found import Chunk, PastTries
from redrive.operator.gates import GateDoes, GateSpan, GateSums, GateView, ParkedMinute, ParkedTask, RuleView
from redrive.operator.kinds import KindsSeen, KindSums, VersionSeen, WaitingKind
from redrive.operator.operations import (
    DeadSet,
    EditedTask,
    LatelyMoved,
    Moved,
    NewOperation,
    Operation,
    SetTask,
    StepTally,
)
from redrive.operator.roster import SHOWN_MAX, WorkerSeen, WorkerSign
from redrive.ports import Actor, Filter, Ledger, LedgerReader, Page, Within


class OperatorLedger(Ledger, LedgerReader, Protocol):
    """A ledger that people look at and act on."""

    table: LedgerTable

    def read_id(self, text: str) -> TaskId:
        """The id that a person wrote, in the type of this ledger's ids; `UsageError` where none could look so."""
        ...

    async def named(self, names: Sequence[str]) -> dict[str, set[TaskId]]:
        """The tasks that have each name as their id or as their key: none, one or two."""
        ...

    async def result(self, id: TaskId) -> Any:
        """What the handler of a task returned when it was done; None where it returned nothing, or the store keeps no results."""
        ...

    async def answer(self, ids: Sequence[TaskId], answer: EffectAnswer, actor: Actor) -> list[TaskId]:
        """Say of dead tasks whether their effects happened: done, waiting again, or cancelled. Returns those that changed.

        Only tasks whose question is open are changed. `UsageError` where no marks are kept.
        """
        ...

    async def ask_to_stop(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """Have tasks that run now cancelled by the workers that hold them. Returns those that are asked.

        Each ends as cancelled, or as what it was if it ended first. `UsageError` where workers cannot be asked.
        """
        ...

    async def oldest_due(self) -> timedelta | None:
        """How long the oldest due task has waited; None where nothing is due."""
        ...

    async def open_kinds(self) -> list[str]:
        """The kinds of tasks that wait or are held, as far as one look goes."""
        ...

    async def set_rule(
        self,
        pattern: str,
        rule: GateRule | None,
        actor: Actor,
        *,
        by_code: bool = False,
        version: int | None = None,
    ) -> bool:
        """Set the limits of all gates that the pattern fits best, or take them away; they hold from the next claim on.

        With `by_code` only where no person has set them. `version` as in `pause_gate`. Whether anything was changed.
        """
        ...

    async def pause_gate(
        self, name: str, actor: Actor, *, span: Span | None = None, version: int | None = None
    ) -> bool:
        """Let nothing through until somebody resumes it or the span is over. What runs ends, what waits waits.

        Also a kind or the whole ledger, whether or not tasks have gates here: see `core.pauses`. `version` is the number of the
        last deed that the person saw: if somebody was quicker, nothing is changed (`StaleError`). Whether it was changed.
        """
        ...

    async def resume_gate(self, name: str, actor: Actor, *, version: int | None = None) -> bool:
        """Give a paused gate free; the parameters are those of `pause_gate`."""
        ...

    def add_sync(self, tasks: Sequence[NewTask], *, within: Within) -> list[Added]:
        """As `add`, for code without an event loop, in the caller's own transaction."""
        ...

    def cancel_sync(self, ids: Sequence[TaskId], actor: Actor, *, within: Within) -> list[TaskId]:
        """As `cancel`, for code without an event loop, in the caller's own transaction."""
        ...


class TaskPages(Protocol):
    """Pages of the tasks of one ledger by any filter, and how many there are.

    For people who wait, a page is in the order of the instant that matters, and every look is limited: who asks for more than an
    index can give gets a `TooSlowError`, not a wait. For code and commands it is in the order of the ids, and takes as long
    as it takes.
    """

    async def page(
        self, asked: Filter, *, cursor: TaskId | None = None, limit: int = 50, newest_first: bool = False
    ) -> Page[Task]:
        """A page of tasks; pass its `cursor` for the next one."""
        ...

    async def ids(
        self, asked: Filter, *, cursor: TaskId | None = None, limit: int = 500, newest_first: bool = False
    ) -> Page[TaskId]:
        """The same with ids alone."""
        ...

    async def count(self, asked: Filter) -> int:
        """How many tasks there are. Exact."""
        ...

    async def due_until(self, end: datetime, *, limit: int = 2000) -> list[datetime]:
        """When tasks that wait are due from now until then, the soonest first: the first so many. What has been due already is not in it.

        None where a ledger cannot tell: a queue on AWS, and instants that are texts on SQLite.
        """
        ...

    async def present(self) -> datetime:
        """The instant, as this ledger sees it."""
        ...


class Gates(Protocol):
    """The gates of one ledger, and the pauses of its kinds, as people see them. However many tasks there are, a look costs the same."""

    async def page(
        self, *, does: GateDoes | None = None, prefix: str = "", cursor: str | None = None, limit: int = 50
    ) -> Page[GateView]:
        """A page of gates; those that hold, return or are paused come first, then the others, each by their names.

        A page of those that do one thing may be short and still have a cursor: a look goes past so many others, and no more.
        """
        ...

    async def holding(self, *, limit: int = 20) -> list[GateView]:
        """The first of those that hold, return or are paused; where there are none, that costs next to nothing."""
        ...

    async def one(self, name: str) -> GateView | None:
        """The gate, or the pause of kinds, with this name; None where nobody has named it yet."""
        ...

    async def rules(self) -> list[RuleView]:
        """All limits, by their patterns."""
        ...

    async def rule_for(self, pattern: str) -> tuple[GateRule, int]:
        """The limits that hold for a gate or for the gates of a pattern, and the number of the last deed to it."""
        ...

    async def parked(self, task: Task) -> ParkedTask | None:
        """What keeps a waiting task back; None where it only waits for its time, or for a worker."""
        ...

    async def spans(self, names: Sequence[str], since: datetime) -> list[GateSpan]:
        """When these gates held, returned or were paused since then, in the order in which that began; as far as it was recorded."""
        ...

    async def parked_over(self, names: Sequence[str], since: datetime) -> Mapping[str, Sequence[ParkedMinute]]:
        """How many due tasks these gates kept back, minute by minute, while they held, returned or were paused; empty where nobody counts that."""
        ...

    async def sums(self) -> GateSums:
        """How many gates do what, and what they hold in all, of up to ten thousand."""
        ...

    async def record(self) -> int:
        """Write down what gates do now, if that has changed, and once a minute what they keep back; how many changes there were.

        Any number of processes may call this.
        """
        ...


class Census(Protocol):
    """How many tasks of one ledger are in which state, and why the dead ones died, counted in the background."""

    async def take_if_due(self) -> bool:
        """Count unless somebody does so now or has done so lately; whether it was done. Any number of processes may call this."""
        ...

    async def take(self) -> bool:
        """Count now, and bring the list of dead tasks up to date; False if somebody else has counted meanwhile."""
        ...

    async def hurry(self) -> None:
        """Have the next census taken soon: somebody has changed what is shown, and wants to see it."""
        ...

    async def amounts_now(self, counted: States) -> dict[State, int]:
        """How many tasks stand where now, carried on from what was counted."""
        ...

    async def waiting(self, kinds: Sequence[str]) -> Mapping[str, WaitingKind]:
        """Those of these kinds of which any task waits, and how many: a short look, and nothing where that is not possible."""
        ...


class Search(Protocol):
    """Goes through one ledger for what a filter asks, some at a time, for work that runs in the background."""

    async def chunk(self, after: TaskId | None) -> Chunk:
        """The next ones behind this id."""
        ...


class Audit(Protocol):
    """Who did what, when, from where and why: one entry for one act, the newest first. However much there is, a page costs the same."""

    async def page(self, ledger: str | None = None, *, cursor: str | None = None, limit: int = 100) -> Page[AuditEntry]:
        """A page of all, or of what was done to one ledger; the cursor is handed back as text.

        In DynamoDB a page of one ledger may be short and still have a cursor: a look goes past so many entries of others, and no more.
        """
        ...

    async def get(self, id: str) -> AuditEntry | None:
        """The act with this id."""
        ...

    async def things(self, id: str, *, cursor: str | None = None, limit: int = 100) -> Page[str]:
        """The ids of what an act has changed, in the order in which it did, also of what is long gone; empty if there is no such act."""
        ...


ReadProgress = Callable[[int], None]
"""Is told how many more were read."""


class Chain(Protocol):
    """The audit as a chain of hashes: whether a line was changed or removed. `UsageError` where a store has none."""

    async def link(self) -> int:
        """Give lines that have none their place in the chain; how many. Any number of processes may call this, and no act waits for it.

        Where a store has no chain, there is nothing to do.
        """
        ...

    async def head(self) -> ChainHead:
        """The last line that is linked: to be kept elsewhere."""
        ...

    async def unlinked(self) -> int:
        """How many lines are not linked yet, counted up to a limit: those are not protected."""
        ...

    async def verify(self, *, head: str | None = None, progress: ReadProgress | None = None) -> ChainVerdict:
        """Read the whole chain, and compare it with a head that was kept elsewhere, if there is one."""
        ...

    async def prune(self, older_than: timedelta, *, by: Actor) -> int:
        """Delete lines that are older, oldest first; how many. A line says so, and how the chain begins from then on."""
        ...


class History(Protocol):
    """The tries of one ledger that are on record, for whoever goes through all of them."""

    async def tries(self, since: datetime, *, after: str | None = None) -> PastTries:
        """Some tasks by their ids, each with its tries since then, without their stacks.

        There may be none, and still a cursor: what is older is passed over.
        """
        ...


class Figures(Protocol):
    """The numbers that charts are drawn from."""

    async def states(self) -> dict[str, States]:
        """Every ledger that was ever counted: its census, and what the minutes have counted since."""
        ...

    async def ledgers(self) -> list[str]:
        """Every ledger in which anything was counted."""
        ...

    async def series(
        self, ledgers: Sequence[str], start: datetime, step: timedelta, names: Sequence[str] = SUMMED
    ) -> list[Point]:
        """What happened since `start` in these ledgers, step by step; steps without anything are not there."""
        ...

    async def sums(self, ledgers: Sequence[str], start: datetime) -> Mapping[str, float]:
        """All that happened since `start` in these ledgers, added up."""
        ...

    async def depths(self, ledgers: Sequence[str], start: datetime, step: timedelta) -> list[Depth]:
        """How many tasks stood where, step by step."""
        ...

    async def groups(self, ledgers: Sequence[str], *, limit: int = 100) -> list[Group]:
        """The causes that tasks are dead of, the largest group first."""
        ...

    async def sample(self, ledger: str, amounts: Mapping[State, int], oldest_due: timedelta | None) -> None:
        """Write down how many there are now, for the chart of depths."""
        ...

    async def fold(self, now: datetime) -> int:
        """Fold what is old; how many rows went. Safe to call from several processes."""
        ...


class Alerts(Protocol):
    """What is wrong now, and what of it was told."""

    async def active(self) -> list[Alert]:
        """What is wrong now, the oldest first."""
        ...

    async def known(self) -> frozenset[str]:
        """The names of all that started and whose end was not told yet."""
        ...

    async def note(self, found: Mapping[str, tuple[str, str]], *, complete: bool = True) -> News:
        """Write down what is wrong now, as rule and text by name; what there is to tell of it.

        Unless that is `complete`, what is not in it has not ended.
        """
        ...

    async def told(self, started: Collection[str], ended: Collection[str]) -> None:
        """Note what was told."""
        ...


class Roster(Protocol):
    """Who works: processes that run handlers, and when they last gave a sign of life."""

    async def sign(self, sign: WorkerSign) -> None:
        """Write down that a worker is there, or that it has stopped."""
        ...

    async def seen(self, *, limit: int = SHOWN_MAX) -> Sequence[WorkerSeen]:
        """Those who were seen, the latest first."""
        ...

    async def forget(self) -> int:
        """Strike out those who have not been seen for long; how many there were."""
        ...


class CountedKinds(Protocol):
    """What workers have counted of each kind and of each cause. However many tasks there are, a look costs the same."""

    note: str | None
    """Why nothing is counted here, in a sentence; None where it is."""

    async def write(self, counts: Sequence[KindCounts], *, worker: str, version: str | None) -> None:
        """Write down what a worker has counted. A second time changes nothing, and nobody waits for another worker's rows."""
        ...

    async def look(self) -> KindsSeen:
        """The kinds of the last hour, and the causes that tries fail of or failed of lately."""
        ...

    async def sums(self, span: timedelta) -> Mapping[tuple[str, str], KindSums]:
        """What each kind did over this span until now, by ledger and kind; `TooSlowError` where that is too much to read at once."""
        ...

    async def versions(
        self, ledger: str, kind: str, *, cause: str | None = None, until: datetime | None = None
    ) -> list[VersionSeen]:
        """What each version has tried of a kind, and how much of it failed of this cause, or of any; the latest first."""
        ...

    async def fold(self, now: datetime) -> int:
        """Fold what is old and forget what is older; how many rows went. One service at a time."""
        ...


class Turns(Protocol):
    """Chores that one of many services does for all of them: whoever takes the turn does it, and the others look again later.

    A turn ends by itself, so that a service that dies with it holds nobody up.
    """

    async def take(self, name: str, lasts: timedelta) -> datetime | None:
        """Until when the turn is ours, for so long from now; None if it is somebody else's."""
        ...

    async def give_back(self, name: str, until: datetime) -> None:
        """End a turn that was ours until then before its time. Whoever was too late for that leaves the next one's alone."""
        ...

    async def forget(self) -> int:
        """Strike out turns that ended long ago; how many there were."""
        ...


class Operations(Protocol):
    """Redrive operations: kept where their tasks are, so that a release is one commit. Any number of processes may carry them on."""

    note: str | None
    """Why there are none here, in a sentence; None where there are."""

    async def start(self, new: NewOperation) -> Operation:
        """Store what is asked for, and nothing else: its set is gathered later. However many tasks match, this takes no longer."""
        ...

    async def get(self, id: str) -> Operation | None:
        """The operation with this id."""
        ...

    async def page(
        self,
        *,
        ledger: str | None = None,
        state: OperationState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[Operation]:
        """Operations, the newest first."""
        ...

    async def open(self) -> list[Operation]:
        """Those that have something to do, or wait for something to end."""
        ...

    async def act(self, id: str, act: OperationAct, actor: Actor) -> Operation:
        """What a person does to it; `TransitionError` where it does not stand so. Recorded with who and why."""
        ...

    async def change(
        self, id: str, actor: Actor, *, rate: str | int | None = None, halt: float | str | None = None
    ) -> Operation:
        """Change the rate, or from which share on it stops; what is not given stays."""
        ...

    async def gather(self, id: str, page: Page[TaskId], *, after: str | None) -> Operation:
        """Store the next tasks of its set, which were read behind the cursor `after`; with the last page the set is complete.

        Nothing where somebody else has stored them meanwhile.
        """
        ...

    async def advance(self, id: str, ledger: OperatorLedger, holder: str, *, after: int | None) -> Moved:
        """See what has ended of the tasks behind this position, decide, and do it: all in one transaction. Without a position nobody looks what has ended.

        What is released is redriven and marked in the same commit: no task is released twice, and none is forgotten. While one
        holder carries an operation on, others only look.
        """
        ...

    async def let_go(self, holder: str) -> None:
        """Leave what this holder carried on to the next one, at once."""
        ...

    async def steps(self, id: str) -> list[StepTally]:
        """What became of the tasks of each step so far."""
        ...

    async def moved_since(self, id: str, since: datetime) -> LatelyMoved:
        """When tasks were released and when they ended since then, up to some thousands of them."""
        ...

    async def failed_again(self, id: str, *, limit: int = 100) -> list[FailedAgain]:
        """The last of those that failed again, each with whether that was of the same cause as before."""
        ...

    async def tasks(
        self, id: str, *, fate: Fate | None = None, cursor: int | None = None, limit: int = 50
    ) -> Page[SetTask]:
        """A page of its set, or of those that met one fate."""
        ...

    async def skipped(self, id: str) -> dict[str, int]:
        """Why tasks of its set were skipped, and how many for each reason."""
        ...

    async def edits(
        self, *, operation: str | None = None, ledger: str | None = None, task_id: str | None = None, limit: int = 50
    ) -> list[EditedTask]:
        """The payloads that an operation changed, or all changes of one task; the newest first."""
        ...

    async def dead_set(self, ledger: OperatorLedger, asked: Filter, *, limited: bool) -> DeadSet:
        """How many dead tasks match, of which kinds, how old, and what they died of. `limited` is for people who wait."""
        ...

    async def forget(self) -> int:
        """Delete some of what ended long ago; how many rows went."""
        ...
