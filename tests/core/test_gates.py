"""Gates as pure values: what they let through, when they look again, and what no history may lead to."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.decide import decide
from redrive.core.durations import minutes, seconds
from redrive.core.gate_order import (
    BANDS,
    FAVOURED,
    SURE_PERCENT,
    DueRow,
    Priority,
    around,
    in_order,
    mostly_gated,
    read_priority,
)
from redrive.core.gate_rules import UNLIMITED, Breaker, GateRule, most_specific, read_rate, read_rule
from redrive.core.gates import (
    RETRY_TOKENS_MAX,
    BreakerState,
    Gate,
    GateAnswer,
    Settled,
    WaitsFor,
    answer_of,
    claimed,
    in_window,
    lately,
    may_rest,
    paused,
    rested,
    resumed,
    retry_room,
    retry_tokens_now,
    room,
    settled,
    shut_for,
    state_of,
    sum_up,
    tokens_now,
)
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.task import GateSeen
from redrive.errors import BusinessError, PermanentError, RateLimitedError, UsageError
from tests.core.test_decide import claim_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

RULES = st.builds(
    GateRule,
    concurrency=st.none() | st.integers(1, 5),
    rate=st.none() | st.integers(1, 40),
    rate_span=st.sampled_from([seconds(1), minutes(1)]),
    burst=st.none() | st.integers(1, 5),
    failures=st.none() | st.integers(1, 5),
    share=st.none() | st.sampled_from([0.5, 1.0]),
    within=st.sampled_from([seconds(1), seconds(10)]),
    probe=st.sampled_from([seconds(0.5), seconds(5)]),
    budget=st.none() | st.sampled_from([0.1, 0.5]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(1, 50), st.integers(0, 100)),
        st.tuples(st.just("settle"), st.integers(1, 50), st.sampled_from([*GateAnswer])),
        st.tuples(st.just("advance"), st.integers(0, 2_000_000), st.just(0)),
        st.tuples(st.just("wake"), st.just(0), st.just(0)),
    ),
    max_size=80,
)


class History:
    """A gate with a million tasks behind it, and all that was let through."""

    def __init__(self, rule: GateRule) -> None:
        self.rule = rule
        self.now = NOW
        self.gate = Gate.new("bank:DE", NOW)
        self.held: list[UUID] = []
        self.starts: list[datetime] = []
        self.probes: list[datetime] = []

    def claim(self, limit: int, percent_retries: int = 0) -> int:
        tripped = state_of(self.gate, self.rule, self.now) is BreakerState.TRIPPED
        amount = room(self.gate, self.rule, self.now, limit)
        retries = min(amount * percent_retries // 100, retry_room(self.gate, self.rule, self.now, limit))
        fence = uuid4()
        self.gate = claimed(self.gate, self.rule, self.now, fence, first_tries=amount - retries, retries=retries)
        self.held += [fence] * amount
        self.starts += [self.now] * amount
        if tripped and amount:
            assert amount == 1, "one probe at a time"
            self.probes.append(self.now)
        return amount

    def settle(self, amount: int, answer: GateAnswer) -> None:
        ended, self.held = self.held[:amount], self.held[amount:]
        if not ended:
            return
        probe = None if self.gate.probe_claim not in ended else answer is GateAnswer.GOOD
        batch = Settled(
            claims=len(ended), good=len(ended) * (answer is GateAnswer.GOOD), bad=len(ended) * (answer is GateAnswer.BAD), probe=probe
        )  # fmt: skip
        self.gate = settled(self.gate, self.rule, self.now, batch)

    def advance(self, span: timedelta) -> None:
        self.now += span

    def wake(self) -> None:
        """To the instant at which the gate says to look again."""
        if self.gate.wake_at is not None:
            self.now = max(self.now, self.gate.wake_at)


def play(rule: GateRule, steps: list[tuple[str, int, object]]) -> History:
    history = History(rule)
    for act, amount, how in steps:
        match act:
            case "claim":
                if history.gate.ready or (history.gate.wake_at is not None and history.gate.wake_at <= history.now):
                    history.claim(amount, how)  # type: ignore[arg-type]
            case "settle":
                history.settle(amount, how)  # type: ignore[arg-type]
            case "advance":
                history.advance(timedelta(microseconds=amount))
            case _:
                history.wake()
        assert history.gate.held == len(history.held)
        if rule.concurrency is not None:
            assert history.gate.held <= rule.concurrency
    return history


@given(RULES, STEPS)
def test_no_history_starts_more_than_the_rate(rule: GateRule, steps: list[tuple[str, int, object]]) -> None:
    """In any second, or minute, no more than the rate starts; and never are more held than `concurrency` allows."""
    history = play(rule, steps)
    if rule.rate is not None:
        for first in history.starts:
            assert sum(first <= start < first + rule.rate_span for start in history.starts) <= rule.rate


@given(RULES, STEPS)
def test_probes_keep_their_distance(rule: GateRule, steps: list[tuple[str, int, object]]) -> None:
    """While a gate is tripped one try is let through every `probe`, and no second one while the first is out."""
    history = play(rule, steps)
    for before, after in zip(history.probes, history.probes[1:], strict=False):
        assert after - before >= rule.probe


@given(RULES, STEPS)
def test_no_state_is_stuck(rule: GateRule, steps: list[tuple[str, int, object]]) -> None:
    """From whatever state: once all that is held ends well, waking when the gate says so lets something through, and in the end it flows."""
    history = play(rule, steps)
    for _ in range(60):
        history.settle(len(history.held), GateAnswer.GOOD)
        history.advance(SECOND)
        if not history.gate.ready:
            assert history.gate.waits_for is not None
            assert history.gate.wake_at is not None, history.gate
            history.wake()
        history.claim(1000)
        if state_of(history.gate, rule, history.now) is BreakerState.FLOWING and history.gate.held:
            break
    else:
        raise AssertionError(history.gate)


@given(RULES, STEPS)
def test_a_shut_gate_says_why_and_until_when(rule: GateRule, steps: list[tuple[str, int, object]]) -> None:
    """There is room or a reason, never both and never neither; and at the instant that it names there is room, or another reason."""
    history = play(rule, steps)
    shut = shut_for(history.gate, rule, history.now)
    assert (room(history.gate, rule, history.now, 10) > 0) is (shut is None)
    if shut is not None and shut[1] is not None:
        assert shut[1] > history.now


@given(STEPS, st.sampled_from([0.1, 0.5]))
def test_retries_stay_within_their_budget(steps: list[tuple[str, int, object]], budget: float) -> None:
    """Retries are at most the share of the first tries, plus one for each second, plus the sixty that may be saved up."""
    rule = read_rule(budget=budget)
    gate, now, first_tries, retries = Gate.new("bank:DE", NOW), NOW, 0, 0
    for act, amount, how in steps:
        if act == "claim":
            again = min(amount, retry_room(gate, rule, now, amount)) if int(str(how)) > 20 else 0
            gate = claimed(gate, rule, now, uuid4(), first_tries=amount - again, retries=again)
            first_tries, retries = first_tries + amount - again, retries + again
        elif act == "advance":
            now += timedelta(microseconds=amount)
    assert retries <= 60 + (now - NOW).total_seconds() + budget * first_tries + 1e-6


def test_the_breaker_trips_probes_and_returns() -> None:
    """Ten failures trip it; a bad probe leaves it tripped, a good one lets it return by 1, 2, 4 a second, and then it flows."""
    rule = read_rule(rate="20/s", breaker=Breaker(failures=10, within=60, probe=30))
    gate, fence = Gate.new("bank:DE", NOW), uuid4()
    gate = claimed(gate, rule, NOW, fence, first_tries=10, retries=0)
    gate = settled(gate, rule, NOW, Settled(claims=9, bad=9))
    assert gate.state is BreakerState.FLOWING
    gate = settled(gate, rule, NOW, Settled(claims=1, bad=1))
    assert (gate.state, gate.waits_for, gate.wake_at, gate.trips) == (
        BreakerState.TRIPPED,
        WaitsFor.PROBE,
        NOW + 30 * SECOND,
        1,
    )
    assert room(gate, rule, NOW + 29 * SECOND, 100) == 0
    now = NOW + 30 * SECOND
    assert room(gate, rule, now, 100) == 1
    gate = claimed(gate, rule, now, fence, first_tries=0, retries=1)
    assert (gate.probe_claim, gate.ready, gate.wake_at) == (fence, False, now + 30 * SECOND)
    gate = settled(gate, rule, now + SECOND, Settled(claims=1, bad=1, probe=False))
    assert (gate.state, gate.wake_at) == (BreakerState.TRIPPED, now + 31 * SECOND)
    now += 31 * SECOND
    gate = claimed(gate, rule, now, fence, first_tries=1, retries=0)
    gate = settled(gate, rule, now, Settled(claims=1, good=1, probe=True))
    assert (gate.state, gate.ready) == (BreakerState.RETURNING, True)
    let_through = Counter[int]()
    for step in range(600):
        at = now + step * SECOND / 100
        amount = room(gate, rule, at, 100)
        let_through[step // 100] += amount
        gate = claimed(gate, rule, at, fence, first_tries=amount, retries=0)
        gate = settled(gate, rule, at, Settled(claims=amount, good=amount)) if amount else gate
    assert [let_through[second] for second in range(4)] == [1, 2, 4, 8]
    assert 15 <= let_through[4] <= 16
    assert 18 <= let_through[5] <= 20
    assert (gate.state, gate.trips) == (BreakerState.FLOWING, 0)


def test_a_returning_gate_trips_again_early() -> None:
    """More than half of two or more tries that fail are enough while it returns."""
    rule = read_rule(breaker=Breaker(failures=100))
    gate = replace(Gate.new("a", NOW), state=BreakerState.RETURNING, ramp_at=NOW, held=4)
    once = settled(gate, rule, NOW, Settled(claims=1, bad=1))
    assert once.state is BreakerState.RETURNING
    assert settled(once, rule, NOW, Settled(claims=1, bad=1)).state is BreakerState.TRIPPED
    assert settled(once, rule, NOW, Settled(claims=2, good=1)).state is BreakerState.RETURNING


def test_a_share_asks_for_enough_tries() -> None:
    """With `share` the breaker looks at how many of at least `failures` tries failed."""
    rule = read_rule(breaker=Breaker(failures=10, share=0.5))
    gate = replace(Gate.new("a", NOW), held=100)
    assert settled(gate, rule, NOW, Settled(claims=9, bad=9)).state is BreakerState.FLOWING
    assert settled(gate, rule, NOW, Settled(claims=20, bad=9, good=11)).state is BreakerState.FLOWING
    assert settled(gate, rule, NOW, Settled(claims=20, bad=10, good=10)).state is BreakerState.TRIPPED


def test_failures_of_long_ago_do_not_count() -> None:
    """Nine failures trip nothing, and neither does the tenth if it comes two windows later; in the next window the old ones fade."""
    rule = read_rule(breaker=Breaker(failures=10, within=60))
    gate = settled(replace(Gate.new("a", NOW), held=100), rule, NOW, Settled(claims=9, bad=9))
    assert settled(gate, rule, NOW + 120 * SECOND, Settled(claims=9, bad=9)).state is BreakerState.FLOWING
    assert settled(gate, rule, NOW + 90 * SECOND, Settled(claims=5, bad=5)).state is BreakerState.FLOWING
    assert settled(gate, rule, NOW + 61 * SECOND, Settled(claims=5, bad=5)).state is BreakerState.TRIPPED


def test_a_probe_that_a_stranger_took_away_is_followed_by_another() -> None:
    """Nothing is held, and yet a probe is out: at the next probe's time there is room again."""
    rule = read_rule(breaker=Breaker(probe=30))
    gate = replace(
        Gate.new("a", NOW), state=BreakerState.TRIPPED, probe_at=NOW + 30 * SECOND, probe_claim=uuid4(), held=1
    )
    later = NOW + 30 * SECOND
    assert room(gate, rule, later, 9) == 0
    assert shut_for(gate, rule, later) == (WaitsFor.PROBE, later + 30 * SECOND)
    assert room(replace(gate, held=0), rule, later, 9) == 1


