"""The one place that decides: budgets, delays, floors, deadlines, and the explanation of each."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Schedule
from redrive.core.decide import (
    LEASE_EXPIRED_ERROR,
    UNKNOWN,
    Explanation,
    Settlement,
    deadline_of,
    decide,
    explanation_texts,
    failures_max_of,
)
from redrive.core.durations import DURATION_MAX, days, hours, minutes, seconds
from redrive.core.failure import ErrorClass
from redrive.core.jitter import draw
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Outcome, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import Act, State, check_transition
from redrive.core.task import Abandoned, Claim, GateSeen, Task
from redrive.errors import BusinessError, DurationError, PermanentError, RateLimitedError, TransientError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ZERO = timedelta(0)
BOOM = Failed(RuntimeError("boom"))
CRASHES = [BOOM, LeaseExpired()]
JITTERS = [
    jitter.none, jitter.full, jitter.equal, jitter.decorrelated, jitter.percent(20), jitter.additive(seconds(30)),
]  # fmt: skip
SPANS = st.timedeltas(min_value=ZERO, max_value=DURATION_MAX)
KEYS = st.text(min_size=1, max_size=20)


FENCE = UUID("6c0b9c36-8d3c-4f6e-9f0e-0d5a4a0c7a11")


def claim_of(failures: int = 0, key: str = "order-1", **task: object) -> Claim:
    """A claim whose task runs alone, so that a crash of its worker is its own."""
    fields = {"created_at": NOW, **task}
    return Claim(
        task=Task(id=1, key=key, kind="k", payload=None, state=State.CLAIMED, failures=failures, **fields),
        claim_id=FENCE,
        claimed_at=NOW,
    ).alone()


def tries_until_dead(policy: Policy, outcome: Outcome, **task: object) -> list[Settlement]:
    """Claim and fail by hand until the task is dead."""
    settled = [decide(claim_of(**task), outcome, policy)]
    while settled[-1].state is State.WAITING:
        settled.append(decide(claim_of(settled[-1].failures, **task), outcome, policy))
    return settled


def test_done_ends_the_task():
    """A run without an error is done; its failures stay as they were, and nothing is due."""
    settled = decide(claim_of(failures=2), Done(), Policy(), elapsed=seconds(3))
    assert (settled.outcome, settled.state, settled.failures) == ("done", State.DONE, 2)
    assert (settled.delay, settled.error, settled.explanation, settled.error_class) == (None, None, None, None)
    assert settled.elapsed == seconds(3)


@pytest.mark.parametrize("outcome", [Done({"paid": 7}), Cancelled("no", result={"paid": 7}), BOOM], ids=repr)
def test_what_the_handler_left_travels_with_the_settlement(outcome):
    """What is written beside gets the result, or the error itself; a try that left nothing gives nothing."""
    left = outcome.error if isinstance(outcome, Failed) else outcome.result
    assert decide(claim_of(), outcome, Policy()).result is left
    assert decide(claim_of(), LeaseExpired(), Policy()).result is None


@given(SPANS, st.integers(min_value=0, max_value=100))
def test_snoozing_charges_nothing(delay, failures):
    """A snoozed task waits exactly as long as it asked and keeps its failures, however many there were."""
    settled = decide(claim_of(failures), Snoozed(delay, "not yet"), Policy(attempts=1))
    assert (settled.outcome, settled.state, settled.failures) == ("snoozed", State.WAITING, failures)
    assert (settled.delay, settled.error) == (delay, "not yet")


def test_a_release_is_due_at_once_and_charges_nothing():
    """A worker that stops gives its task back: waiting, no delay, no failure."""
    settled = decide(claim_of(failures=3), Released(), Policy(attempts=1))
    assert (settled.outcome, settled.state, settled.failures, settled.delay) == ("released", State.WAITING, 3, ZERO)
    assert settled.error is None


def test_cancelled_ends_without_a_failure():
    """A handler that cancels ends the task with its reason, charging nothing."""
    settled = decide(claim_of(failures=1), Cancelled("order withdrawn"), Policy())
    assert (settled.outcome, settled.state, settled.failures) == ("cancelled", State.CANCELLED, 1)
    assert (settled.delay, settled.error) == (None, "order withdrawn")
    assert decide(claim_of(), Cancelled(), Policy()).error is None


def test_reasons_are_redacted_and_bounded():
    """What a handler gives as a reason passes the same filter as errors."""
    assert "hunter2" not in Snoozed(seconds(1), "password=hunter2").reason
    assert "hunter2" not in Cancelled("password=hunter2").reason
    assert len(Cancelled("x" * 1_000_000).reason) == 2000


@pytest.mark.parametrize(
    "outcome", [Snoozed(seconds(1)), Released(), Cancelled(), BOOM, LeaseExpired()], ids=lambda it: type(it).__name__
)
@pytest.mark.parametrize("alone", [True, False])
def test_every_settlement_says_how_long_it_ran(outcome, alone):
    """However a run ended, its history has the time that it took."""
    claim = claim_of() if alone else claim_of()._replace(claim_id=FENCE)
    assert decide(claim, outcome, Policy(), elapsed=seconds(3)).elapsed == seconds(3)


def test_a_suspect_is_told_of_as_one():
    """Who was lost beside others reads why it runs again at once, under which policy, and what it still has."""
    settled = decide(claim_of(failures=2)._replace(claim_id=FENCE), LeaseExpired(), Policy(name="bank", attempts=9))
    assert settled.error == LEASE_EXPIRED_ERROR
    explained = settled.explanation
    assert explained is not None
    assert (explained.error_class, explained.policy, explained.failures) == (ErrorClass.WORKER_LOST, "bank", 2)
    assert (explained.failures_max, explained.delay) == (9, ZERO)
    assert explained.as_json()["wait_seconds"] == 0.0
    assert settled.claim.task.failures == 2


@pytest.mark.parametrize("policy", [Policy(jitter=jitter.none), Policy()], ids=["told to many", "told to one"])
def test_an_error_that_was_raised_leaves_its_stack(policy):
    """The explanation names where it was raised; an error that nobody has raised has no such place."""
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("boom")
    explained = decide(claim_of(), Failed(raised.value), policy).explanation
    assert explained is not None
    assert explained.stack is not None
    assert explained.stack.members in explained.json_text()
    assert json.loads(explained.json_text())["stack"] == explained.stack.id
    unraised = decide(claim_of(), BOOM, policy).explanation
    assert unraised is not None
    assert unraised.stack is None or unraised.stack.at is None


@pytest.mark.parametrize("policy", [Policy(jitter=jitter.none), Policy()], ids=["told to many", "told to one"])
@pytest.mark.parametrize(
    ("error", "file", "is_told"),
    [("PermanentError", "<library>", False), ("PermanentError", __file__, True), ("KeyError", "<library>", True)],
)
def test_what_is_said_on_purpose_outside_of_the_users_code_has_no_stack(policy, error, file, is_told):
    """There is no line to mend; any other error has one, and so has what the user's own code says on purpose."""
    with pytest.raises((PermanentError, KeyError)) as raised:
        exec(compile(f"raise {error}('no')", file, "exec"), {"PermanentError": PermanentError})
    outermost = raised.value.__traceback__
    error = raised.value.with_traceback(outermost.tb_next)  # without the line above, which is the user's
    explained = decide(claim_of(), Failed(error), policy).explanation
    assert (explained.stack is not None) == is_told


