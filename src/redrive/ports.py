"""All that the engine asks of the world, on one page.

A *ledger* is the durable home of tasks. Its promises, which one conformance suite checks for every ledger:

- Nothing is acknowledged before it is durable.
- A task has at most one holder. A claim is fenced by its `claim_id`: what ends or extends an attempt is written only
  where the row still has it, and what is not written comes back as `ClaimLost`.
- What happens to one task does not cost another: a row that somebody has locked is left out of its group and comes back as
  `ClaimLocked`, and the others are written.
- Each claim ends in exactly one attempt row, written in the same commit as the settlement.
- A claim that was never settled is handed out again only marked *abandoned*, and must be settled as `LeaseExpired`.
- A task whose last run was lost with its worker is handed out marked *suspect*.
- The ledger owns the clock: delays cross this wall, instants to be compared do not.

A ledger that cannot be reached raises `LedgerAwayError`, whatever the driver said.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from redrive.core.decide import Settlement
from redrive.core.durations import OptionalSpanField
from redrive.core.effect_mark import EffectMark, MarkState
from redrive.core.progress import Progress
from redrive.core.states import State
from redrive.core.stop import Stop
from redrive.core.task import Added, Attempt, Claim, Deed, NewTask, Task, TaskId, Unwritten
from redrive.errors import UsageError
from redrive.events import Event

T = TypeVar("T")

Within = Any
"""The caller's SQLAlchemy `Connection`, `Session`, `AsyncConnection` or `AsyncSession`."""


class Clock(Protocol):
    """Where a ledger takes the time from, unless its database has a clock of its own."""

    def now(self) -> datetime:
        """The instant, with a zone."""
        ...


ORIGIN: ContextVar[str] = ContextVar("redrive_origin", default="")
"""From where whoever acts does so: the edges set it, such as a request or a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAct:
    """An act that goes on over several commits: what the audit holds of it belongs together."""

    id: str
    asked: Mapping[str, Any] | None = None
    """The filter that named its tasks, as people would write it; None where they were named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts, why and from where; it is recorded with everything that changed."""

    name: str
    reason: str = ""
    origin: str = field(default_factory=ORIGIN.get)
    whole: WholeAct | None = None
    """The act that this is a part of; None where it is done in one commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A task that came back: the same thing failed again elsewhere, with the count it has reached there."""

    id: TaskId
    failures: int
    delay: timedelta
    error: str | None = None


class Transaction(Protocol):
    """An open transaction of a SQL ledger, for work that must commit together with its settlement."""

    connection: Any

    def submit(self, threads: Executor, call: Callable[[Any], T]) -> "Future[T]":
        """Call a plain function in a thread, with the transaction's connection as a synchronous one."""
        ...


class Waiter(Protocol):
    """A worker's place to wait for new work. A wake-up is kept until `clear`, so none is missed while it looks."""

    hears_due: bool
    """Whether it also wakes up for what becomes due: then nobody needs to ask for the next due time before a nap."""

    def clear(self) -> bool:
        """Forget the wake-ups so far: call it before looking for work. Whether there were any."""
        ...

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for a wake-up, at most `timeout`; whether there was one."""
        ...


class EffectMarks(Protocol):
    """The durable marks of effects. They are written here when a try enters its effect, and closed with its settlement."""

    in_use: bool
    """Whether a handler here has an effect; until then nothing is asked of them."""

    async def enter(self, claim: Claim) -> EffectMark | None:
        """Write that the effect may happen from now on; durable when this returns. None if the claim was lost: nothing is written."""
        ...

    async def of(self, ids: Sequence[TaskId]) -> dict[TaskId, EffectMark]:
        """The marks of these tasks, of those that have one."""
        ...

    async def asked(
        self, state: MarkState, *, cursor: str | None = None, limit: int = 100
    ) -> list[tuple[str, EffectMark]]:
        """Marks in this state by the texts of their tasks' ids, in the order of these texts, behind `cursor`."""
        ...


class ProgressNotes(Protocol):
    """How far tries have come, and what each leaves for the next one."""

    async def write(self, claim: Claim, share: float | None, words: str | None, checkpoint: str | None) -> bool:
        """Write it down; a checkpoint is JSON, and None leaves the one that is there. Whether the claim still holds."""
        ...

    async def read(self, id: TaskId, /) -> Progress | None:
        """What was last written of a task."""
        ...


