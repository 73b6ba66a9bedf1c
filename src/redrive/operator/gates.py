"""Gates as people see them: what each does in words, why, until when, and what it keeps back.

Pure: it makes views of rows that a store has read. The words are *letting through*, *holding*, *returning* and *paused*, never just
"open": an open gate lets tasks through, an open breaker does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from redrive.core.decide import STRETCH_MAX
from redrive.core.durations import format_duration, rounded
from redrive.core.gate_rules import SECOND, UNLIMITED, Breaker, GateRule, read_rule
from redrive.core.gates import BreakerState, Gate, WaitsFor, lately, shut_for, state_of
from redrive.core.pauses import EVERYTHING, KIND, is_of_kinds
from redrive.core.task import GATE_CHARS_MAX, check_text
from redrive.errors import UsageError
from redrive.operator.cursors import decode_cursor, encode_cursor

PARKED_MAX = 10_000
"""How far what is parked is counted."""
PAGE_MAX = 500
_SPANS = {1.0: "s", 60.0: "m", 3600.0: "h"}


class GateDoes(StrEnum):
    """What a gate does, in a word."""

    PAUSED = "paused"
    HOLDING = "holding"
    RETURNING = "returning"
    LETTING_THROUGH = "letting through"


def read_does(given: str) -> GateDoes:
    """The word that a person wrote; also with a hyphen, as options of commands have it."""
    try:
        return GateDoes(given.replace("-", " ").replace("_", " "))
    except ValueError:
        words = ", ".join(one.value for one in GateDoes)
        raise UsageError(f"the state of a gate is one of {words}, not {given!r:.80}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleView:
    """Limits, by the pattern of the gates that they are for, and who set them."""

    pattern: str
    rule: GateRule
    set_by: str
    reason: str
    set_at: datetime
    version: int = 0
    """The number of the last deed to it, for whoever acts on what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """One gate, or one pause of kinds, at one instant."""

    ledger: str
    name: str
    does: GateDoes
    why: str
    """In a sentence or two; empty where there is nothing to explain."""
    since: datetime | None
    until: datetime | None
    """When it is looked at again at the latest: the end of a pause, the next probe, the next token; None where somebody will say."""
    waits_for: WaitsFor | None
    next_probe: datetime | None
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    reason: str | None
    held: int
    tries: float
    """About how many ended in the last `within`."""
    failures: float
    """About how many of them failed."""
    trips: int
    probes: int = 0
    """Probes since it tripped; none has got through."""
    rule: RuleView | None
    kinds: Sequence[str]
    tenant: str
    parked: int | None
    """Due tasks that it keeps back, counted up to ten thousand; None where that cannot be counted."""
    version: int
    """The number of the last deed to it, for whoever acts on what was seen."""
    at: datetime

    @property
    def limits(self) -> GateRule:
        """The limits that hold."""
        return UNLIMITED if self.rule is None else self.rule.rule

    @property
    def parked_words(self) -> str:
        """How many are parked, as pages and commands write it."""
        return amount_words(self.parked)

    @property
    def per_second(self) -> float:
        """About how many tries ended in a second."""
        return self.tries / self.limits.within.total_seconds()

    @property
    def is_of_kinds(self) -> bool:
        """Whether it is the pause of a kind or of the whole ledger, and not a gate."""
        return is_of_kinds(self.name)

    @property
    def title(self) -> str:
        """What people call it."""
        return title_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedTask:
    """What keeps a waiting task back: a gate or the pause of its kind, and how many go before it there."""

    gate: GateView
    before: int | None
    """Counted up to ten thousand; None behind the pause of a kind, where nobody stands in a line."""

    @property
    def earliest(self) -> datetime | None:
        """Before this instant it is not tried; None where somebody or something else will say."""
        return self.gate.until

    @property
    def stretch(self) -> int:
        """How many times as long the waits between its tries are, because the breaker of its gate has tripped."""
        stretched: int = 2 ** min(self.gate.trips, STRETCH_MAX)
        return stretched

    def sentence(self) -> str:
        """`parked behind bank:DE, earliest 12:04:30`."""
        gate = self.gate
        earliest = f", earliest {moment(gate.until, gate.at)}" if gate.until else ""
        held = "held by" if gate.is_of_kinds else "parked behind"
        title = f"the pause of {gate.title}" if gate.is_of_kinds else gate.name
        return f"{held} {title}{earliest}"

    def explained(self) -> str:
        """The same with all that is known: since when, the next probe, how many go before it, and why."""
        gate, said = self.gate, [self.sentence()]
        if gate.since is not None and gate.does is not GateDoes.LETTING_THROUGH:
            said.append(f"{gate.does} since {moment(gate.since, gate.at)}")
        if gate.next_probe is not None and gate.does is GateDoes.HOLDING:
            said.append(f"next probe {moment(gate.next_probe, gate.at)}")
        if self.before is not None:
            said.append(f"{amount_words(self.before)} before it")
        return f"{', '.join(said)}. {gate.why}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSpan:
    """A stretch of time in which a gate did not simply let tasks through; without an end it still lasts."""

    name: str
    does: GateDoes
    began_at: datetime
    ended_at: datetime | None