@pytest.mark.parametrize(
    ("delay", "sentence"), [(None, "a person must answer"), (seconds(5), "its probe is asked after 5s")]
)
def test_what_nobody_knows_is_said_to_be_unknown(delay, sentence):
    """And who is asked."""
    told = Explanation(ErrorClass.TRANSIENT, "effect", "bank", 1, 3, UNKNOWN, delay=delay)
    assert told.sentence() == f"nobody knows whether its effect happened: {sentence}"


def test_a_death_names_its_policy_and_the_wait_that_was_asked_for():
    """Nothing of the last failure is left out: the policy, and the floor that the other side has set."""
    asked = Failed(RateLimitedError("slow down", retry_after=seconds(40)))
    explained = decide(claim_of(failures=1), asked, Policy(name="bank", attempts=2)).explanation
    assert explained is not None
    assert (explained.policy, explained.floor) == ("bank", seconds(40))


@pytest.mark.parametrize("delay", ["soon", None, timedelta(seconds=-1), timedelta(days=367)])
def test_snoozing_needs_a_span(delay):
    """A snooze that is no span within bounds is refused where it is made."""
    with pytest.raises(DurationError, match=r"^delay must"):
        Snoozed(delay)


@pytest.mark.parametrize("outcome", CRASHES, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize(
    ("policy", "tries"),
    [
        (Policy(retries=3), 4),
        (Policy(attempts=5), 5),
        (Policy(retries=0), 1),
        (Policy(attempts=1), 1),
        (Policy(), 6),
    ],
)
def test_so_many_tries_and_no_more(policy, tries, outcome):
    """`retries=3` is four tries, `attempts=5` is five, and a lost worker spends the same budget as an exception."""
    settled = tries_until_dead(policy, outcome)
    assert len(settled) == tries
    assert [each.failures for each in settled] == list(range(1, tries + 1))
    assert settled[-1].state is State.DEAD
    assert settled[-1].delay is None


@given(st.integers(min_value=1, max_value=30), st.integers(min_value=1, max_value=30), st.sampled_from(CRASHES))
def test_the_tasks_own_budget_beats_the_policys(own, general, outcome):
    """A task with its own number of failures uses it, be it larger or smaller than the policy's."""
    settled = tries_until_dead(Policy(attempts=general), outcome, failures_max=own)
    assert len(settled) == settled[-1].failures == own
    assert settled[-1].explanation.failures_max == own
    assert failures_max_of(claim_of(failures_max=own), Policy(attempts=general)) == own
    assert failures_max_of(claim_of(), Policy(attempts=general)) == general


@given(st.integers(min_value=4, max_value=10**6))
def test_a_budget_that_was_lowered_meanwhile_is_spent(failures):
    """A task with more failures than are allowed now gets the try it was claimed for and then dies."""
    settled = decide(claim_of(failures), BOOM, Policy(attempts=4))
    assert (settled.state, settled.failures) == (State.DEAD, failures + 1)
    assert settled.explanation.verdict == "exhausted"
    assert settled.explanation.budget_left == 0


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Failed(PermanentError("gone")), "permanent"),
        (Failed(BusinessError("no credit")), "business"),
        (Failed(KeyError("id")), "permanent"),
    ],
)
def test_permanent_and_business_errors_die_at_once(outcome, verdict):
    """An error that will never work, or that the business refuses, is not tried again though budget is left."""
    settled = decide(claim_of(), outcome, Policy(retries=100, permanent=[KeyError]))
    assert (settled.outcome, settled.state, settled.failures, settled.delay) == ("failed", State.DEAD, 1, None)
    assert settled.explanation.verdict == settled.error_class.value == verdict
    assert settled.explanation.budget_left == 100