def test_retry_after_moves_the_whole_gate() -> None:
    """The longest wait that a batch asks for shuts the gate until then; a shorter one later does not open it earlier."""
    gate = settled(replace(Gate.new("a", NOW), held=9), GateRule(), NOW, Settled(claims=1, asked=seconds(30)))
    gate = settled(gate, GateRule(), NOW + SECOND, Settled(claims=1, asked=seconds(5)))
    assert room(gate, GateRule(), NOW + 29 * SECOND, 9) == 0
    assert shut_for(gate, GateRule(), NOW) == (WaitsFor.RETRY_AFTER, NOW + 30 * SECOND)
    assert room(gate, GateRule(), NOW + 30 * SECOND, 9) == 9


def test_a_pause_holds_until_somebody_resumes_or_its_time_is_over() -> None:
    """A paused gate lets nothing through, whatever its limits say; with an end it comes back by itself."""
    gate = paused(Gate.new("a", NOW), NOW, by="ada", reason="the bank asked", until=NOW + 60 * SECOND)
    assert (gate.ready, gate.waits_for, gate.wake_at) == (False, WaitsFor.PERSON, NOW + 60 * SECOND)
    assert [room(gate, GateRule(), NOW + span * SECOND, 9) for span in (59, 60)] == [0, 9]
    assert room(resumed(gate), GateRule(), NOW, 9) == 9
    for_ever = paused(Gate.new("a", NOW), NOW, by="ada", reason="the bank asked")
    assert shut_for(for_ever, GateRule(), NOW + timedelta(days=999)) == (WaitsFor.PERSON, None)


