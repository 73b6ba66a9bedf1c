"""Effects: what is known of something that a try does outside, and what follows when nobody knows whether it happened.

Pure. A try that has entered its effect leaves a durable mark. If it does not come back with an answer, its settlement is not
lost: it is kept in the mark, the task waits, and the probe is asked. What is written then follows from its answer:

    happened       done, with the evidence as the result
    not happened   what the try came to by itself: the retry, or its end
    cannot tell    dead with the verdict `unknown`: a person must answer

Until then no new try is made.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

from redrive.core.backoff import Exponential
from redrive.core.decide import LEASE_EXPIRED_ERROR, SUSPECT, UNKNOWN, Explanation, Settlement
from redrive.core.durations import ZERO, OptionalSpanField, format_duration
from redrive.core.effect_mark import EffectAnswer, EffectMark, MarkState, Then
from redrive.core.failure import ErrorClass, describe_error, safe_text
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Outcome, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.errors import HandlerError, NotHappened

PROBING = Policy(Exponential(timedelta(seconds=5), timedelta(minutes=5)), attempts=10, name="probe")
"""How a probe is retried unless an effect says otherwise: the first time after some seconds, so that what is under way has arrived."""
DEFINITE = frozenset({ErrorClass.PERMANENT, ErrorClass.BUSINESS, ErrorClass.RATE_LIMITED})
"""Classes of errors by which the other side has refused: the effect did not happen."""
_KEYS = UUID("7a1f6c1e-5f0b-5d0c-9b0e-3f1d2c4b5a69")


@dataclass(frozen=True, slots=True)
class Happened:
    """A probe's answer: it happened. The evidence, any JSON, is the result of the task."""

    evidence: Any = None


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A probe's answer: nobody can know from here, so a person must say."""

    reason: str = ""


@dataclass(frozen=True)
class Effect:
    """What a handler does outside, and how to find out whether it happened.

    `probe` is a function of the task, or of the task and a `Context`, that returns `Happened`, `NotHappened` or `CannotTell`. It
    is retried as `policy` says. `key_window` is how long the other side remembers an idempotency key: a try that
    would begin after it is not made by itself.
    """

    probe: Callable[..., Any]
    _: KW_ONLY
    key_window: OptionalSpanField = OptionalSpanField()
    timeout: OptionalSpanField = OptionalSpanField()
    """How long an async probe may take; without it as long as it likes."""
    policy: Policy = field(default=PROBING)

    def __post_init__(self) -> None:
        if not callable(self.probe):
            raise HandlerError(f"a probe must be a function of the task, not {self.probe!r}")
        if not isinstance(self.policy, Policy):
            raise HandlerError(f"the policy of a probe must be a Policy, not {self.policy!r}")


def effect_key(ledger: str, task: Task) -> str:
    """The same for every try of a task, and for no other task: an idempotency key."""
    return str(uuid5(_KEYS, f"{ledger}\0{task.id}\0{task.key}"))


def after_try(settlement: Settlement, mark: EffectMark, effect: Effect, *, definite: bool) -> Settlement:
    """What is written of a try that has entered its effect. `definite` says that its end is an answer: it did not happen."""
    if settlement.state is State.DONE:
        return _with(settlement, _answered(mark, EffectAnswer.HAPPENED, "handler", why=None))
    if definite:
        return _with(settlement, _answered(mark, EffectAnswer.NOT_HAPPENED, "handler", why=settlement.error))
    return _unknown(settlement, mark, effect)


def after_loss(settlement: Settlement, mark: EffectMark, effect: Effect) -> Settlement:
    """What is written of a claim that was lost with its worker while the mark is there: lost inside, or while the probe was asked."""
    if mark.state is MarkState.INSIDE:
        return _unknown(settlement, mark, effect)
    if not mark.is_open:
        return settlement
    beside = settlement.explanation is not None and settlement.explanation.verdict == SUSPECT
    probes = mark.probes + (0 if beside else 1)
    return _ask_again(settlement.claim, mark, effect, probes, "lease_expired", LEASE_EXPIRED_ERROR, settlement.elapsed)


def after_probe(
    claim: Claim, mark: EffectMark, outcome: Outcome, effect: Effect, elapsed: timedelta
) -> Settlement | EffectMark:
    """What is written after the probe was asked; or the mark with which the try may begin at once."""
    answer = outcome.result if isinstance(outcome, Done) else outcome
    if isinstance(outcome, Failed) and isinstance(outcome.error, NotHappened):
        answer = outcome.error
    match answer:
        case Happened(evidence):
            done = Settlement(claim, "done", State.DONE, claim.task.failures, elapsed=elapsed, result=evidence)
            return _with(done, _answered(mark, EffectAnswer.HAPPENED, "probe", why=None))
        case NotHappened():
            return _not_happened(claim, mark, str(answer), effect, elapsed)
        case type() if answer is NotHappened:
            return _not_happened(claim, mark, "", effect, elapsed)
        case CannotTell(reason):
            return _needs_person(
                claim, mark, f"the probe cannot tell{f': {safe_text(reason)}' if reason else ''}", elapsed
            )
        case type() if answer is CannotTell:
            return _needs_person(claim, mark, "the probe cannot tell", elapsed)
        case Released() | LeaseExpired():
            return _ask_again(claim, mark, effect, mark.probes, "released", None, elapsed)
        case Cancelled(reason):
            # Whoever cancels it while the probe is asked wants no retry; whether it happened is in question all the same.
            mark = replace(mark, then=Then(State.CANCELLED, "cancelled", None, reason or None), why=reason or None)
            return _ask_again(claim, mark, effect, mark.probes + 1, "released", None, elapsed)
        case Snoozed():
            why = "the probe returned Snoozed, which is not an answer"
        case Failed(error):
            why = f"the probe failed: {describe_error(error)}"
            error_class, _ = effect.policy.classify(error)
            if error_class in (ErrorClass.PERMANENT, ErrorClass.BUSINESS):
                return _needs_person(claim, mark, why, elapsed)
        case _:
            why = (
                f"the probe returned {safe_text(repr(answer))[:200]}: let it return Happened, NotHappened or CannotTell"
            )
            return _needs_person(claim, mark, why, elapsed)
    return _ask_again(claim, replace(mark, why=why), effect, mark.probes + 1, "snoozed", why, elapsed)