def test_the_last_failure_names_why_it_was_the_last():
    """Out of budget is `exhausted` for an error and `worker_lost` for a lease that ran out."""
    exhausted = decide(claim_of(failures=3), BOOM, Policy(retries=3))
    lost = decide(claim_of(failures=3), LeaseExpired(), Policy(retries=3))
    assert exhausted.explanation.verdict == "exhausted"
    assert (lost.explanation.verdict, lost.outcome, lost.error_class) == (
        "worker_lost", "lease_expired", ErrorClass.WORKER_LOST,
    )  # fmt: skip
    assert lost.error == "the worker was lost: its lease ran out before it settled"


@given(st.integers(min_value=0, max_value=40), st.integers(min_value=2, max_value=40))
def test_a_worker_lost_beside_others_charges_nothing(failures, attempts):
    """Any task that ran there may have killed it: due at once, as many failures as before, and alone next time."""
    claim = claim_of(failures)._replace(claim_id=FENCE)
    settled = decide(claim, LeaseExpired(), Policy(attempts=attempts))
    assert (settled.outcome, settled.state, settled.failures) == ("lease_expired", State.WAITING, failures)
    assert (settled.delay, settled.error_class) == (ZERO, ErrorClass.WORKER_LOST)
    assert settled.explanation.verdict == "suspect"
    assert settled.explanation.sentence() == (
        "worker_lost by rule lease; others ran beside it: not charged, run alone next time"
    )