def test_a_settlement_wakes_what_waits_for_a_slot_or_for_its_task() -> None:
    """A gate that is full is ready again, and one that sleeps wakes no later than the task that waits again."""
    full = replace(Gate.new("a", NOW), held=5, ready=False, waits_for=WaitsFor.SLOT)
    assert settled(full, read_rule(concurrency=5), NOW, Settled(claims=1)).ready
    asleep = rested(replace(Gate.new("a", NOW), held=1), GateRule(), NOW, NOW + 60 * SECOND)
    assert (asleep.waits_for, asleep.wake_at) == (WaitsFor.DUE, NOW + 60 * SECOND)
    assert settled(asleep, GateRule(), NOW, Settled(claims=1, soonest=seconds(10))).wake_at == NOW + 10 * SECOND
    assert settled(asleep, GateRule(), NOW, Settled(claims=1, soonest=seconds(90))).wake_at == NOW + 60 * SECOND
    assert rested(Gate.new("a", NOW), GateRule(), NOW, NOW).ready, "what is due and not to be had is looked for again"


def test_without_its_breaker_a_gate_flows() -> None:
    """Whoever takes the breaker away lets the gate flow, though it was tripped."""
    gate = replace(Gate.new("a", NOW), state=BreakerState.TRIPPED, probe_at=NOW + 60 * SECOND)
    assert room(gate, GateRule(), NOW, 9) == 9
    assert claimed(gate, GateRule(), NOW, uuid4(), first_tries=9, retries=0).state is BreakerState.FLOWING


@pytest.mark.parametrize(
    ("outcome", "answer", "asked"),
    [
        (Done(), GateAnswer.GOOD, None),
        (Failed(TimeoutError()), GateAnswer.BAD, None),
        (Failed(PermanentError("no")), GateAnswer.GOOD, None),
        (Failed(BusinessError("no")), GateAnswer.GOOD, None),
        (Failed(RateLimitedError("slow down")), GateAnswer.BAD, None),
        (Failed(RateLimitedError("slow down", retry_after=seconds(90))), GateAnswer.REFUSED, seconds(90)),
        (LeaseExpired(), GateAnswer.SILENT, None),
        (Released(), GateAnswer.SILENT, None),
        (Snoozed(seconds(5)), GateAnswer.SILENT, None),
        (Cancelled("no longer wanted"), GateAnswer.SILENT, None),
    ],
)
def test_what_a_settlement_says_of_its_destination(
    outcome: object, answer: GateAnswer, asked: timedelta | None
) -> None:
    """An answer is good, be it a refusal; silence and being pushed away are not; a lost worker says nothing."""
    assert answer_of(decide(claim_of(), outcome, Policy())) == (answer, asked)  # type: ignore[arg-type]


LONG_AGO = NOW - 1000 * SECOND
FENCE = UUID(int=7)
FULL = Gate(
    name="bank:DE", rule="bank:*", tenant="t", kinds=("pay",), ready=False, waits_for=WaitsFor.RATE, wake_at=LONG_AGO,
    turn_at=LONG_AGO, version=41, held=3, tokens=1.5, tokens_at=NOW - 2 * SECOND, retry_tokens=7.0, since=LONG_AGO, trips=2,
    probes=3, window_at=NOW - 15 * SECOND, tries=4, fails=2, tries_before=9, fails_before=8, refused=5,
)  # fmt: skip
"""A row in which nothing is as a new one has it, so that whatever an act forgets or resets is seen."""
WHOLE = GateRule(concurrency=9, rate=10, burst=4, failures=50, within=seconds(60), probe=seconds(30), budget=0.5)


