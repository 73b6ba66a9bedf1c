"""The one place that decides: from a claim and what its run came to, to what the ledger must write.

`decide` is pure. It alone knows budgets, delays, floors and deadlines; worker and keeper both call it, so a crash and
an exception spend the same budget by the same rule.
"""

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

from redrive.core import jitter as jitters
from redrive.core.durations import ZERO, format_duration
from redrive.core.failure import RETRIED, ErrorClass, asked_patience, describe_error
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Outcome, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.stack import Stack, stack_of
from redrive.core.states import State
from redrive.core.task import Claim, GateSeen, is_alone
from redrive.errors import TaskError

LEASE_EXPIRED_ERROR = "the worker was lost: its lease ran out before it settled"
SUSPECT = "suspect"
"""The verdict on a run that was lost beside others: not charged, and run alone next time."""
PROBE = "probe"
"""The verdict on a probe of a gate that failed: that the destination is down was known, so the task is not charged."""
REFUSED = "refused"
"""The verdict on a task whose destination asked for a pause, which its whole gate makes: not charged."""
UNKNOWN = "unknown"
"""The verdict on a try of which nobody knows whether its effect happened: see `core.effect`."""
REFUSALS_MAX = 100
"""After so many such answers of a gate in a row each is charged: a destination that only ever says so is tried for no task for ever."""
STRETCH_MAX = 3
"""How often the waits behind a gate are doubled at most."""
TOLD_MAX = 1024
"""So many explanations of a policy are kept that are the same for many tasks."""
_NEW: Callable[[type["Settlement"], tuple[Any, ...]], "Settlement"] = tuple.__new__
"""Makes a settlement of all its values: the named tuple's own way is a function of Python's, called for each."""
_DONE, _WAITING, _DEAD = State.DONE, State.WAITING, State.DEAD
_SPARED = {PROBE: "it was the probe of", REFUSED: "Retry-After shuts"}


class Explanation(NamedTuple):
    """Why a failed task was treated as it was, in the numbers that were used."""

    error_class: ErrorClass
    rule: str
    policy: str
    failures: int
    failures_max: int
    verdict: str
    backoff: str | None = None
    wait: timedelta | None = None
    jitter: str | None = None
    draw: float | None = None
    floor: timedelta | None = None
    cap: timedelta | None = None
    delay: timedelta | None = None
    lost_alone: int = 0
    """How many workers the task has taken with it while it ran alone: the evidence that it is the culprit."""
    gate: str | None = None
    """The gate that had a say in it."""
    stretch: int = 1
    """How many times as long the wait is, because the gate's breaker has tripped."""
    stack: Stack | None = None
    """Where the exception came from. The history keeps its id, and the ledger each distinct one once."""

    @property
    def budget_left(self) -> int:
        """How many more failures are allowed before the last one."""
        return max(0, self.failures_max - self.failures)

    @property
    def _rule(self) -> str:
        return "default" if self.rule == "otherwise" else f"rule {self.rule}"

    def sentence(self) -> str:
        """The same for people."""
        if self.verdict == SUSPECT:
            return f"{self.error_class} by {self._rule}; others ran beside it: not charged, run alone next time"
        if self.verdict == UNKNOWN:
            asked = (
                "a person must answer"
                if self.delay is None
                else f"its probe is asked after {format_duration(self.delay)}"
            )
            return f"nobody knows whether its effect happened: {asked}"
        why = f"{self.error_class} by {self._rule}; "
        if self.verdict in _SPARED:
            why += f"{_SPARED[self.verdict]} gate {self.gate}: not charged"
        else:
            why += f"failure {self.failures} of {self.failures_max}"
        if self.lost_alone:
            why += f"; {self.lost_alone} {'worker' if self.lost_alone == 1 else 'workers'} lost while it ran alone"
        if self.delay is None:
            return f"{why}: dead ({self.verdict})"
        parts = [f"{self.backoff} gives {format_duration(self.wait or ZERO)}", f"jitter {self.jitter}"]
        if self.draw is not None:
            parts[-1] += f" drew {self.draw:.3f}"
        if self.stretch > 1:
            parts.append(f"times {self.stretch} since gate {self.gate} has tripped")
        if self.floor is not None:
            parts.append(f"Retry-After asks for {format_duration(self.floor)}")
        return f"{why}: again after {format_duration(self.delay)} ({', '.join(parts)})"

    def as_json(self) -> dict[str, Any]:
        """For the history: spans in seconds, nothing that is not known."""
        shown: dict[str, Any] = json.loads(self.json_text())
        return shown

    def json_text(self) -> str:
        """The same as text. What many failures share is encoded once: about half the time."""
        shared = _shared_json(
            self.error_class, self.rule, self.policy, self.verdict, self.backoff, self.jitter, self.cap
        )
        text = f'{shared}, "failures": {self.failures}, "failures_max": {self.failures_max}'
        text += f', "budget_left": {self.budget_left}'
        if self.delay is not None:
            wait = self.delay if self.wait is None else self.wait
            text += f', "wait_seconds": {wait.total_seconds()}, "delay_seconds": {self.delay.total_seconds()}'
        if self.draw is not None:
            text += f', "draw": {self.draw:.6f}'
        if self.floor is not None:
            text += f', "floor_seconds": {self.floor.total_seconds()}'
        if self.lost_alone:
            text += f', "lost_alone": {self.lost_alone}'
        if self.gate is not None:
            text += f', "gate": {json.dumps(self.gate)}, "stretch": {self.stretch}'
        if self.stack is not None:
            text += f", {self.stack.members}"
        return text + "}"