@pytest.mark.parametrize("own", [True, False])
def test_one_try_is_no_free_run(own):
    """A task that may be tried once is dead when its worker is lost, whatever ran beside it."""
    claim = claim_of(failures_max=1 if own else None)._replace(claim_id=FENCE)
    settled = decide(claim, LeaseExpired(), Policy(attempts=9 if own else 1))
    assert (settled.state, settled.failures, settled.explanation.verdict) == (State.DEAD, 1, "worker_lost")
    assert "lost_alone" not in settled.explanation.as_json()


def test_the_death_of_a_culprit_carries_its_evidence():
    """How many workers it took with it while it ran alone stands in its explanation."""
    lost = Abandoned(claim_id=None, claimed_at=None, lost_alone=2)
    settled = decide(claim_of(failures=2)._replace(abandoned=lost), LeaseExpired(), Policy(attempts=3))
    assert (settled.state, settled.explanation.as_json()["lost_alone"]) == (State.DEAD, 3)
    assert settled.explanation.sentence() == (
        "worker_lost by rule lease; failure 3 of 3; 3 workers lost while it ran alone: dead (worker_lost)"
    )
    first = decide(claim_of(), LeaseExpired(), Policy(attempts=3)).explanation
    assert "; 1 worker lost while it ran alone: again after" in first.sentence()


@given(st.sampled_from(JITTERS), st.integers(min_value=0, max_value=40), KEYS, st.sampled_from(CRASHES))
def test_a_retry_waits_what_the_policy_says(spread, failures, key, outcome):
    """The delay of a retry is the policy's delay for the raised count and the task's key."""
    policy = Policy(Exponential(seconds(2), minutes(5)), jitter=spread, attempts=100, name="p")
    settled = decide(claim_of(failures, key), outcome, policy)
    assert (settled.state, settled.failures) == (State.WAITING, failures + 1)
    assert settled.delay == policy.delay(failures + 1, key)
    assert settled.explanation.wait == policy.backoff.wait(failures + 1)
    assert settled.explanation.draw == (None if spread is jitter.none else draw(key, failures + 1, "p"))


@given(st.sampled_from(JITTERS), SPANS, SPANS, SPANS, KEYS)
def test_retry_after_is_a_bounded_floor(spread, asked, bound, wait, key):
    """A delay is never below the Retry-After within its bound, and is the policy's own wherever that is longer."""
    policy = Policy(Fixed(wait), jitter=spread, retry_after_max=bound)
    settled = decide(claim_of(key=key), Failed(RateLimitedError("slow down", retry_after=asked)), policy)
    floor = min(asked, bound)
    assert settled.delay == max(policy.delay(1, key), floor)
    assert settled.delay >= floor
    assert settled.explanation.floor == floor


@pytest.mark.parametrize("asked", [timedelta.max, timedelta(days=10_000), DURATION_MAX], ids=str)
def test_a_stranger_cannot_park_a_task_for_years(asked):
    """However long a Retry-After is, the wait ends at `retry_after_max`."""
    settled = decide(claim_of(), Failed(TransientError("busy", retry_after=asked)), Policy(retry_after_max=hours(2)))
    assert settled.delay == hours(2)


def test_retry_after_does_not_prolong_the_budget():
    """On the last failure a Retry-After changes nothing: the task is dead."""
    settled = decide(claim_of(failures=3), Failed(RateLimitedError("x", retry_after=hours(1))), Policy(retries=3))
    assert (settled.state, settled.delay) == (State.DEAD, None)