@pytest.mark.parametrize(
    ("gate", "rule", "first_tries", "retries", "changes"),
    [
        # tokens: 1.5 + 2 s * (10 - 4 + 1), at most the bucket of 4; of the budget 7 + 2 s + a half for each first try
        (FULL, WHOLE, 1, 1, {"held": 5, "tokens": 2.0, "retry_tokens": 8.5, "ready": True}),
        (FULL, GateRule(), 2, 0, {"held": 5, "ready": True}),
        (FULL, WHOLE, 2, 4, {"held": 9, "tokens": -2.0, "retry_tokens": 6.0, "waits_for": WaitsFor.SLOT}),
        (
            FULL,
            replace(WHOLE, concurrency=None),
            4,
            0,
            {
                "held": 7, "tokens": 0.0, "retry_tokens": 11.0, "waits_for": WaitsFor.RATE,
                "wake_at": NOW + timedelta(microseconds=142858),
            },
        ),
        (
            replace(FULL, state=BreakerState.TRIPPED, probe_at=NOW),
            GateRule(failures=5, probe=seconds(30)),
            1,
            0,
            {
                "held": 4, "probe_claim": FENCE, "probe_at": NOW + 30 * SECOND, "waits_for": WaitsFor.PROBE,
                "wake_at": NOW + 30 * SECOND,
            },
        ),
        (
            replace(FULL, state=BreakerState.TRIPPED, probe_at=NOW + SECOND),
            GateRule(failures=5),
            0,
            0,
            {"waits_for": WaitsFor.PROBE, "wake_at": NOW + SECOND},
        ),
        (
            replace(FULL, state=BreakerState.TRIPPED, probe_at=NOW, probe_claim=uuid4()),
            GateRule(),
            1,
            0,
            {
                "state": BreakerState.FLOWING, "since": NOW, "trips": 0, "probe_claim": None, "probe_at": None,
                "held": 4, "ready": True,
            },
        ),
        (
            replace(FULL, state=BreakerState.RETURNING, ramp_at=NOW - 2.5 * SECOND, ramp_started=3),
            GateRule(failures=5),
            3,
            0,
            {"held": 6, "ramp_started": 6, "ready": True},
        ),
        (
            replace(FULL, state=BreakerState.RETURNING, ramp_at=NOW - 2.5 * SECOND, ramp_started=3),
            GateRule(failures=5),
            2,
            2,
            {"held": 7, "ramp_started": 7, "waits_for": WaitsFor.RAMP, "wake_at": NOW + SECOND / 2},
        ),
    ],
)  # fmt: skip
def test_a_claim_changes_these_columns_and_no_others(gate, rule, first_tries, retries, changes) -> None:
    """The whole row after a claim: tokens, slots, ramp and probe, and why and until when it is shut."""
    always = {"version": 42, "turn_at": NOW, "tokens_at": NOW, "ready": False, "waits_for": None, "wake_at": None}
    after = claimed(gate, rule, NOW, FENCE, first_tries=first_tries, retries=retries)
    assert after == replace(gate, **(always | changes))


WINDOW = {"window_at": NOW - 15 * SECOND}


@pytest.mark.parametrize(
    ("gate", "rule", "batch", "changes"),
    [
        (FULL, WHOLE, Settled(claims=2, good=1, bad=1), {"held": 1, "refused": 0, "tries": 6, "fails": 3}),
        (FULL, WHOLE, Settled(claims=9, refused=2), {"held": 0, "refused": 7}),
        # the window is over: it is the one before, and two of them later nothing of it is left
        (
            FULL,
            replace(WHOLE, within=seconds(10)),
            Settled(claims=1, bad=1),
            {"held": 2, "tries": 1, "fails": 1, "tries_before": 4, "fails_before": 2, "window_at": NOW - 5 * SECOND},
        ),
        (
            FULL,
            replace(WHOLE, within=seconds(7.5)),
            Settled(claims=1, good=1),
            {"held": 2, "refused": 0, "tries": 1, "fails": 0, "tries_before": 0, "fails_before": 0, "window_at": NOW},
        ),
        (FULL, WHOLE, Settled(claims=1, asked=seconds(5)), {"held": 2, "opens_at": NOW + 5 * SECOND}),
        (
            replace(FULL, waits_for=WaitsFor.SLOT),
            WHOLE,
            Settled(claims=1),
            {"held": 2, "ready": True, "waits_for": None, "wake_at": None},
        ),
        (
            replace(FULL, waits_for=WaitsFor.BUDGET, wake_at=None),
            WHOLE,
            Settled(claims=1, soonest=seconds(5)),
            {"held": 2, "wake_at": NOW + 5 * SECOND},
        ),
        (FULL, WHOLE, Settled(claims=1, soonest=seconds(5)), {"held": 2}),
        (
            FULL,
            replace(WHOLE, failures=3),
            Settled(claims=1, bad=1),
            {
                "held": 2, "tries": 5, "fails": 3, "state": BreakerState.TRIPPED, "since": NOW, "trips": 3, "probes": 0,
                "probe_at": NOW + 30 * SECOND, "waits_for": WaitsFor.PROBE, "wake_at": NOW + 30 * SECOND,
            },
        ),
        (FULL, replace(WHOLE, failures=2), Settled(claims=1, good=1), {"held": 2, "refused": 0, "tries": 5}),
        (
            replace(FULL, state=BreakerState.TRIPPED, probe_claim=FENCE, probe_at=NOW),
            WHOLE,
            Settled(claims=1, bad=1, probe=False),
            {
                "held": 2, "tries": 5, "fails": 3, "probes": 4, "probe_claim": None, "probe_at": NOW + 30 * SECOND,
                "waits_for": WaitsFor.PROBE, "wake_at": NOW + 30 * SECOND,
            },
        ),
        (
            replace(FULL, state=BreakerState.TRIPPED, probe_claim=FENCE, probe_at=NOW),
            replace(WHOLE, failures=1),
            Settled(claims=1, bad=1),
            {"held": 2, "tries": 5, "fails": 3},
        ),
        (
            replace(FULL, state=BreakerState.TRIPPED, probe_claim=FENCE, probe_at=NOW),
            WHOLE,
            Settled(claims=1, good=1, probe=True),
            {
                "held": 2, "refused": 0, "state": BreakerState.RETURNING, "since": NOW, "probe_claim": None,
                "probe_at": None, "ramp_at": NOW, "ramp_started": 0, "window_at": NOW, "tries": 0, "fails": 0,
                "tries_before": 0, "fails_before": 0, "ready": True, "waits_for": None, "wake_at": None,
            },
        ),
        (
            replace(FULL, state=BreakerState.RETURNING, ramp_at=NOW - 9 * SECOND, probe_claim=FENCE, probe_at=NOW),
            WHOLE,
            Settled(claims=1),
            {
                "held": 2, "state": BreakerState.FLOWING, "since": NOW, "trips": 0, "probe_claim": None,
                "probe_at": None,
            },
        ),
    ],
)  # fmt: skip
def test_a_settlement_changes_these_columns_and_no_others(gate, rule, batch, changes) -> None:
    """The whole row after a batch: slots, windows, breaker and ramp, and what wakes it."""
    assert settled(gate, rule, NOW, batch) == replace(gate, **({"version": 42} | changes))