@lru_cache(maxsize=1024)
def _shared_json(
    error_class: ErrorClass,
    rule: str,
    policy: str,
    verdict: str,
    backoff: str | None,
    jitter: str | None,
    cap: timedelta | None,
) -> str:
    shown: dict[str, Any] = {"error_class": error_class.value, "rule": rule, "policy": policy, "verdict": verdict}
    if backoff is not None:
        shown |= {"backoff": backoff, "jitter": jitter, "cap_seconds": None if cap is None else cap.total_seconds()}
    return json.dumps(shown)[:-1]


class Settlement(NamedTuple):
    """What the ledger must write for a claim: the next state, the count, the delay, the error and why.

    It has a delay if its state is waiting, and only then.
    """

    claim: Claim
    outcome: str
    state: State
    failures: int
    delay: timedelta | None = None
    error: str | None = None
    explanation: Explanation | None = None
    elapsed: timedelta = ZERO
    result: Any = None
    """What the handler returned, or the error that it raised: for what is written beside, or for `Lane.result`."""

    @property
    def error_class(self) -> ErrorClass | None:
        """The class of the failure, if it was one."""
        return self.explanation.error_class if self.explanation else None


def explanation_texts(settlements: Iterable[Settlement]) -> list[str | None]:
    """The explanation of each as JSON. Those that fail alike share one, which is written once."""
    texts: dict[int, str] = {}
    found: list[str | None] = []
    for settlement in settlements:
        explanation = settlement.explanation
        if explanation is None:
            found.append(None)
            continue
        text = texts.get(id(explanation))
        if text is None:
            text = texts[id(explanation)] = explanation.json_text()
        found.append(text)
    return found


def decide(claim: Claim, outcome: Outcome, policy: Policy, *, elapsed: timedelta = ZERO) -> Settlement:
    """What must be written because of what a run came to. `elapsed` is how long it ran."""
    failures = claim.task.failures
    match outcome:
        case Done():  # by position and without a pattern for its result: half the time for what happens most
            return _NEW(Settlement, (claim, "done", _DONE, failures, None, None, None, elapsed, outcome.result))
        case Failed():
            error = outcome.error
            error_class, rule = policy.classify(error)
            return _fail(
                claim, policy, elapsed, "failed", error_class, rule, describe_error(error), asked_patience(error), error
            )
        case Snoozed(delay, reason):
            return Settlement(
                claim=claim, outcome="snoozed", state=State.WAITING, failures=failures,
                delay=delay, error=reason or None, elapsed=elapsed,
            )  # fmt: skip
        case Released():
            return Settlement(
                claim=claim, outcome="released", state=State.WAITING, failures=failures, delay=ZERO, elapsed=elapsed
            )
        case Cancelled(reason, result):
            return Settlement(
                claim=claim, outcome="cancelled", state=State.CANCELLED, failures=failures,
                error=reason or None, elapsed=elapsed, result=result,
            )  # fmt: skip
        case LeaseExpired():
            alone, failures_max = is_alone(claim.claim_id), failures_max_of(claim, policy)
            if not alone and failures_max > 1:
                return _suspect(claim, policy, elapsed, failures_max)
            lost = _fail(
                claim, policy, elapsed, "lease_expired", ErrorClass.WORKER_LOST, "lease", LEASE_EXPIRED_ERROR, None
            )
            if alone and lost.explanation is not None:
                before = 0 if claim.abandoned is None else claim.abandoned.lost_alone
                lost = lost._replace(explanation=lost.explanation._replace(lost_alone=before + 1))
            return lost
        case _:
            assert_never(outcome)


def _suspect(claim: Claim, policy: Policy, elapsed: timedelta, failures_max: int) -> Settlement:
    """Lost beside others: any of them may have killed the worker, so none is charged, and each runs alone next time."""
    explanation = Explanation(
        ErrorClass.WORKER_LOST, "lease", policy.name, claim.task.failures, failures_max, SUSPECT, delay=ZERO
    )
    return Settlement(
        claim=claim, outcome="lease_expired", state=State.WAITING, failures=claim.task.failures,
        delay=ZERO, error=LEASE_EXPIRED_ERROR, explanation=explanation, elapsed=elapsed,
    )  # fmt: skip