class Ledger(Protocol):
    """The durable home of tasks."""

    name: str

    async def stops_asked(self) -> list[Stop]:
        """The tasks that run and that people want to be cancelled. Asked by every worker that runs something: it must cost next to nothing."""
        ...

    @property
    def progress(self) -> ProgressNotes | None:
        """How far tries have come; None where that cannot be kept."""
        ...

    @property
    def effects(self) -> EffectMarks | None:
        """The marks of effects; None where none can be kept, because a queue hands tasks out again by itself."""
        ...

    @property
    def has_gates(self) -> bool:
        """Whether tasks may have a gate here."""
        ...

    async def add(self, tasks: Sequence[NewTask], *, within: Within | None = None) -> list[Added]:
        """Store the tasks, in the caller's own transaction if one is given. All or nothing.

        Idempotent on the key: a task that is there already is not touched, and is returned with `new=False`.
        """
        ...

    async def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        kinds: Sequence[str] | None = None,
        fence: UUID | None = None,
        held: Callable[[], Iterable[Claim]] = tuple,
        gates: bool = True,
        busy: Sequence[str] | None = None,
    ) -> list[Claim]:
        """Take due tasks, each for one holder. A short list does not mean that nothing else is due.

        With `gates` also what gates let through; without, only what has no gate. With `busy` only what gates let through of
        tenants other than these: for a reserve of slots.

        `fence` is the claim's own, made by whoever asks, so that `recall` can find what it took if the answer is lost.
        Ledgers over queues may hand out abandoned tasks here; those over tables do so in `reclaim` only. What the one who asks
        says that it has `held` since before is not abandoned, though its lease ran out, and is held on to.
        """
        ...

    async def recall(self, fence: UUID, lease: timedelta) -> list[Claim]:
        """What a claim with this fence took and still holds, with a fresh lease: for a claim whose answer was lost.

        Empty where a queue holds the tasks: it knows no fences, and hands them out again by itself when their lease ends.
        """
        ...

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """Take tasks whose lease ran out, marked abandoned. Empty where `claim` hands them out.

        Tables keep the fence of the lost claim, so that it ends in its one attempt row even if its keeper dies too.
        """
        ...

    async def run_alone(self, claim: Claim) -> Claim | None:
        """Note that the task of this claim runs from now on with nothing beside it, by changing the fence to `claim.alone()`.

        Whoever finds the claim lost then knows that nothing else can have killed its worker. None if it was lost before.
        Idempotent.
        """
        ...

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        within: Within | None = None,
        wait: timedelta | None = None,
    ) -> list[Unwritten]:
        """Write each settlement with its attempt row where the claim still holds; returns the others and why.

        Rows that somebody has locked are left out, or waited for: with `wait` so long, in the caller's own transaction as
        long as it takes. Whoever waits stands in the line for the row.
        """
        ...

    async def settled_by(self, claims: Sequence[Claim], worker: str) -> list[Claim]:
        """Those of the claims that this worker has settled: for one that never heard the answer."""
        ...

    async def extend(self, claims: Sequence[Claim], lease: timedelta) -> list[Unwritten]:
        """Move the end of the leases to `lease` from now; returns the others and why. The fence stays."""
        ...

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:
        """How long until the next task is due; None where nothing waits or the ledger cannot know."""
        ...

    def waiter(self) -> AbstractContextManager[Waiter]:
        """A place to wait for new work."""
        ...

    async def uses_gates(self, *, anew: bool = False) -> bool:
        """Whether there is a gate, or a task that names one; once it is so it stays so.

        Until then the ledger looks at most once a second, with one cheap statement, unless it is asked to look `anew`.
        """
        ...

    async def discover(self, *, lately: bool = False) -> int:
        """Make or wake gates that nobody has told of, because their tasks came in a caller's transaction or from a stranger.

        How many there were. With `lately` it looks at those alone that went to sleep a moment ago, perhaps while a task was added that
        their claim could not see yet: that costs the same however many gates there are.
        """
        ...

    async def keep_gates(self, *, recount: bool) -> int:
        """End tasks that wait behind a gate past their deadline; with `recount` count anew what each gate holds.

        How many tasks were ended.
        """
        ...

    async def keep_history(self) -> int:
        """Once in a while: make room for the history to come and drop what is kept no longer, where that is done by the table; how much was done."""
        ...

    async def paused_kinds(self) -> Sequence[str]:
        """The pauses of kinds that hold now, by their names: `kind:mail`, `kind:mail.*`, or `kind:*` for the whole ledger.

        Asked by every worker all the time: it must cost next to nothing.
        """
        ...

    async def list_kinds(self, *, prefix: str = "", after: str | None = None) -> "Page[str]":
        """The kinds of tasks that wait or are held, for handlers whose kind is a pattern.

        Those that wait come in an order of the ledger's own, some at a time: pass the page's cursor as `after` for those
        behind. Those that are held are all on the first page. `prefix` begins where kinds with this prefix begin and ends at
        the first that has another, which need not be the last of them where the ledger does not sort by characters.
        """
        ...

    async def redrive(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """Dead tasks go back to waiting, due now, with a fresh budget. Returns those that changed."""
        ...

    async def cancel(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """Waiting tasks end as cancelled. Returns those that changed."""
        ...

    async def resolve(self, ids: Sequence[TaskId], state: State, actor: Actor) -> list[TaskId]:
        """Dead tasks end as done or cancelled, by a person. Returns those that changed."""
        ...

    async def return_(self, returns: Sequence[Return], actor: Actor, *, within: Within | None = None) -> list[TaskId]:
        """Tasks that have ended go back to waiting with the larger of both counts. Returns those that changed.

        In the caller's own transaction if one is given. All or nothing; a task that is named twice comes back once.
        """
        ...

    async def prune(self, states: Sequence[State], older_than: timedelta, *, limit: int = 1000) -> int:
        """Delete up to `limit` tasks that have ended so long ago, with their history; how many there were."""
        ...

    @property
    def transactions_max(self) -> int:
        """How many of these transactions can be open at once: a worker claims no more than it can start."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction to settle within. SQL ledgers only."""
        ...


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which tasks: all conditions must hold, None asks nothing.

    `error` is part of the last error, as people are shown it: what is redacted is not found. `cause` is a group of dead tasks. `older_than` is how long a task has not changed.
    `until` takes only tasks that were in this state at that instant already: whoever acts on what was shown acts on
    nothing else. `text` is part of the key, kind, last error or payload; only a search in the background reads it.
    """

    state: State | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None
    cause: str | None = None
    older_than: OptionalSpanField = OptionalSpanField()
    until: datetime | None = None
    ids: Sequence[TaskId] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if self.state is not None:
            try:
                object.__setattr__(self, "state", State(self.state))  # its word is as good
            except ValueError:
                raise UsageError(f"there is no state {self.state!r:.80}: choose from {', '.join(State)}") from None
        # PostgreSQL stores no text with a NUL, and takes none in a question.
        if any(one is not None and "\0" in one for one in (self.kind, self.key, self.error, self.cause, self.text)):
            raise UsageError("no task holds a NUL character: ask without it")
        if self.cause is not None and self.state not in (None, State.DEAD):
            raise UsageError("only dead tasks are grouped by cause: leave state out, or ask for dead")


PAGE_MAX = 1000
"""How many tasks a page holds at most."""


def check_limit(limit: int, most: int = PAGE_MAX) -> None:
    """Raise `UsageError` if no page holds so many."""
    if not 1 <= limit <= most:
        raise UsageError(f"limit must lie between 1 and {most}, not {limit!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some of what was asked for, and where the next page begins; None after the last."""

    items: list[T]
    cursor: TaskId | None = None


class LedgerReader(Protocol):
    """Looking, which never changes anything."""

    async def find(
        self, filter: Filter, *, cursor: TaskId | None = None, limit: int = 100, newest_first: bool = False
    ) -> Page[Task]:
        """A page of tasks in the order of their ids. The cursor is the id that the page before ended with."""
        ...

    async def get(self, id: TaskId) -> Task | None:
        """The task with this id."""
        ...

    async def get_by_key(self, key: str) -> Task | None:
        """The task with this key."""
        ...

    async def attempts(self, id: TaskId) -> list[Attempt]:
        """The history of a task, oldest first."""
        ...

    async def deeds(self, id: TaskId) -> list[Deed]:
        """What people and systems did to a task, oldest first."""
        ...

    async def counts(self, *, counted_max: int = 100_000) -> Mapping[State, int]:
        """How many tasks are in each state, counted up to `counted_max`."""
        ...


class Observer(Protocol):
    """Is told what happened, after it happened. It must not raise and must not wait."""

    def observe(self, events: Sequence[Event]) -> None:
        """Take a group of facts."""
        ...
