"""Gates: what a destination takes, computed from one row.

Pure: no clock, no SQL. A ledger reads a `Gate` and its `GateRule`, asks how much `room` there is, and writes what `claimed`,
`rested` and `settled` make of the row. PostgreSQL says the same in SQL (`ledgers/postgres/gates.py`), and a test compares the two.

A breaker is *flowing*, *tripped* or *returning*; a gate that lets nothing through for whatever reason is *shut*:

| state | event | next |
| --- | --- | --- |
| flowing | the failures of the window reach the limit | tripped, a probe after `probe` |
| tripped | a claim when the probe is due | tripped, one row, the next probe after `probe` |
| tripped | the probe succeeded | returning, windows cleared |
| tripped | the probe failed, was lost or was given back | tripped, the next probe after `probe` |
| tripped | a claim from before was settled | tripped |
| returning | the window's limit, or more than half of two or more tries failed | tripped |
| returning | the ramp has reached the rate | flowing |
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

from redrive.core.decide import Settlement
from redrive.core.durations import ZERO, SpanField
from redrive.core.failure import ErrorClass
from redrive.core.task import Claim
from redrive.errors import UsageError

PROBE = timedelta(seconds=30)
WITHIN = timedelta(minutes=1)
RAMP_STEPS = 10
"""After so many seconds a gate without a rate flows again: 1,023 have gone through by then."""
RETRY_TOKENS_MAX = 60
SECOND = timedelta(seconds=1)
TENANTS = "*"
"""The tenant of a gate that several share."""
NO_TENANT = ""
"""The tenant of a gate whose tasks have none."""


class BreakerState(StrEnum):
    """What a breaker does."""

    FLOWING = "flowing"
    TRIPPED = "tripped"
    RETURNING = "returning"


class WaitsFor(StrEnum):
    """What a gate that is not ready waits for."""

    DUE = "due"
    SLOT = "slot"
    RATE = "rate"
    RAMP = "ramp"
    PROBE = "probe"
    RETRY_AFTER = "retry-after"
    BUDGET = "budget"
    PERSON = "person"


class GateAnswer(StrEnum):
    """What a settlement says of its destination."""

    GOOD = "good"
    BAD = "bad"
    REFUSED = "refused"
    """It says itself when to come again."""
    SILENT = "silent"


class Priority(StrEnum):
    """What goes before the due time."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def level(self) -> int:
        """The number that rows hold."""
        return list(Priority).index(self)


def read_priority(priority: str) -> Priority:
    """One of the three levels."""
    try:
        return Priority(priority)
    except ValueError:
        raise UsageError(f"priority must be high, normal or low, not {priority!r}") from None


