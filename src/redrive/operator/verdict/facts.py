"""What a verdict is judged on. A store fills these in; nothing in here is a sentence yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from redrive.core.states import State
from redrive.operator.gates import GateView
from redrive.operator.operations import Operation
from redrive.operator.roster import WorkerSeen
from redrive.operator.verdict.values import KindPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreNow:
    """Whether what is done can be written down."""

    trouble: str | None = None
    """What keeps writes from going through, in a sentence."""
    wrote_at: datetime | None = None
    """When a write last went through; None where nobody has tried yet."""
    write_took: timedelta | None = None
    settled_at: datetime | None = None
    """When anything was last settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerNow:
    """One ledger: how many of its tasks stand where."""

    ledger: str
    amounts: Mapping[State, int]
    oldest_due: timedelta | None = None
    """How long the oldest due task waits that nothing holds back."""
    done_lately: int = 0
    """How many were done in the last hour."""
    dead_lately: int = 0
    """How many died in the last five minutes."""
    next_due: timedelta | None = None
    unanswered: int = 0
    """Of how many a person must say whether their effect happened; up to some, see `unanswered_more`."""
    unanswered_more: bool = False
    unanswered_since: datetime | None = None
    is_counted: bool = True
    """Whether a census was ever taken: only then is known what its dead tasks died of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """One kind of one ledger, over the last five minutes."""

    ledger: str
    kind: str
    tries: int = 0
    failures: int = 0
    begun_a_minute: int = 0
    p50: timedelta | None = None
    p95: timedelta | None = None
    waiting: int = 0
    waiting_more: bool = False
    """Whether more wait than were counted."""
    parked: int = 0
    dead: int = 0
    oldest_due: timedelta | None = None
    points: Sequence[KindPoint] = ()
    """The minutes of the last hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFacts:
    """One cause: tries of a kind that failed alike, as long as they have not been quiet for some minutes, and who is dead of it."""

    ledger: str
    id: str
    kind: str | None
    error: str
    at: str | None = None
    """The line of the user's code, with its function: `shop/mail.py:23 in render`."""
    since: datetime
    """The first failure of this episode."""
    last_failure: datetime
    failures: int
    """How many tries have failed of it since."""
    tries: int
    """How many tries its kind has made since, of whatever they came to."""
    lately: int = 0
    """How many have failed of it in the last five minutes."""
    died_lately: int = 0
    points: Sequence[int] = ()
    """Failures of the minutes of the last hour, the running one last."""
    first_version: str | None = None
    last_version: str | None = None
    dead: int = 0
    dead_from: datetime | None = None
    dead_to: datetime | None = None
    waiting: int = 0
    """How many tasks of its kind wait."""
    waiting_more: bool = False
    tries_max: int | None = None
    """How many tries a task of the kind has."""
    lasts: timedelta | None = None
    """How long a task that fails each time is tried, from its first try to its last."""
    arrives: int = 0
    """How many new tasks of the kind were begun in the last whole minute."""
    recovered_at: datetime | None = None
    """The first success of the kind after the last failure of this cause; None where there is none yet."""
    tries_since: int = 0
    failures_since: int = 0
    """What the kind has tried since then, and how much of it failed."""
    paused: bool = False
    """Whether a person has paused the kind."""
    held_by: str | None = None
    """A gate that holds the kind back because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFacts:
    """A gate that holds or returns, or something that people have paused."""

    gate: GateView
    error: str | None = None
    """What its tries failed of."""
    probes: int | None = None
    points: Sequence[int] = ()
    """How many were parked, minute by minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known at one instant."""

    now: datetime
    store: StoreNow = field(default_factory=StoreNow)
    ledgers: Sequence[LedgerNow] = ()
    kinds: Sequence[KindFacts] = ()
    causes: Sequence[CauseFacts] = ()
    held: Sequence[HeldFacts] = ()
    workers: Sequence[WorkerSeen] = ()
    halted: Sequence[Operation] = ()
    """Operations that stopped by themselves and wait for a person."""
    kinds_note: str | None = None
    last_trouble_at: datetime | None = None
    """When the last trouble ended that somebody was told of."""
    oldest_due_max: timedelta = timedelta(minutes=1)
    """A due task that has waited for longer is late."""