def deadline_of(claim: Claim, policy: Policy) -> datetime | None:
    """The instant from which the task is not to be tried any more: its own, or the policy's after its creation."""
    own = claim.task.deadline_at
    if not policy.has_deadline or (created_at := claim.task.created_at) is None:
        return own
    assert policy.deadline is not None
    return created_at + policy.deadline if own is None else min(own, created_at + policy.deadline)


def failures_max_of(claim: Claim, policy: Policy) -> int:
    """The failure at which the task dies: its own number if it has one, else the policy's."""
    return claim.task.failures_max if claim.task.failures_max is not None else policy.failures_max


def _fail(
    claim: Claim,
    policy: Policy,
    elapsed: timedelta,
    outcome: str,
    error_class: ErrorClass,
    rule: str,
    error: str,
    patience: timedelta | None,
    raised: BaseException | None = None,
) -> Settlement:
    stack = None if raised is None else stack_of(raised)
    if stack is not None and stack.at is None and isinstance(raised, TaskError):
        stack = None  # said on purpose by a handler that is not the user's code: there is no line to mend
    explanation = _explained(claim, policy, elapsed, error_class, rule, patience, stack)
    state = _DEAD if explanation.delay is None else _WAITING
    return _NEW(
        Settlement,
        (claim, outcome, state, explanation.failures, explanation.delay, error, explanation, elapsed, raised),
    )


def _explained(
    claim: Claim,
    policy: Policy,
    elapsed: timedelta,
    error_class: ErrorClass,
    rule: str,
    patience: timedelta | None,
    stack: Stack | None,
) -> Explanation:
    """Why, by the numbers. A policy that draws nothing tells all tasks that fail alike the same, which is then made once."""
    task = claim.task
    if not policy.is_same_for_all or patience is not None or claim.seen is not None or task.deadline_at is not None:
        return _explain(claim, policy.for_task(task), elapsed, error_class, rule, patience, stack)
    told, alike = policy.told, (error_class, rule, task.failures, task.failures_max, stack)
    explanation: Explanation | None = told.get(alike)
    if explanation is None:
        if len(told) >= TOLD_MAX:
            told.clear()
        explanation = told[alike] = _explain(claim, policy, elapsed, error_class, rule, patience, stack)
    return explanation


def _explain(
    claim: Claim,
    policy: Policy,
    elapsed: timedelta,
    error_class: ErrorClass,
    rule: str,
    patience: timedelta | None,
    stack: Stack | None,
) -> Explanation:
    tried = failures = claim.task.failures + 1
    failures_max = failures_max_of(claim, policy)
    spared = None if claim.seen is None else _spared_by(claim.seen, error_class, patience)
    if error_class not in RETRIED:
        verdict = error_class.value
    elif spared is not None:
        verdict, failures = spared, claim.task.failures
    elif failures >= failures_max:
        verdict = "worker_lost" if error_class is ErrorClass.WORKER_LOST else "exhausted"
    else:
        verdict = "retry"

    wait = draw = floor = delay = None
    if patience is not None:
        # Retry-After is a floor, itself bounded: a stranger must not park our task for a year.
        floor = min(patience, policy.retry_after_max)
    gate, stretch = (None, 1) if claim.seen is None else _gate_of(claim, claim.seen, spared)
    if verdict == "retry" or spared is not None:
        wait = policy.backoff.wait(tried)
        delay = policy.delay(tried, claim.task.key) * stretch
        if policy.jitter is not jitters.none:
            draw = jitters.draw(claim.task.key, tried, policy.name)
        if floor is not None:
            delay = max(delay, floor)
        deadline = deadline_of(claim, policy)
        if deadline is not None and claim.claimed_at + elapsed + delay >= deadline:
            verdict, delay = "deadline", None

    if delay is None:
        return Explanation(error_class, rule, policy.name, failures, failures_max, verdict, floor=floor, stack=stack)
    return Explanation(
        error_class, rule, policy.name, failures, failures_max, verdict,
        policy.backoff_words, wait, policy.jitter_words, draw, floor, policy.backoff.cap, delay, 0, gate, stretch, stack,
    )  # fmt: skip


def _spared_by(seen: GateSeen, error_class: ErrorClass, patience: timedelta | None) -> str | None:
    """Why a failure behind a gate is not charged, if it is not: it says something of the destination and nothing of the task."""
    if seen.probe and error_class in (ErrorClass.TRANSIENT, ErrorClass.RATE_LIMITED):
        return PROBE
    if error_class is ErrorClass.RATE_LIMITED and patience is not None and seen.refused < REFUSALS_MAX:
        return REFUSED
    return None


def _gate_of(claim: Claim, seen: GateSeen, spared: str | None) -> tuple[str | None, int]:
    """The gate, if it had a say in the decision, and how many times as long the wait is."""
    stretch: int = 2 ** min(seen.trips, STRETCH_MAX)
    return (claim.task.gate if spared is not None or stretch > 1 else None), stretch