# --- limits ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """So many transient failures `within` a span trip it; while it is tripped, one try every `probe` asks whether all is well.

    With `share`, it trips when at least `failures` tries were made and this share of them failed.
    """

    failures: int = 10
    share: float | None = None
    within: SpanField = SpanField(WITHIN)
    probe: SpanField = SpanField(PROBE)

    def __post_init__(self) -> None:
        _check_whole("failures", self.failures)
        _check_share("share", self.share)
        for name in ("within", "probe"):
            if getattr(self, name) < timedelta(milliseconds=1):
                raise UsageError(f"{name} must be at least a millisecond, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """The limits of a gate; None is no limit. Made by `read_rule`, which checks them."""

    concurrency: int | None = None
    rate: int | None = None
    """How many may start in any `rate_span`."""
    rate_span: timedelta = SECOND
    burst: int | None = None
    """How many of them at once; they lie inside the rate, not on top of it."""
    failures: int | None = None
    share: float | None = None
    within: timedelta = WITHIN
    probe: timedelta = PROBE
    budget: float | None = None

    @property
    def bucket(self) -> int:
        """How many tokens the bucket holds."""
        assert self.rate is not None
        return min(self.rate, 1 + self.rate // 20 if self.burst is None else self.burst)

    @property
    def fill(self) -> float:
        """How many tokens come in a second.

        A bucket that fills with the rate r and holds b lets r + b - 1 through in one span; filling with r - b + 1 makes it r.
        """
        assert self.rate is not None
        return (self.rate - self.bucket + 1) / self.rate_span.total_seconds()

    @property
    def ramp_steps(self) -> int:
        """After how many seconds a ramp of 1, 2, 4, … has reached the rate."""
        if self.rate is None:
            return RAMP_STEPS
        per_second = self.rate / self.rate_span.total_seconds()
        return next((step for step in range(RAMP_STEPS) if 2**step >= per_second), RAMP_STEPS)


UNLIMITED = GateRule()

_SPANS = {"s": SECOND, "m": timedelta(minutes=1), "h": timedelta(hours=1)}
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(s|m|h)\s*")


def read_rate(rate: str | int) -> tuple[int, timedelta]:
    """How many in which span: `"20/s"`, `"100/m"`, `"1000/h"`; a number is meant in a second."""
    matched = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if matched is not None and int(matched[1]) > 0:
        return int(matched[1]), _SPANS[matched[2]]
    if isinstance(rate, int) and not isinstance(rate, bool) and 0 < rate < 10**9:
        return rate, SECOND
    raise UsageError(f"rate must be such as '20/s', '100/m' or '1000/h', not {rate!r}")


def read_rule(
    *,
    concurrency: int | None = None,
    rate: str | int | None = None,
    burst: int | None = None,
    breaker: Breaker | None = None,
    budget: float | None = None,
) -> GateRule:
    """The limits as they are written in code: `concurrency=5, rate="20/s", breaker=Breaker(failures=10), budget=0.2`."""
    _check_whole("concurrency", concurrency)
    _check_whole("burst", burst)
    _check_share("budget", budget)
    if burst is not None and rate is None:
        raise UsageError("burst is a part of the rate: say rate= too")
    amount, span = (None, SECOND) if rate is None else read_rate(rate)
    if breaker is None:
        return GateRule(concurrency=concurrency, rate=amount, rate_span=span, burst=burst, budget=budget)
    if not isinstance(breaker, Breaker):
        raise UsageError(f"breaker must be a Breaker, such as Breaker(failures=10), not {breaker!r}")
    return GateRule(
        concurrency=concurrency, rate=amount, rate_span=span, burst=burst, budget=budget,
        failures=breaker.failures, share=breaker.share, within=breaker.within, probe=breaker.probe,
    )  # fmt: skip


def _check_whole(name: str, amount: int | None) -> None:
    if amount is None:
        return
    if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= 1_000_000:
        raise UsageError(f"{name} must be a whole number from 1 to 1,000,000, not {amount!r}")


def _check_share(name: str, share: float | None) -> None:
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UsageError(f"{name} must be a share above 0 and up to 1, such as 0.2, not {share!r}")


def most_specific(patterns: Iterable[str], name: str) -> str | None:
    """The pattern that holds for a gate: its own name before all, else the one with the most letters, else the first by name."""
    fitting = [pattern for pattern in patterns if fits(pattern, name)]
    return min(fitting, key=lambda one: ("*" in one, one.count("*") - len(one), one.count("*"), one), default=None)


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern, in which `*` stands for any text, is one of this name."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


# --- the row --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate as its row has it. `wake_at` is None where somebody will say."""

    name: str
    rule: str | None = None
    tenant: str = ""
    kinds: tuple[str, ...] = ()
    ready: bool = True
    waits_for: WaitsFor | None = None
    wake_at: datetime | None = None
    turn_at: datetime
    version: int = 0
    held: int = 0
    tokens: float | None = None
    tokens_at: datetime
    retry_tokens: float | None = None
    state: BreakerState = BreakerState.FLOWING
    since: datetime
    probe_at: datetime | None = None
    probe_claim: UUID | None = None
    ramp_at: datetime | None = None
    ramp_started: int = 0
    trips: int = 0
    probes: int = 0
    """Probes since it tripped that did not get through."""
    window_at: datetime
    tries: int = 0
    fails: int = 0
    tries_before: int = 0
    fails_before: int = 0
    opens_at: datetime | None = None
    refused: int = 0
    """How many answers in a row have asked for a pause."""
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    paused_by: str | None = None
    reason: str | None = None

    @classmethod
    def new(cls, name: str, now: datetime, **given: Any) -> "Gate":
        """A gate that lets everything through."""
        return cls(name=name, turn_at=now, tokens_at=now, since=now, window_at=now, **given)

    def is_paused(self, now: datetime) -> bool:
        """Whether a person holds it now."""
        return self.paused_at is not None and (self.paused_until is None or self.paused_until > now)


