"""What follows from a try that entered its effect: one table for its end, one for the probe's answer."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive.core.backoff import Fixed, Schedule
from redrive.core.decide import Explanation, Settlement, decide
from redrive.core.durations import ZERO, hours, minutes, seconds
from redrive.core.effect import CannotTell, Effect, Happened, after_loss, after_probe, after_try, effect_key
from redrive.core.effect_mark import EffectAnswer, EffectMark, MarkState, Then, read_then
from redrive.core.failure import ErrorClass
from redrive.core.jitter import full, none
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Outcome, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Claim, Task
from redrive.errors import BusinessError, HandlerError, NotHappened, PermanentError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PAY = Policy(Fixed(minutes(1)), attempts=3, jitter=none)
EFFECT = Effect(print, key_window=hours(24), policy=Policy(Fixed(seconds(5)), attempts=3, jitter=none))
TASK = Task(7, "a", "pay", None, State.CLAIMED, 0)


def claim(*, failures: int = 0, suspect: bool = False) -> Claim:
    """A claim of the task after so many failures."""
    return Claim(TASK._replace(failures=failures), uuid4(), NOW, suspect=suspect)


def marked(state: MarkState = MarkState.INSIDE, *, then: Then | None = None, probes: int = 0) -> EffectMark:
    """A mark that was made an hour ago."""
    at = NOW - hours(1)
    return EffectMark(state=state, claim_id=uuid4(), first_at=at, entered_at=at, then=then, probes=probes)


def after(outcome: Outcome, *, failures: int = 0, definite: bool = False) -> Settlement:
    """The settlement of a try that came to this."""
    return after_try(decide(claim(failures=failures), outcome, PAY), marked(), EFFECT, definite=definite)


def probed(outcome: Any, mark: EffectMark, *, suspect: bool = False) -> Settlement:
    """The settlement after the probe came to this."""
    settlement = after_probe(claim(failures=1, suspect=suspect), mark, outcome, EFFECT, ZERO)
    assert isinstance(settlement, Settlement)
    return settlement


def mark_in(settlement: Settlement) -> EffectMark:
    """The mark that is written with it."""
    assert settlement.claim.effect is not None
    return settlement.claim.effect


@pytest.mark.parametrize(
    ("outcome", "failures", "then"),
    [
        (Failed(TimeoutError("late")), 0, (State.WAITING, minutes(1), "retry")),
        (Failed(TimeoutError("late")), 2, (State.DEAD, None, "exhausted")),
        (Failed(PermanentError("after it")), 0, (State.DEAD, None, "permanent")),
        (Released(), 0, (State.WAITING, ZERO, "retry")),
        (Snoozed(minutes(3)), 0, (State.WAITING, minutes(3), "retry")),
        (Cancelled("by ada"), 0, (State.CANCELLED, None, "retry")),
        (LeaseExpired(), 0, (State.WAITING, ZERO, "suspect")),
    ],
)
def test_an_end_without_an_answer_waits_for_the_probe(outcome: Outcome, failures: int, then: tuple[Any, ...]) -> None:
    """Whatever it would have come to is kept for later, and nothing ends before the probe is asked."""
    settlement = after(outcome, failures=failures)
    assert (settlement.state, settlement.delay) == (State.WAITING, seconds(5))
    assert settlement.explanation is not None
    assert settlement.explanation.verdict == "unknown"
    mark = mark_in(settlement)
    assert mark.state is MarkState.UNKNOWN
    assert mark.then is not None
    assert (mark.then.state, mark.then.delay, mark.then.verdict) == then
    assert read_then(mark.then.as_json()) == mark.then


@pytest.mark.parametrize(
    ("outcome", "definite", "state", "answer"),
    [
        (Done(1), False, State.DONE, EffectAnswer.HAPPENED),
        (Failed(NotHappened("no")), True, State.WAITING, EffectAnswer.NOT_HAPPENED),
        (Failed(PermanentError("no")), True, State.DEAD, EffectAnswer.NOT_HAPPENED),
        (Cancelled("no"), True, State.CANCELLED, EffectAnswer.NOT_HAPPENED),
    ],
)
def test_an_end_that_is_an_answer_is_an_ordinary_end(
    outcome: Outcome, definite: bool, state: State, answer: EffectAnswer
) -> None:
    """The settlement stays as it was decided, and the mark is closed with it."""
    settlement = after(outcome, definite=definite)
    assert settlement._replace(claim=claim()).state is state
    assert (mark_in(settlement).state, mark_in(settlement).answer) == (MarkState.ANSWERED, answer)


RETRY = Then(delay=minutes(1), outcome="failed", error="late")
LONG = RETRY._replace(delay=hours(23))


@pytest.mark.parametrize(
    ("outcome", "then", "came_to"),
    [
        (Done(Happened("proof")), RETRY, ("done", State.DONE, None, MarkState.ANSWERED)),
        (Done(NotHappened("no")), RETRY, ("snoozed", State.WAITING, minutes(1), MarkState.ANSWERED)),
        (Done(NotHappened), RETRY, ("snoozed", State.WAITING, minutes(1), MarkState.ANSWERED)),
        (Failed(NotHappened("no")), RETRY, ("snoozed", State.WAITING, minutes(1), MarkState.ANSWERED)),
        (Done(NotHappened()), Then(State.DEAD, verdict="exhausted"), ("failed", State.DEAD, None, MarkState.ANSWERED)),
        (Done(NotHappened()), Then(State.CANCELLED), ("cancelled", State.CANCELLED, None, MarkState.ANSWERED)),
        (Done(NotHappened()), LONG, ("failed", State.DEAD, None, MarkState.PERSON)),
        (Done(CannotTell("dark")), RETRY, ("failed", State.DEAD, None, MarkState.PERSON)),
        (Done(None), RETRY, ("failed", State.DEAD, None, MarkState.PERSON)),
        (Failed(ConnectionError()), RETRY, ("snoozed", State.WAITING, seconds(5), MarkState.UNKNOWN)),
        (Released(), RETRY, ("released", State.WAITING, seconds(5), MarkState.UNKNOWN)),
        (Cancelled("by ada"), RETRY, ("released", State.WAITING, seconds(5), MarkState.UNKNOWN)),
        (Snoozed(minutes(1)), RETRY, ("snoozed", State.WAITING, seconds(5), MarkState.UNKNOWN)),
        (Failed(PermanentError()), RETRY, ("failed", State.DEAD, None, MarkState.PERSON)),
    ],
)
def test_the_answer_of_the_probe_says_what_is_written(outcome: Outcome, then: Then, came_to: tuple[Any, ...]) -> None:
    """Happened is done; not happened is what the try came to, within the window of the key; the rest is for a person, in the end."""
    settlement = probed(outcome, marked(MarkState.UNKNOWN, then=then))
    assert (settlement.outcome, settlement.state, settlement.delay, mark_in(settlement).state) == came_to
    assert settlement.failures == 1


def test_a_probe_that_keeps_failing_is_given_up() -> None:
    """As often as its policy says, each counted, and none charged to the task."""
    mark = marked(MarkState.UNKNOWN)
    for number in (1, 2):
        mark = mark_in(probed(Failed(ConnectionError("down")), mark))
        assert (mark.state, mark.probes) == (MarkState.UNKNOWN, number)
    last = probed(Failed(ConnectionError("down")), mark)
    assert (last.state, mark_in(last).state) == (State.DEAD, MarkState.PERSON)
    assert (
        last.error
        == "nobody knows whether it happened: the probe was asked 3 times: the probe failed: ConnectionError: down"
    )


def test_a_try_that_was_put_off_without_charge_follows_at_once() -> None:
    """Released or lost beside others, and not happened: the try begins under the same claim, so a suspect runs alone."""
    found = after_probe(claim(), marked(MarkState.UNKNOWN, then=Then()), Done(NotHappened()), EFFECT, ZERO)
    assert isinstance(found, EffectMark)
    assert found.answer is EffectAnswer.NOT_HAPPENED


def test_what_is_cancelled_while_its_probe_is_asked_is_cancelled_once_it_is_known() -> None:
    """Not before: it may have happened. If it did not, it ends as cancelled instead of being retried."""
    asked = mark_in(probed(Cancelled("by ada"), marked(MarkState.UNKNOWN, then=RETRY)))
    ended = probed(Done(NotHappened()), asked)
    assert (ended.state, ended.error) == (State.CANCELLED, "by ada")
    assert probed(Done(Happened()), asked).state is State.DONE


def test_a_suspect_stays_one_while_its_probe_is_asked() -> None:
    """Its run was only put off: a release ends nothing, and the last error stays that of the lost worker."""
    settlement = probed(Failed(ConnectionError()), marked(MarkState.UNKNOWN), suspect=True)
    assert (settlement.outcome, settlement.error) == ("released", None)


@pytest.mark.parametrize("state", [MarkState.UNKNOWN, MarkState.ANSWERED])
def test_a_claim_that_is_lost_outside_its_effect(state: MarkState) -> None:
    """While the probe was asked: asked again, and not charged to the task. Without a question: as any lost claim."""
    lost = decide(claim().alone(), LeaseExpired(), PAY)
    settlement = after_loss(lost, marked(state), EFFECT)
    if state is MarkState.ANSWERED:
        assert settlement is lost
    else:
        assert (settlement.outcome, settlement.failures, mark_in(settlement).probes) == ("lease_expired", 0, 1)


def test_the_key_is_the_same_for_every_try_and_for_no_other_task() -> None:
    """It depends on the ledger, the id and the key alone."""
    key = effect_key("redrive_task", TASK)
    assert key == effect_key("redrive_task", TASK._replace(failures=3, redrives=1))
    others = [
        effect_key("mail", TASK),
        *(effect_key("redrive_task", TASK._replace(**one)) for one in ({"id": 8}, {"key": "b"})),
    ]
    assert len({key, *others}) == 4


def test_what_is_not_known_is_said_in_a_sentence() -> None:
    """For the history of the task."""
    said = Explanation(ErrorClass.TRANSIENT, "otherwise", "", 1, 3, "unknown", delay=timedelta(seconds=5))
    assert said.sentence() == "nobody knows whether its effect happened: its probe is asked after 5s"
    assert said._replace(delay=None).sentence().endswith("a person must answer")


WHOLE = EffectMark(
    state=MarkState.UNKNOWN, claim_id=UUID(int=5), first_at=NOW - hours(2), entered_at=NOW - hours(1), probes=1,
    error="late", why="before", then=Then(State.WAITING, "failed", minutes(1), "late", ErrorClass.TRANSIENT, "rule", "retry"),
)  # fmt: skip
"""A mark in which nothing is as a new one has it, so that whatever is forgotten or reset is seen."""
RAN = seconds(3)


def put_off(outcome: str, delay: timedelta, error: str | None, **mark: Any) -> tuple[Any, ...]:
    explained = Explanation(ErrorClass.TRANSIENT, "effect", "", 1, 1, "unknown", delay=delay)
    return outcome, State.WAITING, delay, error, explained, None, mark


def asked(why: str, **mark: Any) -> tuple[Any, ...]:
    error = f"nobody knows whether it happened: {why}"
    explained = Explanation(ErrorClass.TRANSIENT, "rule", "", 1, 1, "unknown")
    return (
        "failed",
        State.DEAD,
        None,
        error,
        explained,
        None,
        {"state": MarkState.PERSON, "why": why, "probes": 2} | mark,
    )


CLOSED = {"state": MarkState.ANSWERED, "answered_by": "probe", "then": None}
NO = CLOSED | {"answer": EffectAnswer.NOT_HAPPENED}


@pytest.mark.parametrize(
    ("outcome", "then", "came_to"),
    [
        (
            Done(Happened({"id": 7})),
            {},
            ("done", State.DONE, None, None, None, {"id": 7}, CLOSED | {"answer": EffectAnswer.HAPPENED, "why": None}),
        ),
        (
            Done(NotHappened("no such payment")),
            {},
            (
                "snoozed", State.WAITING, minutes(1), "the probe says that it did not happen: no such payment", None, None,
                NO | {"why": "no such payment"},
            ),
        ),
        (
            Done(NotHappened),
            {},
            ("snoozed", State.WAITING, minutes(1), "the probe says that it did not happen", None, None, NO | {"why": None}),
        ),
        (
            Done(NotHappened()),
            {"state": State.CANCELLED},
            ("cancelled", State.CANCELLED, None, "late", None, None, NO | {"why": None}),
        ),
        (
            Done(NotHappened()),
            {"state": State.DEAD, "verdict": "exhausted"},
            (
                "failed", State.DEAD, None, "late", Explanation(ErrorClass.TRANSIENT, "rule", "", 1, 1, "exhausted"), None,
                NO | {"why": None},
            ),
        ),
        (
            Done(NotHappened()),
            {"delay": hours(22) - RAN},
            asked(
                "the probe says that it did not happen, and the idempotency key's window of 1d ends before the next try"
            ),
        ),
        (Done(CannotTell("dark")), {}, asked("the probe cannot tell: dark")),
        (Done(CannotTell()), {}, asked("the probe cannot tell")),
        (Done(CannotTell), {}, asked("the probe cannot tell")),
        (Done("?"), {}, asked("the probe returned '?': let it return Happened, NotHappened or CannotTell")),
        (
            Done("x" * 300),
            {},
            asked(f"the probe returned '{'x' * 199}: let it return Happened, NotHappened or CannotTell"),
        ),
        (Failed(PermanentError("gone")), {}, asked("the probe failed: PermanentError: gone")),
        (Failed(BusinessError("no")), {}, asked("the probe failed: BusinessError: no")),
        (Released(), {}, put_off("released", seconds(5), None)),
        (LeaseExpired(), {}, put_off("released", seconds(5), None)),
        (
            Snoozed(minutes(1)),
            {},
            put_off(
                "snoozed", seconds(5), "the probe returned Snoozed, which is not an answer",
                why="the probe returned Snoozed, which is not an answer", probes=2,
            ),
        ),
        (
            Failed(OSError("down")),
            {},
            put_off(
                "snoozed", seconds(5), "the probe failed: OSError: down", why="the probe failed: OSError: down", probes=2
            ),
        ),
        (
            Cancelled("by ada"),
            {},
            put_off(
                "released", seconds(5), None, why="by ada", probes=2, then=Then(State.CANCELLED, "cancelled", None, "by ada")
            ),
        ),
        (
            Cancelled(),
            {},
            put_off("released", seconds(5), None, why=None, probes=2, then=Then(State.CANCELLED, "cancelled", None, None)),
        ),
    ],
)  # fmt: skip
def test_all_that_is_written_after_a_probe(outcome: Outcome, then: dict[str, Any], came_to: tuple[Any, ...]) -> None:
    """The whole settlement and the whole mark, for each answer."""
    assert WHOLE.then is not None
    mark = replace(WHOLE, then=WHOLE.then._replace(**then))
    held = claim(failures=1)
    settlement = after_probe(held, mark, outcome, EFFECT, RAN)
    assert isinstance(settlement, Settlement)
    result, state, delay, error, explanation, left, changes = came_to
    written = Settlement(held, result, state, 1, delay, error, explanation, RAN, left)
    assert settlement == written._replace(claim=held._replace(effect=replace(mark, **changes)))


def test_all_that_is_written_of_a_try_that_nobody_knows_the_end_of() -> None:
    """What it came to is kept in the mark; the task waits for the probe, and a cancelled one is not cancelled yet."""
    held = claim(failures=1)
    for outcome, result in ((Failed(OSError("late")), "failed"), (Cancelled("by ada"), "released")):
        decided = decide(held, outcome, PAY, elapsed=RAN)
        said = decided.explanation
        then = Then(decided.state, decided.outcome, decided.delay, decided.error)
        if said is not None:
            then = then._replace(error_class=ErrorClass.TRANSIENT, rule="otherwise", verdict="retry")
        written = after_try(decided, WHOLE, EFFECT, definite=False)
        mark = replace(WHOLE, state=MarkState.UNKNOWN, probes=0, error=decided.error, why=None, then=then)
        explained = Explanation(
            ErrorClass.TRANSIENT, then.rule, "" if said is None else "default", decided.failures,
            decided.failures if said is None else 3, "unknown", delay=seconds(5),
            stack=None if said is None else said.stack,
        )  # fmt: skip
        assert written == Settlement(
            held._replace(effect=mark),
            result,
            State.WAITING,
            decided.failures,
            seconds(5),
            decided.error,
            explained,
            RAN,
        )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"probe": 5}, "a probe must be a function of the task, not 5"),
        ({"probe": print, "policy": 5}, "the policy of a probe must be a Policy, not 5"),
    ],
)
def test_an_effect_that_cannot_be_is_refused(given: dict[str, Any], sentence: str) -> None:
    """With what is wrong of it."""
    with pytest.raises(HandlerError) as refused:
        Effect(**given)
    assert str(refused.value) == sentence


def test_idempotency_keys_never_change() -> None:
    """The other side remembers them across releases of redrive."""
    assert effect_key("redrive_task", TASK) == "8cc3b9a1-9ca7-5b03-8f0e-7589e0a6618e"


def test_what_the_handler_itself_has_answered_is_its_word() -> None:
    """Done is a yes and a definite error is a no; both name who said so."""
    happened = mark_in(after(Done()))
    assert (happened.answer, happened.answered_by, happened.why) == (EffectAnswer.HAPPENED, "handler", None)
    refused = mark_in(after(Failed(ValueError("no such account")), definite=True))
    assert (refused.answer, refused.answered_by) == (EffectAnswer.NOT_HAPPENED, "handler")
    assert refused.why == "ValueError: no such account"


SLOWER = Effect(print, policy=Policy(Schedule([seconds(5), seconds(9), seconds(20)]), attempts=3, jitter=none))


def test_each_time_that_a_probe_is_asked_has_its_own_wait() -> None:
    """The first is asked after the first wait of its policy, the second after the second."""
    first = after_try(decide(claim(), Failed(TimeoutError("late")), PAY), marked(), SLOWER, definite=False)
    assert first.delay == seconds(5)
    second = after_probe(claim(), marked(MarkState.UNKNOWN, then=Then()), Failed(OSError("down")), SLOWER, ZERO)
    assert isinstance(second, Settlement)
    assert (second.delay, mark_in(second).probes) == (seconds(9), 1)
    third = after_probe(claim(), mark_in(second), Failed(OSError("down")), SLOWER, ZERO)
    assert isinstance(third, Settlement)
    assert (third.delay, mark_in(third).probes) == (seconds(20), 2)
    last = after_probe(claim(), mark_in(third), Failed(OSError("down")), SLOWER, ZERO)
    assert isinstance(last, Settlement)
    assert (last.state, mark_in(last).probes) == (State.DEAD, 3)


def test_where_a_try_failed_is_kept_while_nobody_knows() -> None:
    """The stack of the error goes with the explanation that waits for the probe."""
    try:
        raise TimeoutError("late")
    except TimeoutError as error:
        failed = decide(claim(), Failed(error), PAY)
    assert failed.explanation is not None
    assert failed.explanation.stack is not None
    asked = after_try(failed, marked(), EFFECT, definite=False)
    assert asked.explanation is not None
    assert asked.explanation.stack == failed.explanation.stack


def test_a_probe_that_was_lost_beside_others_is_not_charged() -> None:
    """Only one that was lost alone is; how long it was held is told of both."""
    beside = decide(claim(), LeaseExpired(), PAY, elapsed=seconds(31))
    assert beside.explanation is not None
    assert beside.explanation.verdict == "suspect"
    asked = after_loss(beside, marked(MarkState.UNKNOWN, then=Then(), probes=1), EFFECT)
    assert (mark_in(asked).probes, asked.elapsed, asked.outcome) == (1, seconds(31), "lease_expired")
    assert beside.explanation is not None
    charged = beside._replace(explanation=beside.explanation._replace(verdict="retry"))
    assert mark_in(after_loss(charged, marked(MarkState.UNKNOWN, then=Then(), probes=1), EFFECT)).probes == 2
    unexplained = after_loss(
        beside._replace(explanation=None), marked(MarkState.UNKNOWN, then=Then(), probes=1), EFFECT
    )
    assert mark_in(unexplained).probes == 2
    inside = after_loss(beside, marked(), EFFECT)
    assert (mark_in(inside).state, inside.delay) == (MarkState.UNKNOWN, seconds(5))


def test_a_wait_for_a_probe_is_drawn_from_the_key() -> None:
    """Tasks that failed together do not ask together."""
    drawn = Effect(print, policy=Policy(Fixed(minutes(1)), attempts=3, jitter=full))
    asked = after_try(decide(claim(), Failed(TimeoutError("late")), PAY), marked(), drawn, definite=False)
    assert asked.delay == drawn.policy.delay(1, TASK.key) != drawn.policy.delay(1, "another")