@given(
    st.sampled_from(JITTERS), SPANS, SPANS, SPANS, st.one_of(st.none(), SPANS), st.sampled_from(CRASHES), st.booleans()
)
def test_no_retry_is_scheduled_at_or_after_the_deadline(spread, wait, left, elapsed, asked, outcome, own):
    """A retry that would start at the deadline or later is not scheduled: the task is dead by `deadline`."""
    if asked is not None:
        outcome = Failed(RateLimitedError("slow down", retry_after=asked))
    deadline_at = NOW + left
    policy = Policy(Fixed(wait), jitter=spread, deadline=None if own else left)
    claim = claim_of(deadline_at=deadline_at if own else None)
    free = decide(claim_of(), outcome, replace(policy, deadline=None), elapsed=elapsed)
    settled = decide(claim, outcome, policy, elapsed=elapsed)
    if NOW + elapsed + free.delay < deadline_at:
        assert (settled.state, settled.delay) == (State.WAITING, free.delay)
    else:
        assert (settled.state, settled.delay, settled.explanation.verdict) == (State.DEAD, None, "deadline")
    assert settled.failures == 1


def test_the_deadline_itself_is_already_too_late():
    """One microsecond before the deadline a retry is allowed, on the deadline it is not."""
    policy = Policy(Fixed(minutes(1)), jitter=jitter.none)
    tick = timedelta(microseconds=1)
    assert decide(claim_of(deadline_at=NOW + minutes(1) + tick), BOOM, policy).state is State.WAITING
    assert decide(claim_of(deadline_at=NOW + minutes(1)), BOOM, policy).state is State.DEAD
    assert decide(claim_of(deadline_at=NOW + minutes(1) + tick), BOOM, policy, elapsed=tick).state is State.DEAD


def test_the_earlier_deadline_counts():
    """Of the task's own deadline and the policy's after its creation the earlier one holds."""
    policy = Policy(deadline=hours(1))
    assert deadline_of(claim_of(), Policy()) is None
    assert deadline_of(claim_of(), policy) == NOW + hours(1)
    assert deadline_of(claim_of(deadline_at=NOW + minutes(5)), policy) == NOW + minutes(5)
    assert deadline_of(claim_of(deadline_at=NOW + days(1)), policy) == NOW + hours(1)
    assert deadline_of(claim_of(created_at=None), policy) is None
    assert deadline_of(claim_of(created_at=NOW - hours(2)), policy) == NOW - hours(1)


@pytest.mark.parametrize(
    "outcome",
    [Done(), BOOM, Snoozed(seconds(1)), Cancelled(), Released(), LeaseExpired()],
    ids=lambda o: type(o).__name__,
)
@pytest.mark.parametrize("failures", [0, 3])
def test_every_settlement_is_a_legal_transition(outcome, failures):
    """What is decided is always a change that the state machine lists, with a delay exactly where a task waits."""
    claim = claim_of(failures)
    settled = decide(claim, outcome, Policy(retries=3))
    check_transition(Act.SETTLE, State.CLAIMED, settled.state)
    assert (settled.delay is not None) == (settled.state is State.WAITING)
    assert settled.claim is claim
    assert settled == decide(claim, outcome, Policy(retries=3))


def test_a_retry_is_explained_in_numbers():
    """The explanation of a retry carries class, rule, backoff, draw, floor, cap, delay and what is left."""
    policy = Policy(
        Exponential(seconds(2), minutes(5)),
        retries=3,
        jitter=jitter.additive(seconds(30)),
        rate_limited=[TimeoutError],
        name="orders",
    )
    error = TimeoutError("no answer")
    error.retry_after = 3
    settled = decide(claim_of(failures=1), Failed(error), policy)
    drawn = draw("order-1", 2, "orders")
    delay = seconds(4) + seconds(30) * drawn
    assert settled.error == "TimeoutError: no answer"
    assert settled.explanation.as_json() == {
        "error_class": "rate_limited",
        "rule": "TimeoutError",
        "policy": "orders",
        "failures": 2,
        "failures_max": 4,
        "budget_left": 2,
        "verdict": "retry",
        "backoff": "exponential 2s \N{MULTIPLICATION SIGN}2, cap 5m",
        "wait_seconds": 4.0,
        "jitter": "additive 30s",
        "cap_seconds": 300.0,
        "delay_seconds": delay.total_seconds(),
        "draw": round(drawn, 6),
        "floor_seconds": 3.0,
    }
    sentence = settled.explanation.sentence()
    assert sentence.startswith("rate_limited by rule TimeoutError; failure 2 of 4: again after ")
    assert f"exponential 2s \N{MULTIPLICATION SIGN}2, cap 5m gives 4s, jitter additive 30s drew {drawn:.3f}" in sentence
    assert "Retry-After asks for 3s" in sentence