def _with(settlement: Settlement, mark: EffectMark) -> Settlement:
    return settlement._replace(claim=settlement.claim._replace(effect=mark))


def _answered(mark: EffectMark, answer: EffectAnswer, by: str, *, why: str | None) -> EffectMark:
    return replace(mark, state=MarkState.ANSWERED, answer=answer, answered_by=by, why=why, then=None)


def _unknown(settlement: Settlement, mark: EffectMark, effect: Effect) -> Settlement:
    """The try ended where its effect may have happened: it waits for the probe, and what it came to is kept."""
    said = settlement.explanation
    error_class = ErrorClass.TRANSIENT if said is None else said.error_class
    then = Then(
        settlement.state, settlement.outcome, settlement.delay, settlement.error,
        error_class, "effect" if said is None else said.rule, "retry" if said is None else said.verdict,
    )  # fmt: skip
    delay = effect.policy.delay(1, settlement.claim.task.key)
    explanation = Explanation(
        error_class, then.rule, "" if said is None else said.policy, settlement.failures,
        settlement.failures if said is None else said.failures_max, UNKNOWN, delay=delay,
        stack=None if said is None else said.stack, lost_alone=0 if said is None else said.lost_alone,
    )  # fmt: skip
    asked = replace(mark, state=MarkState.UNKNOWN, probes=0, error=settlement.error, why=None, then=then)
    waiting = settlement._replace(state=State.WAITING, delay=delay, explanation=explanation, result=None)
    if settlement.state is State.CANCELLED:
        waiting = waiting._replace(outcome="released")  # it is not cancelled yet
    return _with(waiting, asked)


def _not_happened(
    claim: Claim, mark: EffectMark, why: str, effect: Effect, elapsed: timedelta
) -> Settlement | EffectMark:
    then = mark.then or Then()
    found = _answered(mark, EffectAnswer.NOT_HAPPENED, "probe", why=safe_text(why) or None)
    failures = claim.task.failures
    if then.state is State.CANCELLED:
        return _with(Settlement(claim, "cancelled", then.state, failures, error=then.error, elapsed=elapsed), found)
    if then.state is State.DEAD:
        explanation = Explanation(then.error_class, then.rule, "", failures, failures, then.verdict)
        ended = Settlement(claim, "failed", then.state, failures, None, then.error, explanation, elapsed)
        return _with(ended, found)
    delay = then.delay or ZERO
    if effect.key_window is not None and claim.claimed_at + elapsed + delay >= mark.first_at + effect.key_window:
        return _needs_person(
            claim, mark,
            "the probe says that it did not happen, and the idempotency key's window of "
            f"{format_duration(effect.key_window)} ends before the next try", elapsed,
        )  # fmt: skip
    if not delay:
        return found
    said = f"the probe says that it did not happen{f': {found.why}' if found.why else ''}"
    # What is known needs no explanation: the retry was explained with the failure.
    return _with(_put_off(claim, said, "snoozed", delay, elapsed)._replace(explanation=None), found)


def _ask_again(
    claim: Claim, mark: EffectMark, effect: Effect, probes: int, outcome: str, error: str | None, elapsed: timedelta
) -> Settlement:
    if probes >= effect.policy.failures_max:
        why = mark.why or "its worker was lost"
        return _needs_person(claim, mark, f"the probe was asked {probes} times: {why}", elapsed, probes=probes)
    delay = effect.policy.delay(probes + 1, claim.task.key)
    asked = replace(mark, state=MarkState.UNKNOWN, probes=probes)
    return _with(_put_off(claim, error, outcome, delay, elapsed), asked)


def _put_off(claim: Claim, error: str | None, outcome: str, delay: timedelta, elapsed: timedelta) -> Settlement:
    """The task waits, and nothing is charged. A suspect stays one: its run was only put off, and its last error stays."""
    if claim.suspect and outcome == "snoozed":
        outcome, error = "released", None
    failures = claim.task.failures
    explanation = Explanation(ErrorClass.TRANSIENT, "effect", "", failures, failures, UNKNOWN, delay=delay)
    return Settlement(claim, outcome, State.WAITING, failures, delay, error, explanation, elapsed)


def _needs_person(
    claim: Claim, mark: EffectMark, why: str, elapsed: timedelta, *, probes: int | None = None
) -> Settlement:
    then, failures = mark.then or Then(), claim.task.failures
    asked = replace(mark, state=MarkState.PERSON, why=why, probes=mark.probes + 1 if probes is None else probes)
    explanation = Explanation(then.error_class, then.rule, "", failures, failures, UNKNOWN)
    error = f"nobody knows whether it happened: {why}"
    return _with(Settlement(claim, "failed", State.DEAD, failures, None, error, explanation, elapsed), asked)
