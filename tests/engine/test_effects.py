"""A try that ends inside its effect without an answer is asked about before it is tried again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from redrive import (
    Cancelled,
    Context,
    Fixed,
    PermanentError,
    Policy,
    Redrive,
    Snoozed,
    State,
    Task,
    hours,
    jitter,
    minutes,
    seconds,
)
from redrive.core.decide import decide
from redrive.core.effect_mark import EffectAnswer, EffectMark, MarkState
from redrive.core.outcome import Failed, LeaseExpired, Released
from redrive.effects import CannotTell, Effect, Happened, NotHappened
from redrive.engine.effect_entry import EffectEntry, is_definite
from redrive.engine.effects import settle_losses
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import HandlerError, LedgerAwayError, StaleError, UsageError
from redrive.testing import VirtualClock, assert_dead, assert_done, assert_waiting, drain
from tests.core.test_decide import FENCE, NOW, claim_of

PROBE = Policy(Fixed(seconds(5)), attempts=3, jitter=jitter.none, name="probe")
PAY = Policy(Fixed(minutes(1)), attempts=3, jitter=jitter.none, permanent=ValueError)


class Bank:
    """What a test lets happen, and what it has seen."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.keys: set[str] = set()
        self.ends: list[Callable[[], Any]] = []
        """What each try comes to, one after the other; then it pays."""
        self.answers: list[Any] = []
        """What the probe says, one after the other; then what the books say."""
        self.probed = 0

    async def pay(self, task: Task, context: Context) -> Any:
        """The handler."""
        async with context.effect():
            self.keys.add(context.effect_key)
            if self.ends:
                return self.ends.pop(0)()
            self.paid.append(task.key)
        return None

    async def was_paid(self, task: Task, context: Context) -> Any:
        """The probe."""
        self.probed += 1
        self.keys.add(context.effect_key)
        answer = (
            self.answers.pop(0) if self.answers else Happened({"paid": 1}) if task.key in self.paid else NotHappened
        )
        if isinstance(answer, Exception) and not isinstance(answer, NotHappened):
            raise answer
        return answer


def raising(error: BaseException) -> Callable[[], Any]:
    """An end that raises."""

    def end() -> None:
        raise error

    return end


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def app(url: str, clock: VirtualClock, bank: Bank) -> AsyncIterator[Redrive]:
    async with Redrive(url, clock=clock, durable=False) as made:
        made.handler("pay", policy=PAY, effect=Effect(bank.was_paid, key_window=hours(24), policy=PROBE))(bank.pay)
        yield made


async def mark_of(app: Redrive, key: str = "a") -> EffectMark:
    """The mark of a task."""
    ledger, task = await app.tasks.ledger(), await app.tasks.get(key)
    assert task is not None
    assert ledger.effects is not None
    return (await ledger.effects.of([task.id]))[task.id]


async def outcomes(app: Redrive, key: str = "a") -> list[tuple[str, str]]:
    """Each try of a task: what it came to, and where that led."""
    task = await app.tasks.get(key)
    assert task is not None
    return [(one.outcome, one.state.value) for one in await app.tasks.attempts(task.id)]


async def test_without_trouble_the_probe_is_not_asked(app: Redrive, bank: Bank) -> None:
    """Paid once, done, and the mark says so."""
    await app.add("pay", key="a")
    await drain(app)
    await assert_done(app, "a")
    assert (bank.paid, bank.probed) == (["a"], 0)
    mark = await mark_of(app)
    assert (mark.state, mark.answer, mark.answered_by) == (MarkState.ANSWERED, EffectAnswer.HAPPENED, "handler")