def behind(failures: int = 0, **seen: object) -> Claim:
    """A claim behind a gate."""
    return claim_of(failures, gate="bank:DE")._replace(seen=GateSeen(FENCE, **seen))


@pytest.mark.parametrize("error", [TransientError("down"), RateLimitedError("slow down")], ids=repr)
def test_a_failed_probe_charges_nothing(error):
    """That the destination is down was known before: the probe's task waits again, as many tries left as before, and it is said why."""
    settled = decide(
        behind(failures=3, probe=True, trips=1), Failed(error), Policy(Fixed(5), retries=3, jitter=jitter.none)
    )
    assert (settled.state, settled.failures, settled.delay) == (State.WAITING, 3, seconds(10))
    assert settled.explanation.verdict == "probe"
    assert "; it was the probe of gate bank:DE: not charged: again after 10s" in settled.explanation.sentence()
    assert settled.explanation.as_json()["gate"] == "bank:DE"


def test_an_answer_of_a_probe_is_one():
    """A probe whose task is refused for good has found the destination well: the task dies of it as any other."""
    settled = decide(behind(probe=True, trips=1), Failed(PermanentError("no such account")), Policy())
    assert (settled.state, settled.failures) == (State.DEAD, 1)


def test_a_pause_that_the_gate_makes_charges_nothing():
    """Retry-After shuts the whole gate, so the task that heard of it is not charged: up to a hundred such answers in a row."""
    error = RateLimitedError("slow down", retry_after=90)
    settled = decide(behind(failures=2, refused=99), Failed(error), Policy(Fixed(5), retries=3, jitter=jitter.none))
    assert (settled.state, settled.failures, settled.delay) == (State.WAITING, 2, seconds(90))
    assert settled.explanation.verdict == "refused"
    assert "Retry-After shuts gate bank:DE: not charged: again after 1m 30s" in settled.explanation.sentence()
    for claim, asking in (
        (behind(failures=2, refused=100), error),
        (behind(failures=2), RateLimitedError("slow down")),
        (claim_of(2), error),
    ):
        assert decide(claim, Failed(asking), Policy(retries=3)).failures == 3


def test_the_patience_of_a_gate_ends_with_the_deadline():
    """What would wait past its deadline is dead, though nothing is charged."""
    error = RateLimitedError("slow down", retry_after=90)
    claim = behind(failures=2)
    claim = claim._replace(task=claim.task._replace(deadline_at=NOW + seconds(60)))
    settled = decide(claim, Failed(error), Policy(retries=3))
    assert (settled.state, settled.failures, settled.explanation.verdict) == (State.DEAD, 2, "deadline")


@pytest.mark.parametrize(("trips", "stretch"), [(0, 1), (1, 2), (2, 4), (3, 8), (9, 8)])
def test_waits_stretch_when_the_breaker_has_tripped(trips, stretch):
    """Twice as long for each time, at most eight times, and the explanation names the gate."""
    explained = decide(behind(trips=trips), BOOM, Policy(Fixed(5), retries=3, jitter=jitter.none)).explanation
    assert (explained.delay, explained.wait, explained.failures) == (seconds(5) * stretch, seconds(5), 1)
    assert (f"times {stretch} since gate bank:DE has tripped" in explained.sentence()) == (trips > 0)
    assert ("tripped" in explained.sentence()) == (trips > 0)
    assert explained.as_json().get("stretch", 1) == stretch