def test_a_person_changes_these_columns_and_no_others() -> None:
    """A pause keeps who, why, since when and until when; to resume takes all of it away."""
    held = paused(FULL, NOW, by="ada", reason="the bank asked", until=NOW + SECOND)
    why = {"paused_at": NOW, "paused_until": NOW + SECOND, "paused_by": "ada", "reason": "the bank asked"}
    assert held == replace(FULL, version=42, waits_for=WaitsFor.PERSON, wake_at=NOW + SECOND, **why)
    assert resumed(held) == replace(FULL, version=43, ready=True, waits_for=None, wake_at=None)


def test_a_claim_that_found_nothing_puts_the_gate_to_sleep() -> None:
    """Until its next task is due, or until the budget has a token for the retry that waits; what sleeps already sleeps on."""
    ready, broke = replace(FULL, ready=True), replace(FULL, ready=True, retry_tokens=-2.5)
    due = NOW + 5 * SECOND
    assert rested(FULL, WHOLE, NOW, due) is FULL
    assert rested(ready, WHOLE, NOW, due) == replace(ready, ready=False, waits_for=WaitsFor.DUE, wake_at=due)
    assert rested(ready, WHOLE, NOW, None) == replace(ready, ready=False, waits_for=WaitsFor.DUE, wake_at=None)
    assert rested(ready, WHOLE, NOW, NOW) is ready
    budget = {"ready": False, "waits_for": WaitsFor.BUDGET, "wake_at": NOW + 1.5 * SECOND}
    assert rested(broke, WHOLE, NOW, NOW) == replace(broke, **budget)
    assert rested(broke, GateRule(), NOW, NOW) is broke
    whole = replace(ready, retry_tokens=-1.0)
    assert rested(whole, WHOLE, NOW, NOW) is whole, "a whole token is enough"
    assert [may_rest(space, taken) for space, taken in ((0, 0), (1, 0), (2, 1))] == [False, True, False]


def test_a_new_gate_begins_now() -> None:
    """All its instants are now, and what is given is kept."""
    whole = Gate(name="a", tenant="t", turn_at=NOW, tokens_at=NOW, since=NOW, window_at=NOW)
    assert Gate.new("a", NOW, tenant="t") == whole


OPEN = replace(FULL, ready=True, waits_for=None, wake_at=None, probe_claim=UUID(int=1), ramp_started=9)
"""The same row of a gate that lets tasks through, with what is left of an earlier probe and ramp."""


def test_whoever_shuts_an_open_gate_leaves_nothing_of_before() -> None:
    """A claim, a trip and a probe set all that says whether it is ready, and whose probe is out."""
    until = NOW + 30 * SECOND
    shut = {"ready": False, "waits_for": WaitsFor.PROBE, "wake_at": until, "probe_claim": None, "probe_at": until}
    bad = Settled(claims=1, bad=1, probe=False)
    tripped = settled(OPEN, replace(WHOLE, failures=1), NOW, bad)
    trip = {"state": BreakerState.TRIPPED, "since": NOW, "trips": 3, "probes": 0}
    assert tripped == replace(OPEN, version=42, held=2, tries=5, fails=3, **(shut | trip))
    out = replace(OPEN, state=BreakerState.TRIPPED)
    assert settled(out, WHOLE, NOW, bad) == replace(out, version=42, held=2, tries=5, fails=3, probes=4, **shut)
    back = settled(out, WHOLE, NOW, Settled(claims=1, good=1, probe=True))
    assert (back.ramp_started, back.probe_claim, back.ready) == (0, None, True)
    full = claimed(replace(OPEN, probe_claim=None), read_rule(concurrency=4), NOW, FENCE, first_tries=1, retries=0)
    assert (full.ready, full.waits_for) == (False, WaitsFor.SLOT)