async def test_what_happened_is_done_with_the_evidence(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """The bank commits and drops the answer: the probe finds it, and nothing is paid again."""

    def commit_and_drop() -> None:
        bank.paid.append("a")
        raise ConnectionError("the answer was lost")

    bank.ends = [commit_and_drop]
    await app.add("pay", key="a")
    await drain(app)
    task = await assert_waiting(app, "a", due_in=seconds(5))
    assert task.failures == 1
    assert (await mark_of(app)).state is MarkState.UNKNOWN
    await drain(app, clock=clock)
    await assert_done(app, "a")
    assert await app.result("a") == {"paid": 1}
    assert (bank.paid, bank.probed, len(bank.keys)) == (["a"], 1, 1)
    assert await outcomes(app) == [("failed", "waiting"), ("done", "done")]


async def test_what_did_not_happen_is_retried_as_ever(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """The probe says no: the retry follows after the wait that the policy gave it, with the failure charged once."""
    bank.ends = [raising(TimeoutError("no answer"))]
    await app.add("pay", key="a")
    began = clock.now()
    await drain(app, clock=clock)
    await assert_done(app, "a")
    assert clock.now() - began == seconds(65)
    assert (bank.paid, bank.probed, len(bank.keys)) == (["a"], 1, 1)
    assert await outcomes(app) == [("failed", "waiting"), ("snoozed", "waiting"), ("done", "done")]


async def test_a_spent_budget_is_asked_about_before_the_task_is_dead(
    app: Redrive, bank: Bank, clock: VirtualClock
) -> None:
    """The last try allowed ends without an answer: it is not dead before the probe has said no, and then of its own error."""
    bank.ends = [raising(TimeoutError("no answer"))] * 3
    await app.add("pay", key="a")
    await drain(app, clock=clock)
    await assert_dead(app, "a", error="no answer", verdict="exhausted")
    assert bank.probed == 3
    assert not (await mark_of(app)).is_open
    await app.tasks.redrive("a", actor="ada", reason="the bank is back")
    await drain(app, clock=clock)
    await assert_done(app, "a")


@pytest.mark.parametrize("error", [ValueError("no such account"), NotHappened("refused"), PermanentError("closed")])
async def test_a_definite_error_is_an_ordinary_failure(app: Redrive, bank: Bank, error: Exception) -> None:
    """What the policy knows as a no, or `NotHappened`, needs no probe."""
    bank.ends = [raising(error)]
    await app.add("pay", key="a")
    await drain(app)
    task = await app.tasks.get("a")
    assert task is not None
    assert (task.state, task.failures) == (State.WAITING if isinstance(error, NotHappened) else State.DEAD, 1)
    assert bank.probed == 0
    assert (await mark_of(app)).answer is EffectAnswer.NOT_HAPPENED


async def test_what_a_handler_says_itself_is_an_answer(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """`Cancelled` ends the task; `Snoozed` is asked about, since it may have happened."""
    bank.ends = [lambda: Cancelled("not any more")]
    await app.add("pay", key="a")
    await drain(app)
    assert [one for _, one in await outcomes(app)] == ["cancelled"]
    bank.ends = [lambda: Snoozed(minutes(1), "pending")]
    bank.answers = [Happened("later")]
    await app.add("pay", key="b")
    await drain(app, clock=clock)
    assert await app.result("b") == "later"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([CannotTell("the bank keeps no books")], "the probe cannot tell: the bank keeps no books"),
        ([CannotTell], "the probe cannot tell"),
        ([ConnectionError("down")] * 3, "the probe was asked 3 times: the probe failed: ConnectionError: down"),
        ([PermanentError("forbidden")], "the probe failed: PermanentError: forbidden"),
        (["yes"], "let it return Happened, NotHappened or CannotTell"),
    ],
)
async def test_what_nobody_knows_is_for_a_person(
    app: Redrive, bank: Bank, clock: VirtualClock, answers: list[Any], said: str
) -> None:
    """Dead with the verdict `unknown` and all that is known; no redrive runs it, and it is counted as refused."""
    bank.ends = [raising(TimeoutError("no answer"))]
    bank.answers = list(answers)
    await app.add("pay", key="a")
    await drain(app, clock=clock)
    task = await assert_dead(app, "a", error=said, verdict="unknown")
    mark = await mark_of(app)
    assert (mark.state, mark.error) == (MarkState.PERSON, "TimeoutError: no answer")
    for which in ("a", task.id):
        acted = await app.tasks.redrive(which, actor="ada", reason="try")
        assert (acted.changed, list(acted.refused)) == ((), [task.id])
        assert "nobody knows whether" in acted.refused[task.id]
    assert bank.paid == []


async def test_a_key_that_is_forgotten_before_the_next_try_is_for_a_person(
    url: str, clock: VirtualClock, bank: Bank
) -> None:
    """The probe says no, but the next try would come after the window of the key."""
    async with Redrive(url, clock=clock, durable=False) as app:
        effect = Effect(bank.was_paid, key_window=minutes(30), policy=PROBE)
        app.handler("pay", retries=3, wait=hours(1), jitter=jitter.none, effect=effect)(bank.pay)
        bank.ends = [raising(TimeoutError("no answer"))]
        await app.add("pay", key="a")
        await drain(app, clock=clock)
        await assert_dead(app, "a", error="window of 30m ends before the next try", verdict="unknown")


@pytest.mark.every_store
async def test_a_worker_that_is_lost_inside_leaves_a_question(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """Killed inside: the mark is there though nothing was settled, and the probe is asked when the lease has run out."""
    ledger = await app.tasks.ledger()
    assert ledger.effects is not None
    for key, happened in (("a", True), ("b", False)):
        await app.add("pay", key=key)
        [claim] = await ledger.claim(1, seconds(30))
        assert await ledger.effects.enter(claim) is not None
        if happened:
            bank.paid.append(key)
    clock.advance(seconds(31))
    await drain(app, clock=clock)
    assert sorted(bank.paid) == ["a", "b"]
    assert await outcomes(app, "a") == [("lease_expired", "waiting"), ("done", "done")]
    assert await app.result("a") == {"paid": 1}
    assert await outcomes(app, "b") == [("lease_expired", "waiting"), ("done", "done")]


async def test_a_worker_that_is_lost_with_the_last_try_is_asked_about(
    url: str, clock: VirtualClock, bank: Bank
) -> None:
    """One try only: the task is not dead as `worker_lost` before the probe has said no."""
    async with Redrive(url, clock=clock, durable=False) as app:
        app.handler("pay", attempts=1, effect=Effect(bank.was_paid, policy=PROBE))(bank.pay)
        ledger = await app.tasks.ledger()
        assert ledger.effects is not None
        await app.add("pay", key="a")
        [claim] = await ledger.claim(1, seconds(30))
        await ledger.effects.enter(claim)
        clock.advance(seconds(31))
        await drain(app)
        await assert_waiting(app, "a", due_in=seconds(5))
        await drain(app, clock=clock)
        await assert_dead(app, "a", verdict="worker_lost")
        assert (bank.probed, bank.paid) == (1, [])


async def test_probes_that_kill_their_worker_end_with_a_person(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """A probe that is lost alone is charged as a probe, and the budget of the task stays what it was."""
    ledger = await app.tasks.ledger()
    assert ledger.effects is not None
    await app.add("pay", key="a")
    [claim] = await ledger.claim(1, seconds(30))
    await ledger.effects.enter(claim)
    for _ in range(4):
        clock.advance(seconds(31))
        keeping = await ledger.reclaim(1, seconds(1), kinds=["pay"])
        assert len(keeping) == 1
        clock.advance(seconds(2))
        await settle_lost(app)
        clock.advance(seconds(10))
        claims = await ledger.claim(1, seconds(30), kinds=["pay"])
        if not claims:
            break
        assert claims[0].suspect
        await ledger.run_alone(claims[0])
    task = await assert_dead(app, "a", verdict="unknown", error="asked 3 times: its worker was lost")
    assert task.failures == 0
    assert bank.probed == 0


async def settle_lost(app: Redrive) -> None:
    """What a keeper does, and nothing else."""
    ledger = await app.tasks.ledger()
    claims = await ledger.reclaim(10, seconds(1), kinds=["pay"])
    group = [decide(claim, LeaseExpired(), PAY) for claim in claims]
    assert await ledger.settle(await settle_losses(ledger, app.tasks.handlers, group), worker="keeper") == []


@pytest.mark.every_store
async def test_a_claim_that_was_lost_does_not_enter(app: Redrive) -> None:
    """A late worker's effect is not begun: its fence is gone."""
    ledger = await app.tasks.ledger()
    assert ledger.effects is not None
    await app.add("pay", key="a")
    [late] = await ledger.claim(1, seconds(30))
    await ledger.settle([decide(late, Released(), PAY)], worker="keeper")
    assert await ledger.effects.enter(late) is None
    assert await ledger.effects.of([late.task.id]) == {}


async def test_a_store_that_is_away_when_the_effect_begins_lets_nothing_happen(
    app: Redrive, bank: Bank, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body does not run, and though the mark may be written the next try needs no probe."""
    ledger = await app.tasks.ledger()
    marks = ledger.effects
    assert marks is not None
    enter = marks.enter

    async def written_unheard(claim: Any) -> None:
        await enter(claim)
        monkeypatch.setattr(marks, "enter", enter)
        raise LedgerAwayError("the answer was lost")

    monkeypatch.setattr(marks, "enter", written_unheard)
    await app.add("pay", key="a")
    await drain(app, clock=clock)
    await assert_done(app, "a")
    assert (bank.paid, bank.probed) == (["a"], 0)


async def test_a_worker_that_stops_inside_leaves_a_question(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """Cancelled inside, the task waits for its probe; cancelled before, it is released as ever."""
    inside = asyncio.Event()

    class Stuck(Bank):
        async def pay(self, task: Task, context: Context) -> Any:
            async with context.effect():
                inside.set()
                await asyncio.Event().wait()

    app.handler("stuck", policy=PAY, effect=Effect(bank.was_paid, policy=PROBE))(Stuck().pay)
    await app.add("stuck", key="a")
    workers = app.workers(WorkerSettings(grace=seconds(0), poll=hours(1)))
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(60):
        await inside.wait()
    workers.stop()
    await running
    await assert_waiting(app, "a", failures=0)
    assert (await mark_of(app)).state is MarkState.UNKNOWN
    bank.answers = [Happened("slow")]
    await drain(app, clock=clock)
    assert await app.result("a") == "slow"


async def test_a_plain_handler_enters_from_its_thread(app: Redrive, bank: Bank, clock: VirtualClock) -> None:
    """`with context.effect()` in a thread, and a plain probe."""

    def was_printed(_task: Task) -> Any:
        return Happened("on paper")

    @app.handler("print", policy=PAY, effect=Effect(was_printed, policy=PROBE))
    def print_it(_task: Task, context: Context) -> None:
        with context.effect():
            raise OSError("paper jam")

    await app.add("print", key="a")
    await drain(app, clock=clock)
    assert await app.result("a") == "on paper"


@pytest.mark.parametrize("store", ["sqlite"])
async def test_an_effect_is_entered_once_in_a_try(app: Redrive, clock: VirtualClock) -> None:
    """Two effects would have one key: the second is refused, and what the first came to is asked."""

    async def cannot(_task: Task) -> CannotTell:
        return CannotTell()

    @app.handler("twice", attempts=1, effect=Effect(cannot, policy=PROBE))
    async def twice(_task: Task, context: Context) -> None:
        async with context.effect():
            pass
        async with context.effect():
            pass

    await app.add("twice", key="a")
    await drain(app, clock=clock)
    await assert_dead(app, "a", verdict="unknown")
    assert "entered once" in str((await mark_of(app)).error)


@pytest.mark.parametrize("store", ["sqlite"])
async def test_what_cannot_have_an_effect_is_refused(app: Redrive, bank: Bank) -> None:
    """At registration, with one sentence."""

    async def without_context(_task: Task) -> None: ...

    async def with_context(_task: Task, _context: Context) -> None: ...

    effect = Effect(bank.was_paid)
    for function, how, said in (
        (without_context, {"effect": effect}, "let it take"),
        (with_context, {"effect": effect, "transactional": True}, "choose one of the two"),
        (with_context, {"effect": bank.was_paid}, "must be an Effect"),
    ):
        with pytest.raises(HandlerError, match=said):
            app.handler("other", **how)(function)
    with pytest.raises(HandlerError, match="a probe must be a function"):
        Effect("was_paid")  # type: ignore[arg-type]

    @app.handler("bare")
    async def bare(_task: Task, context: Context) -> None:
        async with context.effect():
            pass

    await app.add("bare", key="a")
    await drain(app)
    await assert_waiting(app, "a")
    task = await app.tasks.get("a")
    assert task is not None
    assert "register the handler with effect=" in str(task.last_error)


class Marks:
    """The marks of a store that knows some of them."""

    in_use = False

    def __init__(self, marks: dict[Any, Any] | None = None, *, entered: Any = None) -> None:
        self.marks = marks or {}
        self.entered = entered

    async def of(self, ids: Any) -> dict[Any, Any]:
        return {id_: self.marks[id_] for id_ in ids if id_ in self.marks}

    async def enter(self, _claim: Any) -> Any:
        if isinstance(self.entered, Exception):
            raise self.entered
        return self.entered


async def test_a_second_way_into_an_effect_and_a_late_one_are_refused() -> None:
    """Each with a sentence: what to do instead, and that nothing was begun."""
    marks: Any = Marks(entered="mark")
    entry = EffectEntry(marks, claim_of())
    async with entry:
        assert entry.entered
    with pytest.raises(UsageError) as twice:
        await entry.__aenter__()
    assert str(twice.value) == "a try has one effect, which is entered once: make another task for the second"
    late = EffectEntry(Marks(), claim_of())  # type: ignore[arg-type]
    with pytest.raises(StaleError) as stale:
        await late.__aenter__()
    assert str(stale.value) == "somebody else owns this task now, so its effect was not begun"
    assert not late.entered


async def test_what_was_not_entered_for_sure_did_not_happen() -> None:
    """The store was away: nothing was done under the mark, whether it was written or not."""
    entry = EffectEntry(Marks(entered=LedgerAwayError("gone")), claim_of())  # type: ignore[arg-type]
    effect, failed = Effect(print, policy=PROBE), decide(claim_of(), Failed(LedgerAwayError("gone")), PAY)
    assert entry.conclude(failed, effect, PAY, definite=False) is failed, "it was not tried"
    with pytest.raises(LedgerAwayError):
        await entry.__aenter__()
    mark = entry.conclude(failed, effect, PAY, definite=False).claim.effect
    assert mark is not None
    assert (mark.state, mark.answer) == (MarkState.ANSWERED, EffectAnswer.NOT_HAPPENED)
    assert (mark.first_at, mark.entered_at) == (claim_of().claimed_at,) * 2


def test_a_plain_handlers_error_is_known_too() -> None:
    """What leaves `with context.effect()` in a thread is looked at as what leaves `async with`."""

    async def within() -> Any:
        entered: Any = EffectMark(state=MarkState.INSIDE, claim_id=FENCE, first_at=NOW, entered_at=NOW)
        entry = EffectEntry(Marks(entered=entered), claim_of())  # type: ignore[arg-type]

        def plain() -> None:
            with entry:
                raise NotHappened("refused")

        with pytest.raises(NotHappened):
            await asyncio.to_thread(plain)
        failed = decide(claim_of(), Failed(NotHappened("refused")), PAY)
        return entry.conclude(failed, Effect(print, policy=PROBE), PAY, definite=False).claim.effect

    mark = asyncio.run(within())
    assert (mark.state, mark.answer) == (MarkState.ANSWERED, EffectAnswer.NOT_HAPPENED)


@pytest.mark.parametrize(
    ("error", "policy", "definite"),
    [
        (NotHappened("no"), PAY, True),
        (PermanentError("closed"), PAY, True),
        (ValueError("no such account"), PAY, True),
        (TimeoutError("late"), PAY, False),
        (OSError("down"), Policy(transient=OSError), False),
        (OSError("odd"), Policy(otherwise="permanent"), False),
        (asyncio.CancelledError(), Policy(permanent=BaseException), False),
    ],
)
def test_which_errors_are_an_answer(error: BaseException, policy: Policy, definite: bool) -> None:
    """A rule must know the error as a no for good: what is merely not known is a question."""
    assert is_definite(error, policy) is definite


async def test_only_claims_with_a_mark_are_in_question() -> None:
    """Of a group that was lost: kinds without an effect, unknown kinds and tries that entered nothing end as ever."""
    handlers = Handlers()
    handlers.add(make_handler("plain", lambda task: None, PAY))
    handlers.add(
        make_handler("pay", lambda task, context: None, PAY, effect=Effect(lambda task: NotHappened, policy=PROBE))
    )
    claims = [claim_of()._replace(task=claim_of().task._replace(id=id_, kind=kind)) for id_, kind in
              enumerate(("plain", "unknown", "pay", "pay"))]  # fmt: skip
    lost = [decide(claim, LeaseExpired(), PAY) for claim in claims]
    marks = Marks({3: EffectMark(state=MarkState.INSIDE, claim_id=FENCE, first_at=NOW, entered_at=NOW)})
    ledger: Any = SimpleNamespace(effects=marks)
    settled = await settle_losses(ledger, handlers, lost)
    assert settled[:3] == lost[:3]
    assert marks.in_use
    mark = settled[3].claim.effect
    assert mark is not None
    assert mark.state is MarkState.UNKNOWN
    assert await settle_losses(SimpleNamespace(effects=None), handlers, lost) == lost  # type: ignore[arg-type]
    assert await settle_losses(ledger, Handlers(), lost) == lost


async def test_marks_that_cannot_be_read_let_nothing_be_tried(
    app: Redrive, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether the last try is in question: the task goes back uncharged, and says how long that took."""
    ledger = await app.tasks.ledger()
    marks = ledger.effects
    assert marks is not None
    of, failed = marks.of, list[int]()

    async def away(ids: Any) -> Any:
        if not failed:
            failed.append(1)
            await asyncio.sleep(0.01)
            raise LedgerAwayError("gone")
        return await of(ids)

    monkeypatch.setattr(marks, "of", away)
    await app.add("pay", key="a")
    await drain(app)
    assert await outcomes(app) == [("released", "waiting"), ("done", "done")]
    assert bank.paid == ["a"]
    task = await app.tasks.get("a")
    assert task is not None
    [released, _] = await app.tasks.attempts(task.id)
    assert released.duration is not None
    assert released.duration >= seconds(0.005)