def test_a_death_is_explained_without_a_delay():
    """The explanation of a death names the verdict and no wait that will never happen."""
    settled = decide(claim_of(failures=3), BOOM, Policy(retries=3))
    assert settled.explanation.sentence() == "transient by default; failure 4 of 4: dead (exhausted)"
    assert set(settled.explanation.as_json()) == {
        "error_class", "rule", "policy", "failures", "failures_max", "budget_left", "verdict",
    }  # fmt: skip


@given(st.sampled_from(JITTERS), SPANS, st.integers(min_value=0, max_value=10), st.sampled_from(CRASHES))
def test_every_explanation_is_json(spread, wait, failures, outcome):
    """Whatever was decided, its explanation can be stored as JSON, numbers finite and words plain."""
    settled = decide(claim_of(failures), outcome, Policy(Fixed(wait), jitter=spread))
    shown = settled.explanation.as_json()
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    if settled.delay is not None:
        assert shown["delay_seconds"] == settled.delay.total_seconds()
        assert shown["wait_seconds"] == wait.total_seconds()


def test_no_wait_at_all_is_still_a_wait():
    """A backoff of zero retries at once: waiting with a delay of zero, not dead."""
    settled = decide(claim_of(), BOOM, Policy(Schedule([ZERO]), jitter=jitter.none))
    assert (settled.state, settled.delay) == (State.WAITING, ZERO)
    assert settled.explanation.as_json()["delay_seconds"] == 0.0
    assert "again after 0s" in settled.explanation.sentence()


def test_errors_are_redacted_before_they_are_settled():
    """No secret of an exception reaches the settlement."""
    settled = decide(claim_of(), Failed(RuntimeError("connect postgresql://app:hunter2@db/app")), Policy())
    assert settled.error == "RuntimeError: connect postgresql://app:[redacted]@db/app"


class HostileError(Exception):
    """An exception on which every attribute and even its text raises."""

    def __getattribute__(self, name):
        if name in {"retry_after", "response", "headers", "status", "status_code", "code"}:
            raise RuntimeError(name)
        return super().__getattribute__(name)

    def __str__(self):
        raise RuntimeError("no text")


def test_no_exception_breaks_the_decision():
    """Whatever a foreign exception does when it is looked at, its failure is settled like any other."""
    settled = decide(claim_of(), Failed(HostileError()), Policy(permanent=[404], transient=[lambda error: error.code]))
    assert (settled.state, settled.failures) == (State.WAITING, 1)
    assert settled.error == "HostileError: (its text cannot be read)"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), BaseException("bare")])
def test_exceptions_beside_exception_are_failures_too(error):
    """What does not derive from `Exception` is charged like the rest."""
    settled = decide(claim_of(), Failed(error), Policy())
    assert (settled.state, settled.failures) == (State.WAITING, 1)
    assert settled.error.startswith(type(error).__name__)


@pytest.mark.parametrize("outcome", [Failed(ValueError("odd")), LeaseExpired()], ids=["failed", "worker lost"])
def test_a_task_may_bring_its_own_backoff(outcome: Outcome):
    """It waits as the task says, and is explained so; tasks that bring none wait as the policy says. The budget is the policy's."""
    own = {"order-1": Fixed(seconds(7))}
    policy = Policy(Fixed(seconds(5)), retries=1, jitter=jitter.none, own_backoff=lambda task: own.get(task.key))
    for key, wait in (("order-1", 7), ("order-2", 5)):
        settled = decide(claim_of(key=key), outcome, policy)
        assert settled.delay == seconds(wait)
        assert settled.explanation is not None and settled.explanation.wait == seconds(wait)
        assert decide(claim_of(1, key=key), outcome, policy).state is State.DEAD


