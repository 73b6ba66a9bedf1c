"""Gates: what a destination takes, computed from one row.

Pure: no clock, no SQL. A ledger reads a `Gate` and its `GateRule`, asks how much `room` there is, and writes what `claimed`,
`rested` and `settled` make of the row. PostgreSQL says the same in SQL (`ledgers/postgres/gates.py`), and a test compares the two.
`gate_rules.py` has the limits, `gate_order.py` says which tasks of a gate go first.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from redrive.core.decide import Settlement
from redrive.core.durations import ZERO
from redrive.core.failure import ErrorClass
from redrive.core.gate_rules import SECOND, GateRule
from redrive.core.task import Claim

RETRY_TOKENS_MAX = 60


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
