"""The one place that decides: from a claim and what its run came to, to what the ledger must write.

`decide` is pure. It alone knows budgets, delays, floors and deadlines; worker and keeper both call it, so a crash and
an exception spend the same budget by the same rule.
"""

import json
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

from redrive.core import jitter as jitters
from redrive.core.durations import ZERO, format_duration
from redrive.core.failure import RETRIED, ErrorClass, asked_patience, describe_error
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Outcome, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Claim, is_alone

LEASE_EXPIRED_ERROR = "the worker was lost: its lease ran out before it settled"
SUSPECT = "suspect"
"""The verdict on a run that was lost beside others: not charged, and run alone next time."""


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

    @property
    def budget_left(self) -> int:
        """How many more failures are allowed before the last one."""
        return max(0, self.failures_max - self.failures)

    def sentence(self) -> str:
        """The same for people."""
        if self.verdict == SUSPECT:
            return f"{self.error_class} by rule {self.rule}; others ran beside it: not charged, run alone next time"
        why = f"{self.error_class} by rule {self.rule}; failure {self.failures} of {self.failures_max}"
        if self.lost_alone:
            why += f"; {self.lost_alone} {'worker' if self.lost_alone == 1 else 'workers'} lost while it ran alone"
        if self.delay is None:
            return f"{why}: dead ({self.verdict})"
        parts = [f"{self.backoff} gives {format_duration(self.wait or ZERO)}", f"jitter {self.jitter}"]
        if self.draw is not None:
            parts[-1] += f" drew {self.draw:.3f}"
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
    """What the handler returned, or the error that it raised: for what is written beside. The ledger does not store it."""

    @property
    def error_class(self) -> ErrorClass | None:
        """The class of the failure, if it was one."""
        return self.explanation.error_class if self.explanation else None


def decide(claim: Claim, outcome: Outcome, policy: Policy, *, elapsed: timedelta = ZERO) -> Settlement:
    """What must be written because of what a run came to. `elapsed` is how long it ran."""
    failures = claim.task.failures
    match outcome:
        case Done(result):
            return Settlement(
                claim=claim, outcome="done", state=State.DONE, failures=failures, elapsed=elapsed, result=result
            )
        case Failed(error):
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
    own, created_at = claim.task.deadline_at, claim.task.created_at
    if policy.deadline is None or created_at is None:
        return own
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
    policy = policy.for_task(claim.task)
    failures = claim.task.failures + 1
    failures_max = failures_max_of(claim, policy)
    if error_class not in RETRIED:
        verdict = error_class.value
    elif failures >= failures_max:
        verdict = "worker_lost" if error_class is ErrorClass.WORKER_LOST else "exhausted"
    else:
        verdict = "retry"

    wait = draw = floor = delay = None
    if verdict == "retry":
        wait = policy.backoff.wait(failures)
        delay = policy.delay(failures, claim.task.key)
        if policy.jitter is not jitters.none:
            draw = jitters.draw(claim.task.key, failures, policy.name)
        if patience is not None:
            # Retry-After is a floor, itself bounded: a stranger must not park our task for a year.
            floor = min(patience, policy.retry_after_max)
            delay = max(delay, floor)
        deadline = deadline_of(claim, policy)
        if deadline is not None and claim.claimed_at + elapsed + delay >= deadline:
            verdict, delay = "deadline", None

    if delay is None:
        explanation = Explanation(error_class, rule, policy.name, failures, failures_max, verdict, floor=floor)
        return Settlement(claim, outcome, State.DEAD, failures, None, error, explanation, elapsed, raised)
    explanation = Explanation(
        error_class, rule, policy.name, failures, failures_max, verdict,
        policy.backoff_words, wait, policy.jitter_words, draw, floor, policy.backoff.cap, delay,
    )  # fmt: skip
    return Settlement(claim, outcome, State.WAITING, failures, delay, error, explanation, elapsed, raised)
