"""What a verdict is made of: frozen values, ready to be rendered by pages, commands and the API."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum

# --- sentences ------------------------------------------------------------------------------------------------------------


class LinkTo(StrEnum):
    """What a link leads to."""

    KIND = "kind"
    CAUSE = "cause"
    GATE = "gate"
    WORKER = "worker"
    WORKERS = "workers"
    TASKS = "tasks"
    EFFECTS = "effects"
    OPERATION = "operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A thing that a piece of a sentence names; only the fields that it needs are set.

    `name` is a kind, a gate, a worker, or the id of a cause or an operation. A link to tasks has `state` (`dead`, `waiting`, `parked`, `claimed`,
    `done`), and `kind`, `cause` or `gate` where only some of them are meant.
    """

    to: LinkTo
    ledger: str | None = None
    name: str | None = None
    state: str | None = None
    kind: str | None = None
    cause: str | None = None
    gate: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a sentence."""

    text: str
    link: Target | None = None
    when: datetime | None = None
    """The instant that the text says in UTC."""
    to_seconds: bool = False
    """Whether it is said to the second."""
    code: bool = False
    """An error, as it was raised."""


Sentence = tuple[Piece, ...]


def plain(sentence: Sequence[Piece], *, now: datetime | None = None, zone: tzinfo = UTC) -> str:
    """A sentence as text; with `now`, its instants in this zone."""
    if now is None:
        return "".join(piece.text for piece in sentence)
    return "".join(
        piece.text if piece.when is None else clock(piece.when, now, to_seconds=piece.to_seconds, zone=zone)
        for piece in sentence
    )


def clock(instant: datetime, now: datetime, *, to_seconds: bool = False, zone: tzinfo = UTC) -> str:
    """`21:35`, `21:35:40`, `yesterday 22:04`, `Sun 22:04`, `2026-03-01 22:04`."""
    at, today = instant.astimezone(zone), now.astimezone(zone).date()
    time = at.strftime("%H:%M:%S" if to_seconds else "%H:%M")
    days = (today - at.date()).days
    if days == 0:
        return time
    if days == 1:
        return f"yesterday {time}"
    if 0 < days < 7:
        return f"{at:%a} {time}"
    return f"{at:%Y-%m-%d} {time}"


# --- troubles -------------------------------------------------------------------------------------------------------------


class Rank(StrEnum):
    """How bad a trouble is for tasks; the worst comes first."""

    STOPPED = "stopped"
    """Nothing can be written, or nobody works."""
    DYING = "dying"
    """Tasks die, or will unless somebody does something."""
    ASKED = "asked"
    """Tasks wait for an answer that only a person can give."""
    HELD = "held"
    """Tasks are held back; none dies of it."""
    HEALS = "heals"
    """It mends itself."""
    DEAD = "dead"
    """Tasks are dead, and nothing says that a redrive would do better."""
    READY = "ready"
    """Tasks are dead, and what killed them is over."""

    @property
    def order(self) -> int:
        """0 is the worst."""
        return tuple(Rank).index(self)

    @property
    def needs_you(self) -> bool:
        """Whether a person has to do something, and soon."""
        return self in (Rank.STOPPED, Rank.DYING, Rank.ASKED)

    @property
    def words(self) -> str:
        """What stands above the sentence."""
        return _RANK_WORDS[self]


_RANK_WORDS = {
    Rank.STOPPED: "Needs you",
    Rank.DYING: "Needs you",
    Rank.ASKED: "Needs you",
    Rank.HELD: "Recovering by itself",
    Rank.HEALS: "Recovering by itself",
    Rank.DEAD: "Dead, not recovered",
    Rank.READY: "Ready to redrive",
}


class Subject(StrEnum):
    """What a trouble is about."""

    LEDGER_AWAY = "ledger_away"
    NOBODY_WORKS = "nobody_works"
    FAILING = "failing"
    RETRIED = "retried"
    BEHIND = "behind"
    UNTAKEN = "untaken"
    UNANSWERED = "unanswered"
    OPERATION = "operation"
    GATE = "gate"
    LOST_WORKER = "lost_worker"
    DEAD = "dead"
    RECOVERED = "recovered"


class ButtonAct(StrEnum):
    """What a button does."""

    PAUSE_KIND = "pause_kind"
    TRY_ONE = "try_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """What may be pressed. To pause is to pause the gate `kind:KIND` of the ledger; to try one is to redrive one dead task of the cause."""

    act: ButtonAct
    words: str
    ledger: str
    kind: str | None = None
    cause: str | None = None
    warning: str | None = None
    """What most likely happens, where that is not good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a trouble moves: a number with its name, and the minutes of the last hour, the running one last."""

    label: str
    now: str
    points: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that is wrong, and the answers to the four questions of whoever is called at night."""

    rank: Rank
    subject: Subject
    since: datetime
    wrong: tuple[Sentence, ...]
    """What is wrong: the sentence itself, then the error and where it comes from, then how many tasks it is about."""
    moves: Trend
    by_itself: Sentence
    safe: Sentence
    told: Sentence
    """All of what is wrong as one paragraph: for terminals, alerts and logs."""
    button: Button | None = None
    """The one that is advised; None where there is nothing to press."""
    beside: Button | None = None
    """Another one that may be pressed, with its warning."""
    view: Target | None = None
    ledger: str | None = None
    kind: str | None = None
    cause: str | None = None
    at: str | None = None
    """`shop/mail.py:23`."""
    error: str | None = None
    version: str | None = None

    @property
    def needs_you(self) -> bool:
        """Whether a person has to do something, and soon."""
        return self.rank.needs_you