@given(st.data())
def test_what_is_told_to_many_is_what_each_would_be_told(data):
    """A policy that draws nothing decides alike for all that fail alike, and for nobody by another's numbers."""
    words = {"retries": data.draw(st.integers(0, 3)), "jitter": jitter.none, "permanent": KeyError}
    policy = Policy(Exponential(seconds(1), cap=hours(1)), **words)
    for _ in range(data.draw(st.integers(2, 8))):
        claim = claim_of(
            data.draw(st.integers(0, 3)),
            data.draw(KEYS),
            failures_max=data.draw(st.none() | st.integers(1, 4)),
            deadline_at=data.draw(st.none() | st.just(NOW + seconds(3))),
        )
        outcome = data.draw(
            st.sampled_from([BOOM, Failed(KeyError("id")), Failed(RateLimitedError("busy", retry_after=seconds(9)))])
        )
        alone = Policy(Exponential(seconds(1), cap=hours(1)), **words)
        assert decide(claim, outcome, policy) == decide(claim, outcome, alone)


def test_explanations_that_are_the_same_are_made_and_written_once():
    """So a thousand tasks that fail alike cost one explanation; with a draw each has its own."""
    once = [decide(claim_of(key=key), BOOM, Policy(jitter=jitter.none)) for key in ("a", "b")]
    policy = Policy(jitter=jitter.none)
    one, other = (decide(claim_of(key=key), BOOM, policy) for key in ("a", "b"))
    assert one.explanation is other.explanation
    assert explanation_texts([one, other]) == [each.explanation.json_text() for each in once]
    drawn = [decide(claim_of(key=key), BOOM, Policy(jitter=jitter.full)) for key in ("a", "b")]
    assert explanation_texts([*drawn, decide(claim_of(), Done(), policy)]) == [
        *(each.explanation.json_text() for each in drawn), None,
    ]  # fmt: skip
    assert len(set(explanation_texts(drawn))) == 2


def test_many_are_told_by_their_rule_and_the_wait_that_they_ask_for():
    """What a policy tells to many names the rule; who is asked for patience is told of that patience, and not of another's."""
    policy = Policy(jitter=jitter.none, permanent=KeyError)
    told = [decide(claim_of(), Failed(error), policy).explanation for error in (KeyError("id"), OSError())]
    assert [one.rule for one in told] == ["KeyError", "otherwise"]
    asked = [decide(claim_of(), Failed(RateLimitedError("x", retry_after=wait)), policy) for wait in (40, 50)]
    assert [one.explanation.floor for one in asked] == [seconds(40), seconds(50)]


def test_one_that_has_nothing_to_explain_hides_no_other():
    """The text of each stands where it stands, and what is the same is the same text."""
    policy = Policy(jitter=jitter.none)
    settled = [decide(claim_of(), outcome, policy) for outcome in (Done(), BOOM, Done(), BOOM)]
    first, one, second, other = explanation_texts(settled)
    assert (first, second) == (None, None)
    assert one is other is not None


def test_what_is_kept_of_a_policy_has_a_bound(monkeypatch):
    """Errors of ever new kinds do not make a policy grow without end."""
    monkeypatch.setattr("redrive.core.decide.TOLD_MAX", 3)
    policy = Policy(jitter=jitter.none, retries=99)
    for failures in range(20):
        assert decide(claim_of(failures), BOOM, policy).failures == failures + 1
    assert len(policy.told) <= 3


def test_a_gate_without_a_say_is_not_in_the_explanation() -> None:
    """Only where a gate spared the task or made its wait longer: else its name would be in the row of every failure."""
    for trips, expected in ((0, (None, 1)), (1, ("bank:DE", 2))):
        claim = claim_of(gate="bank:DE")._replace(seen=GateSeen(FENCE, trips=trips))
        explanation = decide(claim, Failed(TimeoutError("late")), Policy(attempts=9)).explanation
        assert explanation is not None
        assert (explanation.gate, explanation.stretch) == expected


def test_what_is_told_to_many_says_where_it_failed() -> None:
    """A policy that draws nothing explains alike failures once: with their stack, and without a lost worker."""
    policy = Policy(Fixed(seconds(1)), attempts=9, jitter=jitter.none)
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        told = [decide(claim_of(), Failed(error), policy).explanation for _ in range(2)]
    assert told[0] is told[1]
    assert told[0] is not None
    assert told[0].stack is not None
    assert told[0].lost_alone == 0