def state_of(gate: Gate, rule: GateRule, now: datetime) -> BreakerState:
    """What the breaker does now: without limits it flows, and it flows again when its ramp has reached the rate."""
    if rule.failures is None:
        return BreakerState.FLOWING
    if gate.state is BreakerState.RETURNING and ramp_step(gate, now) >= rule.ramp_steps:
        return BreakerState.FLOWING
    return gate.state


def ramp_step(gate: Gate, now: datetime) -> int:
    """How many whole seconds the gate has been returning."""
    assert gate.ramp_at is not None
    return max(0, (now - gate.ramp_at) // SECOND)


def tokens_now(gate: Gate, rule: GateRule, now: datetime) -> float:
    """The tokens of the rate: those that were left, and what came since."""
    if gate.tokens is None:
        return float(rule.bucket)
    return min(float(rule.bucket), gate.tokens + _seconds_since(gate, now) * rule.fill)


def retry_tokens_now(gate: Gate, now: datetime) -> float:
    """The tokens of the budget: those that were left, and one for each second since."""
    if gate.retry_tokens is None:
        return float(RETRY_TOKENS_MAX)
    return min(float(RETRY_TOKENS_MAX), gate.retry_tokens + _seconds_since(gate, now))


def _seconds_since(gate: Gate, now: datetime) -> float:
    return (max(now, gate.tokens_at) - gate.tokens_at).total_seconds()


def room(gate: Gate, rule: GateRule, now: datetime, limit: int) -> int:
    """How many tasks the gate lets through now, up to `limit`."""
    if gate.is_paused(now) or (gate.opens_at is not None and gate.opens_at > now):
        return 0
    most = [limit]
    if rule.concurrency is not None:
        most.append(rule.concurrency - gate.held)
    if rule.rate is not None:
        most.append(math.floor(tokens_now(gate, rule, now)))
    match state_of(gate, rule, now):
        case BreakerState.TRIPPED:
            most.append(1 if _probe_due(gate, now) else 0)
        case BreakerState.RETURNING:
            step = ramp_step(gate, now)
            most.append(min(2**step, 2 ** (step + 1) - 1 - gate.ramp_started))
    return max(0, min(most))


def _probe_due(gate: Gate, now: datetime) -> bool:
    # Nothing held, and yet a probe is out: a stranger took its row away.
    return (gate.probe_at is None or gate.probe_at <= now) and (gate.probe_claim is None or gate.held == 0)


def retry_room(gate: Gate, rule: GateRule, now: datetime, limit: int) -> int:
    """How many of them may be retries."""
    if rule.budget is None:
        return limit
    return max(0, min(limit, math.floor(retry_tokens_now(gate, now))))


def shut_for(gate: Gate, rule: GateRule, now: datetime) -> tuple[WaitsFor, datetime | None] | None:
    """Why the gate lets nothing through, and when to look again; None where it lets something through."""
    if gate.is_paused(now):
        return WaitsFor.PERSON, gate.paused_until
    if gate.opens_at is not None and gate.opens_at > now:
        return WaitsFor.RETRY_AFTER, gate.opens_at
    state = state_of(gate, rule, now)
    if state is BreakerState.TRIPPED and not _probe_due(gate, now):
        # The settlement of the probe says more. If nobody ever settles it, the next look comes a probe later.
        due = gate.probe_at is None or gate.probe_at <= now
        return WaitsFor.PROBE, now + rule.probe if due else gate.probe_at
    if rule.concurrency is not None and gate.held >= rule.concurrency:
        return WaitsFor.SLOT, None
    if rule.rate is not None and (tokens := tokens_now(gate, rule, now)) < 1:
        return WaitsFor.RATE, _later(now, (1 - tokens) / rule.fill)
    if state is BreakerState.RETURNING:
        step = ramp_step(gate, now)
        if 2 ** (step + 1) - 1 - gate.ramp_started < 1:
            assert gate.ramp_at is not None
            return WaitsFor.RAMP, gate.ramp_at + (step + 1) * SECOND
    return None


def _later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(microseconds=math.ceil(seconds * 1e6))


# --- claiming -------------------------------------------------------------------------------------------------------------


def claimed(gate: Gate, rule: GateRule, now: datetime, fence: UUID, *, first_tries: int, retries: int) -> Gate:
    """The gate after a claim took so many of its tasks."""
    taken, state = first_tries + retries, state_of(gate, rule, now)
    changes: dict[str, Any] = {
        "version": gate.version + 1,
        "turn_at": now,
        "held": gate.held + taken,
        "tokens_at": max(now, gate.tokens_at),
    }
    if rule.rate is not None:
        changes["tokens"] = tokens_now(gate, rule, now) - taken
    if rule.budget is not None:
        earned = retry_tokens_now(gate, now) + first_tries * rule.budget
        changes["retry_tokens"] = min(float(RETRY_TOKENS_MAX), earned) - retries
    if state is not gate.state:  # the ramp is over, or the breaker was taken away
        changes |= {"state": state, "since": now, "trips": 0, "probe_claim": None, "probe_at": None}
    if state is BreakerState.RETURNING:
        changes["ramp_started"] = gate.ramp_started + taken
    if state is BreakerState.TRIPPED and taken:
        changes |= {"probe_claim": fence, "probe_at": now + rule.probe}
    after = replace(gate, **changes)
    shut = shut_for(after, rule, now)
    if shut is None:
        return replace(after, ready=True, waits_for=None, wake_at=None)
    return replace(after, ready=False, waits_for=shut[0], wake_at=shut[1])


def may_rest(room: int, taken: int) -> bool:
    """Whether a claim found room and nothing to take. One that took all has not seen what is left: another look does."""
    return room > 0 and taken == 0


def rested(gate: Gate, rule: GateRule, now: datetime, soonest: datetime | None) -> Gate:
    """The gate after a claim that left nothing of what it found: it sleeps until the `soonest` of its other tasks is due.

    Not if something is due by now, which another has locked. Where the budget keeps retries back, it looks again when there is
    a token.
    """
    if not gate.ready:
        return gate
    if rule.budget is not None and (tokens := retry_tokens_now(gate, now)) < 1:
        return replace(gate, ready=False, waits_for=WaitsFor.BUDGET, wake_at=_later(now, 1 - tokens))
    if soonest is not None and soonest <= now:
        return gate
    return replace(gate, ready=False, waits_for=WaitsFor.DUE, wake_at=soonest)


# --- settling -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a batch of settlements says of one gate."""

    claims: int
    good: int = 0
    bad: int = 0
    refused: int = 0
    asked: timedelta | None = None
    """The longest Retry-After, bounded by the policies."""
    soonest: timedelta | None = None
    """How long until the first of those that wait again is due."""
    probe: bool | None = None
    """Whether the probe was among them, and if so whether it succeeded."""


def answer_of(settlement: Settlement) -> tuple[GateAnswer, timedelta | None]:
    """What a settlement says of its destination, and the Retry-After that it asks for.

    An error of the caller's is an answer, so it is good. A lost worker says nothing, and neither does a task that was given
    back or put off. A destination that says itself when to come again is not down.
    """
    explained = settlement.explanation
    asked = None if explained is None else explained.floor
    if settlement.outcome == "done":
        return GateAnswer.GOOD, None
    if settlement.outcome != "failed" or explained is None:
        return GateAnswer.SILENT, None
    match explained.error_class:
        case ErrorClass.TRANSIENT:
            return GateAnswer.BAD, asked
        case ErrorClass.RATE_LIMITED:
            return GateAnswer.BAD if asked is None else GateAnswer.REFUSED, asked
        case ErrorClass.WORKER_LOST:
            return GateAnswer.SILENT, None
        case _:
            return GateAnswer.GOOD, asked


def fence_of(claim: Claim) -> UUID:
    """The fence that a claim behind a gate was made under: a suspect runs under another one, and may be the probe."""
    return claim.claim_id if claim.seen is None else claim.seen.fence


def sum_up(settlements: Sequence[Settlement], probe_claim: UUID | None) -> Settled:
    """The settlements of one gate, one of which may be its probe."""
    answers = [answer_of(one) for one in settlements]
    probes = [
        answer is GateAnswer.GOOD
        for (answer, _), one in zip(answers, settlements, strict=True)
        if fence_of(one.claim) == probe_claim
    ]
    return Settled(
        claims=len(settlements),
        good=sum(answer is GateAnswer.GOOD for answer, _ in answers),
        bad=sum(answer is GateAnswer.BAD for answer, _ in answers),
        refused=sum(answer is GateAnswer.REFUSED for answer, _ in answers),
        asked=max((asked for _, asked in answers if asked is not None), default=None),
        soonest=min((one.delay for one in settlements if one.delay is not None), default=None),
        probe=probes[0] if probes else None,
    )


def settled(gate: Gate, rule: GateRule, now: datetime, batch: Settled) -> Gate:
    """The gate after some of its claims were settled."""
    state = state_of(gate, rule, now)
    refused = 0 if batch.good else gate.refused + batch.refused
    after = replace(gate, version=gate.version + 1, held=max(0, gate.held - batch.claims), refused=refused)
    if state is not gate.state:
        after = replace(after, state=state, since=now, trips=0, probe_claim=None, probe_at=None)
    after = _windowed(after, rule, now, batch)
    if batch.asked is not None:
        asked_until = now + batch.asked
        after = replace(after, opens_at=asked_until if gate.opens_at is None else max(gate.opens_at, asked_until))
    if after.waits_for is WaitsFor.SLOT:
        after = replace(after, ready=True, waits_for=None, wake_at=None)
    elif after.waits_for in (WaitsFor.DUE, WaitsFor.BUDGET) and batch.soonest is not None:
        soonest = now + batch.soonest
        after = replace(after, wake_at=soonest if after.wake_at is None else min(after.wake_at, soonest))
    if state is BreakerState.TRIPPED:
        return after if batch.probe is None else _probed(after, rule, now, success=batch.probe)
    return _tripped(after, rule, now) if batch.bad and _must_trip(after, rule, now) else after


def _windowed(gate: Gate, rule: GateRule, now: datetime, batch: Settled) -> Gate:
    """The two windows of `within` each, with what the batch adds."""
    age = max(ZERO, now - gate.window_at)
    if age < rule.within:
        return replace(gate, tries=gate.tries + batch.good + batch.bad, fails=gate.fails + batch.bad)
    before = (gate.tries, gate.fails) if age < 2 * rule.within else (0, 0)
    return replace(
        gate, tries=batch.good + batch.bad, fails=batch.bad, tries_before=before[0], fails_before=before[1],
        window_at=gate.window_at + rule.within if age < 2 * rule.within else now,
    )  # fmt: skip


def in_window(gate: Gate, rule: GateRule, now: datetime) -> tuple[float, float]:
    """About how many tries and failures the last `within` saw: this window's, and of the one before what still lies in it."""
    kept = max(0.0, 1 - max(ZERO, now - gate.window_at).total_seconds() / rule.within.total_seconds())
    return gate.tries + gate.tries_before * kept, gate.fails + gate.fails_before * kept


def lately(gate: Gate, rule: GateRule, now: datetime) -> tuple[float, float]:
    """The same as of now, also where nothing was settled for long and the windows have not been moved on."""
    return in_window(_windowed(gate, rule, now, Settled(claims=0)), rule, now)


def _must_trip(gate: Gate, rule: GateRule, now: datetime) -> bool:
    if rule.failures is None:
        return False
    tries, fails = in_window(gate, rule, now)
    if gate.state is BreakerState.RETURNING and tries >= 2 and fails * 2 > tries:
        return True
    if rule.share is None:
        return fails >= rule.failures
    return tries >= rule.failures and fails >= rule.share * tries


def _tripped(gate: Gate, rule: GateRule, now: datetime) -> Gate:
    return replace(
        gate, state=BreakerState.TRIPPED, since=now, trips=gate.trips + 1, probes=0, probe_claim=None, probe_at=now + rule.probe,
        ready=False, waits_for=WaitsFor.PROBE, wake_at=now + rule.probe,
    )  # fmt: skip


def _probed(gate: Gate, rule: GateRule, now: datetime, *, success: bool) -> Gate:
    if not success:
        probe_at = now + rule.probe
        return replace(
            gate, probes=gate.probes + 1, probe_claim=None, probe_at=probe_at, ready=False, waits_for=WaitsFor.PROBE,
            wake_at=probe_at,
        )  # fmt: skip
    return replace(
        gate, state=BreakerState.RETURNING, since=now, probe_claim=None, probe_at=None, ramp_at=now, ramp_started=0,
        window_at=now, tries=0, fails=0, tries_before=0, fails_before=0, ready=True, waits_for=None, wake_at=None,
    )  # fmt: skip


# --- people ---------------------------------------------------------------------------------------------------------------


def paused(gate: Gate, now: datetime, *, by: str, reason: str, until: datetime | None = None) -> Gate:
    """The gate after a person shut it. What runs ends; what waits waits."""
    return replace(
        gate, version=gate.version + 1, paused_at=now, paused_until=until, paused_by=by, reason=reason,
        ready=False, waits_for=WaitsFor.PERSON, wake_at=until,
    )  # fmt: skip


def resumed(gate: Gate) -> Gate:
    """The gate after a person gave it free: the next claim finds out whether anything else keeps it shut."""
    return replace(
        gate, version=gate.version + 1, paused_at=None, paused_until=None, paused_by=None, reason=None,
        ready=True, waits_for=None, wake_at=None,
    )  # fmt: skip


# --- what goes first inside a gate ----------------------------------------------------------------------------------------

BANDS = 6
"""High retries, high first tries, and so on down to low first tries."""
SURE_PERCENT = (0, 25, 10, 25, 10, 10)
"""What each band is sure of. In all 80 %: the rest is for whoever stands highest."""
FAVOURED = (3, 1, 5, 3, 1, 4, 3, 1, 2, 3, 1, 5, 3, 1, 4, 2, -1, -1, -1, -1)
"""Whose turn it is to go first of all, drawn for each claim: a room of one cannot be shared otherwise."""


def band_of(priority: int | None, *, tried: bool) -> int:
    """The band of a task: by its level, retries before first tries."""
    return (1 if priority is None else priority) * 2 + (0 if tried else 1)


@dataclass(frozen=True, slots=True)
class DueRow:
    """A due row of a gate: whose turn it is in, its band, when it was due, and its id."""

    turn: int
    band: int
    due: Any
    id: Any


def in_order(rows: Iterable[DueRow], room: int, retries: int, favoured: int = -1) -> list[DueRow]:
    """Up to `room` of the due rows of a gate; at most so many retries.

    Tenants of a gate that they share take turns. Each has first one of the favoured band, then what each band is sure of, then by
    band and due time.
    """
    places: dict[tuple[int, int], int] = defaultdict(int)
    of_turn: dict[int, list[tuple[bool, bool, int, int, DueRow]]] = defaultdict(list)
    for row in sorted(rows, key=lambda one: (one.band, one.due, one.id)):
        if row.band % 2 == 0:
            retries -= 1
            if retries < 0:
                continue
        places[row.turn, row.band] += 1
        place = places[row.turn, row.band]
        sure = place <= room * SURE_PERCENT[row.band] // 100
        of_turn[row.turn].append((not (row.band == favoured and place == 1), not sure, row.band, place, row))
    ranked = []
    for turn, mine in of_turn.items():
        mine.sort(key=lambda one: one[:4])
        ranked += [(nth, turn, one[-1]) for nth, one in enumerate(mine)]
    ranked.sort(key=lambda one: one[:2])
    return [row for _, _, row in ranked[:room]]


def around(tenants: Iterable[str], last: str) -> list[str]:
    """Tenants in the order of their turns: from behind the one that was served last, once around."""
    return sorted(tenants, key=lambda one: (one <= last, one))


def mostly_gated(gates: Iterable[str | None], limit: int) -> bool:
    """Whether more than half of a claim of up to `limit` had gates: in the next one those without go first."""
    return 2 * sum(gate is not None for gate in gates) > limit