# --- the rest of the screen -----------------------------------------------------------------------------------------------


class Tone(StrEnum):
    """How a figure looks."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the strip, with its name and a note below it."""

    name: str
    value: str
    note: Sentence
    tone: Tone = Tone.PLAIN
    link: Target | None = None


@dataclass(frozen=True, slots=True)
class KindPoint:
    """What one minute counted of a kind."""

    start: datetime
    tries: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindHealth:
    """One kind, over the last five minutes."""

    ledger: str
    kind: str
    health: str
    """`Failing`, `Held by bank:DE`, `Ready to redrive`, `Fine`."""
    rank: Rank | None = None
    """The worst trouble that it has."""
    tries: int
    failures: int
    begun_a_minute: int = 0
    """New tasks that were begun in the last whole minute."""
    p50: timedelta | None
    p95: timedelta | None
    """Within how long half of the runs, and 95 of 100, came back."""
    oldest_due: timedelta | None
    waiting: int
    waiting_more: bool = False
    """Whether more wait than were counted: write `1,000+`."""
    parked: int
    dead: int
    trend: tuple[KindPoint, ...]
    """The minutes of the last hour in which anything was tried, the running one last."""

    @property
    def share(self) -> float | None:
        """The share of tries that failed; None without tries."""
        return self.failures / self.tries if self.tries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReturn:
    """What a gate that holds would let through, if its next probe succeeds."""

    ledger: str
    gate: str
    at: datetime
    """When the next probe is."""
    parked: int
    amounts: tuple[float, ...]
    """How many, second by second from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How things are."""

    at: datetime
    title: str
    summary: Sentence
    troubles: tuple[Trouble, ...]
    more: int = 0
    """How many troubles are left out."""
    quiet: tuple[Sentence, ...]
    """What people did on purpose, and what is over: a line each."""
    strip: tuple[Figure, ...]
    kinds: tuple[KindHealth, ...]
    kinds_note: str | None = None
    """Why kinds are not shown, where they are not counted."""
    returns: tuple[GateReturn, ...] = ()
    """What gates would let through that hold now."""
    calm_since: datetime | None = None
    """When the last trouble ended; None while there is one, or where none is known."""
    waiting: int = 0
    """How many tasks wait, parked ones among them."""

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.troubles