@pytest.mark.parametrize(
    ("gate", "rule", "shut"),
    [
        (OPEN, GateRule(), None),
        (replace(OPEN, probe_at=NOW + SECOND), GateRule(failures=5), None),
        (replace(OPEN, opens_at=NOW), GateRule(), None),
        (replace(OPEN, opens_at=NOW + SECOND), GateRule(), (WaitsFor.RETRY_AFTER, NOW + SECOND)),
        (replace(OPEN, tokens=1.0, tokens_at=NOW), WHOLE, None),
        (
            replace(OPEN, tokens=0.3, tokens_at=NOW),
            WHOLE,
            (WaitsFor.RATE, NOW + timedelta(microseconds=100_000)),
        ),
        (
            replace(OPEN, paused_at=LONG_AGO, paused_until=NOW + SECOND),
            GateRule(),
            (WaitsFor.PERSON, NOW + SECOND),
        ),
        (replace(OPEN, paused_at=LONG_AGO, paused_until=NOW), GateRule(), None),
    ],
)
def test_why_a_gate_is_shut_to_the_instant(
    gate: Gate, rule: GateRule, shut: tuple[WaitsFor, datetime | None] | None
) -> None:
    """On the instant itself it is open again, and a whole token is enough."""
    assert shut_for(gate, rule, NOW) == shut


def test_a_ramp_doubles_with_each_second() -> None:
    """Four in its third second, whatever was not used of those before."""
    gate = replace(OPEN, state=BreakerState.RETURNING, ramp_at=NOW - 2 * SECOND, ramp_started=0)
    assert room(gate, GateRule(failures=5), NOW, 99) == 4


def test_the_breaker_trips_at_its_limits_and_not_before() -> None:
    """Without limits never; while it returns, half of the tries may fail; with a share, so many tries are enough."""
    returning = replace(
        OPEN, state=BreakerState.RETURNING, ramp_at=NOW, tries=2, fails=1, tries_before=0, fails_before=0
    )
    half = settled(returning, GateRule(failures=99), NOW, Settled(claims=2, good=1, bad=1))
    assert half.state is BreakerState.RETURNING
    assert settled(OPEN, GateRule(), NOW, Settled(claims=1, bad=1)).state is BreakerState.FLOWING
    share = read_rule(breaker=Breaker(failures=10, share=0.5))
    first = replace(Gate.new("a", NOW), held=10)
    assert settled(first, share, NOW, Settled(claims=10, good=5, bad=5)).state is BreakerState.TRIPPED


def test_a_window_ends_with_its_last_instant() -> None:
    """Exactly one span later another begins."""
    after = settled(FULL, replace(WHOLE, within=seconds(15)), NOW, Settled(claims=1, good=1))
    assert (after.tries, after.tries_before, after.window_at) == (1, 4, NOW)


def test_only_what_waits_for_a_task_wakes_for_one() -> None:
    """A gate that waits for its rate looks again when it said."""
    waits = replace(FULL, wake_at=NOW + 9 * SECOND)
    assert settled(waits, WHOLE, NOW, Settled(claims=1, soonest=seconds(5))).wake_at == NOW + 9 * SECOND


def test_tokens_come_with_time_and_stop_at_the_top() -> None:
    """Those of the rate as it fills, those of the budget one a second; a clock that went back takes none away."""
    assert tokens_now(replace(FULL, tokens=None), WHOLE, NOW) == 4.0
    assert tokens_now(replace(FULL, tokens_at=NOW - SECOND / 4), WHOLE, NOW) == 1.5 + 7 / 4
    assert tokens_now(replace(FULL, tokens_at=NOW + SECOND), WHOLE, NOW) == 1.5
    assert tokens_now(FULL, WHOLE, NOW) == 4.0
    assert retry_tokens_now(replace(FULL, retry_tokens=None), NOW) == RETRY_TOKENS_MAX == 60
    assert retry_tokens_now(FULL, NOW) == 9.0
    assert retry_tokens_now(replace(FULL, retry_tokens=59.0), NOW) == 60.0
    assert [retry_room(FULL, WHOLE, NOW, limit) for limit in (5, 99)] == [5, 9]
    assert retry_room(replace(FULL, retry_tokens=-9.0), WHOLE, NOW, 5) == 0
    assert retry_room(FULL, GateRule(), NOW, 99) == 99


def test_what_a_window_still_sees() -> None:
    """Of the window before as much as lies within; also where nothing has moved the windows on since."""
    assert in_window(FULL, WHOLE, NOW) == (4 + 9 * 0.75, 2 + 8 * 0.75)
    assert in_window(FULL, replace(WHOLE, within=seconds(5)), NOW) == (4, 2)
    assert in_window(replace(FULL, window_at=NOW + SECOND), WHOLE, NOW) == (13, 10)
    assert lately(FULL, replace(WHOLE, within=seconds(10)), NOW) == (4 * 0.5, 2 * 0.5)


def test_a_batch_is_summed_up() -> None:
    """How many of each answer, the longest wait that was asked for, the shortest that is to come, and the probe's answer."""

    def of(outcome: object, fence: UUID = FENCE):
        claim = claim_of()._replace(seen=GateSeen(fence))
        return decide(claim, outcome, Policy(attempts=9))  # type: ignore[arg-type]

    asks = [Failed(RateLimitedError("x", retry_after=seconds(wait))) for wait in (40, 90)]
    batch = [of(Done()), of(Failed(OSError())), *map(of, asks), of(Snoozed(seconds(7))), of(Released(), UUID(int=8))]
    whole = Settled(claims=6, good=1, bad=1, refused=2, asked=seconds(90), soonest=timedelta(0))
    assert sum_up(batch, None) == whole
    assert sum_up(batch, FENCE) == replace(whole, probe=True)
    assert sum_up(batch, UUID(int=8)) == replace(whole, probe=False)
    assert sum_up([of(Done())], None) == Settled(claims=1, good=1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 1,000,000, not 0"),
        ({"burst": True, "rate": 1}, "burst must be a whole number from 1 to 1,000,000, not True"),
        ({"budget": 0}, "budget must be a share above 0 and up to 1, such as 0.2, not 0"),
        ({"budget": True}, "budget must be a share above 0 and up to 1, such as 0.2, not True"),
        ({"burst": 2}, "burst is a part of the rate: say rate= too"),
        ({"rate": "x"}, "rate must look like '20/s', '100/m' or '1000/h', not 'x'"),
        ({"breaker": 10}, "breaker must be a Breaker, such as Breaker(failures=10), not 10"),
    ],
)
def test_what_is_said_of_a_wrong_limit(given: dict[str, object], sentence: str) -> None:
    """Whole sentences, with what would be right."""
    with pytest.raises(UsageError) as refused:
        read_rule(**given)  # type: ignore[arg-type]
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"failures": 0}, "failures must be a whole number from 1 to 1,000,000, not 0"),
        ({"share": 1.5}, "share must be a share above 0 and up to 1, such as 0.2, not 1.5"),
        ({"within": 0.0001}, "within must be at least 1ms, not 0s"),
        ({"probe": 0}, "probe must be at least 1ms, not 0s"),
    ],
)
def test_what_is_said_of_a_wrong_breaker(given: dict[str, object], sentence: str) -> None:
    """Whole sentences, with what would be right."""
    with pytest.raises(UsageError) as refused:
        Breaker(**given)  # type: ignore[arg-type]
    assert str(refused.value) == sentence