ParkedMinute = tuple[datetime, int]
"""A minute, and how many due tasks a gate kept back in it."""


def parked_points(minutes: Sequence[ParkedMinute], now: datetime, parked: int | None, amount: int = 60) -> list[int]:
    """What a gate kept back in each of the last minutes, the running one last. Nobody counts while a gate lets tasks through: zero."""
    known = dict(minutes)
    running = now.replace(second=0, microsecond=0)
    starts = [running - timedelta(minutes=back) for back in range(amount - 1, 0, -1)]
    return [*(known.get(start, 0) for start in starts), parked if parked is not None else known.get(running, 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSums:
    """How many gates of a ledger do what, and what they hold in all."""

    amounts: dict[GateDoes, int] = field(default_factory=dict)
    held: int = 0


# --- from a row -----------------------------------------------------------------------------------------------------------


def does_of(gate: Gate, rule: GateRule, now: datetime) -> GateDoes:
    """What a gate does now."""
    if gate.is_paused(now):
        return GateDoes.PAUSED
    if gate.opens_at is not None and gate.opens_at > now:
        return GateDoes.HOLDING
    match state_of(gate, rule, now):
        case BreakerState.TRIPPED:
            return GateDoes.HOLDING
        case BreakerState.RETURNING:
            return GateDoes.RETURNING
        case _:
            return GateDoes.LETTING_THROUGH


def began_at(gate: Gate, does: GateDoes) -> datetime | None:
    """Since when it does that; None where its row does not say."""
    if does is GateDoes.PAUSED:
        return gate.paused_at
    return gate.since if does is not GateDoes.HOLDING or gate.state is BreakerState.TRIPPED else None


def view_of(
    ledger: str, gate: Gate, rule: RuleView | None, now: datetime, *, parked: int | None, version: int
) -> GateView:
    """What people see of a gate."""
    limits = UNLIMITED if rule is None else rule.rule
    does, (tries, failures) = does_of(gate, limits, now), lately(gate, limits, now)
    shut = shut_for(gate, limits, now)
    if shut is None and gate.waits_for is WaitsFor.BUDGET and (gate.wake_at is None or gate.wake_at > now):
        shut = WaitsFor.BUDGET, gate.wake_at
    waits_for, until = shut or (None, None)
    state = state_of(gate, limits, now)
    tripped = state is BreakerState.TRIPPED
    is_paused = does is GateDoes.PAUSED
    view = GateView(
        ledger=ledger, name=gate.name, does=does, why="", since=began_at(gate, does), until=until, waits_for=waits_for,
        next_probe=gate.probe_at if tripped else None,
        paused_at=gate.paused_at if is_paused else None, paused_until=gate.paused_until if is_paused else None,
        paused_by=gate.paused_by if is_paused else None, reason=gate.reason if is_paused else None,
        held=gate.held, tries=tries, failures=failures, trips=0 if state is BreakerState.FLOWING else gate.trips,
        probes=gate.probes if tripped else 0, rule=rule, kinds=gate.kinds,
        tenant=gate.tenant, parked=parked, version=version, at=now,
    )  # fmt: skip
    return replace(view, why=_why(view))


def _why(view: GateView) -> str:
    rule, now = view.limits, view.at
    match view.waits_for:
        case WaitsFor.PERSON:
            ends = f" It resumes by itself at {moment(view.paused_until, now)}." if view.paused_until else ""
            return f"Paused by {view.paused_by} at {moment(view.paused_at, now)}: “{view.reason}”.{ends}"
        case WaitsFor.RETRY_AFTER:
            return f"The destination asked for patience (Retry-After) until {moment(view.until, now)}."
        case WaitsFor.PROBE:
            return _why_tripped(view)
        case WaitsFor.SLOT:
            return f"All {rule.concurrency:,} that may run at once are running; the next goes when one ends."
        case WaitsFor.RATE:
            return f"Its rate of {rate_words(rule)} is used up for the moment."
        case WaitsFor.RAMP:
            return _why_returning(view)
        case WaitsFor.BUDGET:
            return f"Retries wait: they may be {percent(rule.budget)} of first tries. First tries go on."
        case _:
            return _why_returning(view) if view.does is GateDoes.RETURNING else ""


def _why_tripped(view: GateView) -> str:
    rule, now = view.limits, view.at
    share = "" if rule.share is None else f", {percent(rule.share)} of at least so many tries"
    often = "" if view.trips < 2 else f" It is the {ordinal(view.trips)} time in a row."
    probe = "a probe is running" if view.until is None or view.next_probe is None or view.next_probe <= now else (
        f"the next probe is at {moment(view.next_probe, now)}"
    )  # fmt: skip
    limit = rate_words(rule) if rule.rate is not None else "as many as come"
    return (
        f"The breaker tripped after {rule.failures:,} failures within {span_words(rule.within)}{share}.{often} "
        f"{_probes(view.probes)}{probe[:1].upper()}{probe[1:]}, then one every {span_words(rule.probe)}. "
        f"When one succeeds it ramps up: 1, 2, 4 … a second, up to {limit}."
    )


def _probes(amount: int) -> str:
    """What came of the probes so far."""
    if not amount:
        return ""
    return "One probe did not get through. " if amount == 1 else f"{amount:,} probes, none got through. "


def _why_returning(view: GateView) -> str:
    return f"It ramps up, 1, 2, 4 … a second, since {moment(view.since, view.at)}, when a probe succeeded."


# --- over time ------------------------------------------------------------------------------------------------------------

SeenDoing = tuple[GateDoes, datetime | None, datetime | None]
"""What a gate does, since when as far as its row says, and until when somebody has paused it."""


class Lasting(Protocol):
    """A span that has no end yet, as a store has written it down."""

    @property
    def does(self) -> str:
        """What the gate did."""
        ...

    @property
    def began_at(self) -> datetime:
        """Since when."""
        ...


def changed_spans(name: str, seen: SeenDoing, lasting: Lasting | None, now: datetime) -> list[GateSpan]:
    """What is to be recorded of one gate: the end of what lasted, then the beginning of what it does."""
    does, began, until = seen
    if lasting is not None and lasting.does == does and (began is None or began <= lasting.began_at):
        return []
    changes: list[GateSpan] = []
    if lasting is not None:
        ended = min(now, began) if began is not None and began > lasting.began_at else now
        if lasting.does == GateDoes.PAUSED and until is not None and lasting.began_at < until < ended:
            ended = until
        changes.append(GateSpan(name=name, does=GateDoes(lasting.does), began_at=lasting.began_at, ended_at=ended))
    if does is not GateDoes.LETTING_THROUGH:
        begins = now if began is None else began
        if changes and changes[0].ended_at is not None:
            begins = max(begins, changes[0].ended_at)
        changes.append(GateSpan(name=name, does=does, began_at=begins, ended_at=None))
    return changes


def write_gate_cursor(group: int, name: str) -> str:
    """Where a page ended: in which of the two lists, and behind which name."""
    return encode_cursor([group, name])


def read_gate_cursor(text: str) -> tuple[int, str]:
    """The place that was written so; `UsageError` for what is none."""
    return decode_cursor(text, _place)


def _place(said: Any) -> tuple[int, str]:
    group, name = said
    assert group in (0, 1)
    assert isinstance(name, str)
    if name:
        check_text("name", name, GATE_CHARS_MAX)
    return int(group), name


# --- words ----------------------------------------------------------------------------------------------------------------


def title_of(name: str) -> str:
    """What people call a gate or a pause."""
    if name == EVERYTHING:
        return "the whole ledger"
    return f"kind {name.removeprefix(KIND)}" if is_of_kinds(name) else name


def amount_words(amount: int | None) -> str:
    """`1,204`, `10,000+`, or a dash."""
    if amount is None:
        return "–"
    return f"{PARKED_MAX:,}+" if amount > PARKED_MAX else f"{amount:,}"


def rate_words(rule: GateRule) -> str:
    """`20/s`."""
    if rule.rate is None:
        return "no limit"
    seconds = rule.rate_span.total_seconds()
    return f"{rule.rate:,}/{_SPANS.get(seconds, span_words(rule.rate_span))}"


def limit_words(limits: GateRule) -> str:
    """Limits in a line: `5 at once, 20/s, …`."""
    said = []
    if limits.concurrency is not None:
        said.append(f"{limits.concurrency:,} at once")
    if limits.rate is not None:
        said.append(rate_words(limits))
    if limits.failures is not None:
        share = f" and {percent(limits.share)} of the tries" if limits.share is not None else ""
        said.append(
            f"holds after {limits.failures:,} failures{share} within {span_words(limits.within)}, a probe every {span_words(limits.probe)}"
        )
    if limits.budget is not None:
        said.append(f"retries up to {percent(limits.budget)} of first tries")
    return ", ".join(said) or "no limits"


def moment(instant: datetime | None, now: datetime) -> str:
    """`12:04:30`, with the day where that is another; UTC."""
    if instant is None:
        return "–"
    at = instant.astimezone(UTC)
    return at.strftime("%H:%M:%S" if at.date() == now.astimezone(UTC).date() else "%Y-%m-%d %H:%M:%S")


def percent(share: float | None) -> str:
    """`20%`."""
    return f"{(share or 0) * 100:g}%"


def span_words(span: timedelta) -> str:
    """`30s`."""
    return format_duration(rounded(span) if span >= SECOND else span)


def ordinal(number: int) -> str:
    """`3rd`."""
    ends = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ends}"


# --- changing limits ------------------------------------------------------------------------------------------------------


class Keep:
    """Stands for a limit that nobody speaks of: it stays."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP = Keep()


def changed_rule(before: GateRule, **given: Any) -> GateRule:
    """The limits with those changed that are given, each as `read_rule` takes it; None takes one away, and `KEEP` lets it be."""
    breaker: Breaker | None = None
    if before.failures is not None:
        breaker = Breaker(failures=before.failures, share=before.share, within=before.within, probe=before.probe)
    now: dict[str, Any] = {
        "concurrency": before.concurrency,
        "rate": None,
        "burst": before.burst,
        "breaker": breaker,
        "budget": before.budget,
    }
    now |= {name: value for name, value in given.items() if value is not KEEP}
    keeps_rate = given.get("rate", KEEP) is KEEP and before.rate is not None
    if keeps_rate:
        now["rate"] = before.rate  # its span is put back below
    if now["rate"] is None and given.get("burst", KEEP) is KEEP:
        now["burst"] = None
    made = read_rule(**now)
    return replace(made, rate_span=before.rate_span) if keeps_rate else made