def test_limits_are_kept_as_they_were_said() -> None:
    """Each in its place, with and without a breaker; the ends of the ranges are accepted."""
    assert read_rule(concurrency=1_000_000, rate="20/m", burst=1, budget=1) == GateRule(
        concurrency=1_000_000, rate=20, rate_span=minutes(1), burst=1, budget=1
    )
    breaker = Breaker(failures=1, share=1, within=0.001, probe=0.001)
    assert read_rule(concurrency=1, rate=7, burst=2, breaker=breaker, budget=0.1) == GateRule(
        concurrency=1, rate=7, burst=2, budget=0.1, failures=1, share=1, within=seconds(0.001), probe=seconds(0.001)
    )
    assert read_rule() == UNLIMITED == GateRule(rate_span=SECOND)


@pytest.mark.parametrize(
    ("rule", "bucket", "fill", "steps"),
    [
        (GateRule(rate=20), 2, 19.0, 5),
        (GateRule(rate=1), 1, 1.0, 0),
        (GateRule(rate=16, burst=99), 16, 1.0, 4),
        (GateRule(rate=60, rate_span=minutes(1), burst=1), 1, 1.0, 0),
        (GateRule(rate=100_000), 5001, 95_000.0, 10),
    ],
)
def test_a_rate_in_tokens(rule: GateRule, bucket: int, fill: float, steps: int) -> None:
    """A twentieth of the rate at once and the rest by and by, so that no span sees more than the rate; a ramp doubles up to it."""
    assert (rule.bucket, rule.fill, rule.ramp_steps) == (bucket, fill, steps)
    assert UNLIMITED.ramp_steps == 10


def test_rates_as_people_write_them() -> None:
    """So many a second, minute or hour; anything else is refused with an example."""
    assert read_rate("20/s") == (20, seconds(1))
    assert read_rate(" 100 / m ") == (100, minutes(1))
    assert read_rate("1000/h") == (1000, timedelta(hours=1))
    assert read_rate(5) == (5, seconds(1))
    for wrong in ("20", "0/s", "-1/s", "1.5/s", "20/day", "", 0, True, 2.5, None):
        with pytest.raises(UsageError, match="20/s"):
            read_rate(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"burst": 2},
        {"rate": "x"},
        {"breaker": 10},
        {"budget": 0},
        {"budget": 2},
    ],
)
def test_limits_are_checked(wrong: dict[str, object]) -> None:
    """What cannot be a limit is refused when it is written."""
    with pytest.raises(UsageError):
        read_rule(**wrong)  # type: ignore[arg-type]


def test_limits_go_to_their_bounds() -> None:
    """The first and the last that may be said; a rate is one in its own span, with a breaker and without."""
    assert read_rate(1) == (1, timedelta(seconds=1))
    assert read_rate("1/h") == (1, timedelta(hours=1))
    assert read_rate(10**9 - 1)[0] == int("9" * 9) == read_rate("9" * 9 + "/s")[0]
    for wrong in (0, 10**9, "0/s", "1" + "0" * 9 + "/s"):
        with pytest.raises(UsageError):
            read_rate(wrong)
    for breaker in (None, Breaker()):
        assert read_rule(rate="5/m", breaker=breaker).rate_span == timedelta(minutes=1)
    assert read_rule(concurrency=1_000_000).concurrency == 1_000_000
    with pytest.raises(UsageError, match="concurrency must be a whole number from 1 to 1,000,000"):
        read_rule(concurrency=1_000_001)


def test_the_most_specific_pattern_wins() -> None:
    """A gate's own name, then the pattern with the most letters; none where nothing fits."""
    patterns = ["*", "bank:*", "bank:D*", "bank:DE", "*:DE"]
    assert most_specific(patterns, "bank:DE") == "bank:DE"
    assert most_specific(patterns, "bank:DK") == "bank:D*"
    assert most_specific(patterns, "bank:FR") == "bank:*"
    assert most_specific(patterns, "shop:DE") == "*:DE"
    assert most_specific(patterns, "[a]") == "*"
    assert most_specific(["bank:*"], "shop:1") is None
    assert most_specific(["b*a**", "ban*"], "bank") == "ban*", "a star is no letter"
    assert most_specific(["ba*n*", "ban*"], "bank") == "ban*", "as many letters, and fewer stars"


@given(
    st.dictionaries(st.integers(0, BANDS - 1), st.integers(0, 60), max_size=BANDS),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(FAVOURED),
)
def test_no_level_starves(amounts: dict[int, int], room: int, retries: int, favoured: int) -> None:
    """All of the room is used, retries stay within theirs, each band keeps what it is sure of, and the favoured band is served."""
    rows = [DueRow(0, band, number, number) for band, amount in amounts.items() for number in range(amount)]
    picked = in_order(rows, room, retries, favoured)
    taken = Counter(row.band for row in picked)
    kept, left = dict(amounts), retries
    for band in sorted(amounts):
        if band % 2 == 0:
            kept[band] = min(amounts[band], left)
            left -= kept[band]
    assert len(picked) == min(room, sum(kept.values()))
    for band, amount in kept.items():
        sure = room * SURE_PERCENT[band] // 100
        assert taken[band] >= min(amount, sure) - (favoured != band)
        assert taken[band] >= min(amount, room, int(band == favoured))


def test_refusals_are_counted_until_a_good_answer() -> None:
    """Those in a row, over batches; a batch with a good answer begins anew."""
    gate = Gate.new("bank", NOW, held=9)
    gate = settled(gate, UNLIMITED, NOW, Settled(claims=3, refused=3, asked=seconds(5)))
    gate = settled(gate, UNLIMITED, NOW, Settled(claims=2, refused=1, bad=1))
    assert gate.refused == 4
    assert settled(gate, UNLIMITED, NOW, Settled(claims=2, refused=1, good=1)).refused == 0


def test_a_suspect_that_is_the_probe_answers_for_it() -> None:
    """It runs under a fence of its own, and is known by the one that it was claimed under."""
    fence = UUID(int=7)
    probe = claim_of(gate="bank")._replace(claim_id=fence, seen=GateSeen(fence, probe=True)).alone()
    assert probe.claim_id != fence
    assert sum_up([decide(probe, Done(), Policy())], fence).probe is True
    assert sum_up([decide(claim_of(gate="bank"), Done(), Policy())], fence).probe is None


@given(
    st.dictionaries(st.integers(0, 5), st.integers(1, 30), min_size=1), st.integers(1, 40), st.integers(-1, BANDS - 1)
)
def test_tenants_of_a_shared_gate_take_turns(amounts: dict[int, int], room: int, favoured: int) -> None:
    """Whatever one has due, none gets more than one beyond another that has something left; all of the room is used."""
    rows = [DueRow(turn, (turn + n) % BANDS, n, (turn, n)) for turn, amount in amounts.items() for n in range(amount)]
    taken = Counter(row.turn for row in in_order(rows, room, len(rows), favoured))
    assert taken.total() == min(room, len(rows))
    unserved = [turn for turn, amount in amounts.items() if taken[turn] < amount]
    assert all(taken[one] <= taken[other] + 1 for one in amounts for other in unserved)


def test_turns_begin_behind_the_one_served_last() -> None:
    """Once around, and that one comes last; a tenant without a name has its turn too."""
    assert around(["a", "", "c", "b"], "a") == ["b", "c", "", "a"]


def due(*bands: int, turn: int = 0) -> list[DueRow]:
    """Rows of these bands, each due after the one before."""
    return [DueRow(turn, band, number, number) for number, band in enumerate(bands)]


def picked(rows: list[DueRow], room: int, retries: int = 99, favoured: int = -1) -> list[tuple[int, int]]:
    """What goes first: band, and when it was due."""
    return [(one.band, one.due) for one in in_order(rows, room, retries, favoured)]


def test_no_more_retries_go_than_the_budget_has():
    """Every even band is of retries, and they share one budget; first tries do not count."""
    rows = due(0, 0, 2, 4, 1, 1, 3, 5)
    assert sorted(band for band, _ in picked(rows, 100, retries=2)) == [0, 0, 1, 1, 3, 5]
    assert sorted(band for band, _ in picked(rows, 100, retries=3)) == [0, 0, 1, 1, 2, 3, 5]
    assert sorted(band for band, _ in picked(rows, 100, retries=0)) == [1, 1, 3, 5]


def test_the_favoured_band_has_the_first_place_and_no_more():
    """One of it goes before all others; the next of it stands where its band does."""
    rows = due(0, 0, 0, 5, 5)
    assert picked(rows, 1, favoured=5) == [(5, 3)]
    assert picked(rows, 3, favoured=5) == [(5, 3), (0, 0), (0, 1)]
    assert picked(rows, 3) == [(0, 0), (0, 1), (0, 2)]


def test_each_band_has_what_it_is_sure_of():
    """Of a room of four a band that is sure of a quarter has one, however many stand above it; of three it has none."""
    rows = due(1, 1, 1, 1, 3, 3)
    assert picked(rows, 4) == [(1, 0), (3, 4), (1, 1), (1, 2)]
    assert picked(rows, 3) == [(1, 0), (1, 1), (1, 2)]
    assert [band for band, _ in picked(due(*[1] * 20, *[3] * 20), 8)] == [1, 1, 3, 3, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("gates", "limit", "mostly"),
    [
        (["g", "g", None], 3, True),
        (["g", None], 2, False),
        (["g", "g"], 5, False),
        ([None, None], 2, False),
        ([], 0, False),
    ],
)
def test_a_claim_is_mostly_gated_with_more_than_half(gates: list[str | None], limit: int, mostly: bool):
    """Counted of what it might have given."""
    assert mostly_gated(gates, limit) is mostly


def test_a_priority_is_one_of_three():
    """By its name; anything else is refused with the three."""
    assert [read_priority(name).level for name in ("high", "normal", "low")] == [0, 1, 2]
    assert read_priority("low") is Priority.LOW
    with pytest.raises(UsageError) as refused:
        read_priority("urgent")
    assert str(refused.value) == "priority must be high, normal or low, not 'urgent'"


@pytest.mark.parametrize(("held", "limit", "lets"), [(0, 9, 5), (3, 9, 2), (3, 1, 1), (5, 9, 0), (7, 9, 0)])
def test_a_gate_holds_no_more_than_its_concurrency(held: int, limit: int, lets: int):
    """What it holds already leaves that much less room, and a limit that was lowered meanwhile leaves none."""
    gate = replace(Gate.new("bank:DE", NOW), held=held)
    assert room(gate, GateRule(concurrency=5), NOW, limit) == lets
