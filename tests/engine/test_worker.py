"""The worker, with real time: signals instead of sleeps, faults only where a real ledger cannot have them."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.core.states import State
from redrive.core.task import Abandoned
from redrive.engine import keeper as keeper_module
from redrive.engine import watchdog
from redrive.engine import worker as module
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.held import HeldRun
from redrive.engine.patience import Patience
from redrive.engine.run import Ran
from redrive.engine.settler import Settler
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError
from redrive.events import (
    AttemptEnded,
    AttemptStarted,
    LedgerAway,
    LedgerBack,
    LoopBlocked,
    SettleFailed,
    SettleLost,
)
from redrive.ledgers.open import open_database, own_ledger
from tests.engine.workbench import (
    AT_ONCE,
    NEVER,
    ONCE,
    SECOND,
    STEADY,
    Due,
    Faulty,
    add,
    handlers_of,
    ignore,
    lose,
    run_of,
    spying,
    working,
)

# --- slots ------------------------------------------------------------------------------------------------------------


async def test_all_tasks_are_run_and_settled(real_ledger, heard):
    """What is there when the worker starts and what comes later is done, each once."""
    ids = await add(real_ledger, *(f"k{number}" for number in range(30)))
    async with working(real_ledger, handlers_of(job=ignore), heard=heard, concurrency=7):
        await heard.amount(AttemptEnded, 30)
        ids += await add(real_ledger, "late")
        await heard.amount(AttemptEnded, 31)
    assert [(await real_ledger.get(id_)).state for id_ in ids] == [State.DONE] * 31
    assert [len(await real_ledger.attempts(id_)) for id_ in ids] == [1] * 31
    assert len(heard.of(AttemptStarted)) == 31


async def test_slots_are_never_exceeded(real_ledger, heard, gate):
    """No more handlers run at once than there are slots, and all slots are used."""
    await add(real_ledger, *(f"k{number}" for number in range(12)))
    async with working(real_ledger, handlers_of(job=gate), heard=heard, concurrency=4) as worker:
        for amount in (4, 8, 12):
            await gate.until_started(amount)
            assert worker.running == 4
            assert len(gate.inside) == 4
            gate.let_out()
        await heard.amount(AttemptEnded, 12)
    assert gate.most == 4


async def test_refill_does_not_wait_for_the_slowest(real_ledger, heard, gate):
    """While one handler takes its time, the other slots go on."""
    await add(real_ledger, *(f"k{number}" for number in range(20)))
    async with working(real_ledger, handlers_of(job=gate), heard=heard, concurrency=3):
        await gate.until_started(3)
        slow = gate.started[0]
        for started in range(4, 21):
            gate.let_out(next(key for key in gate.inside if key != slow))
            await gate.until_started(started)
        assert slow in gate.inside
        gate.let_out()
        await heard.amount(AttemptEnded, 20)


async def test_claims_only_what_free_slots_can_start(real_ledger, heard, gate):
    """Nothing is held that does not run: a crash charges only what was really running."""
    asked = []
    faulty = Faulty(real_ledger)

    async def claim(limit, lease, **options):
        asked.append(limit + len(gate.inside))
        return await real_ledger.claim(limit, lease, **options)

    faulty.claim = claim
    await add(real_ledger, *(f"k{number}" for number in range(9)))
    async with working(faulty, handlers_of(job=gate), heard=heard, concurrency=3):
        for amount in (3, 4, 5, 6):
            await gate.until_started(amount)
            await heard.amount(AttemptEnded, amount - 3)
            counts = await real_ledger.counts()
            assert (counts[State.CLAIMED], counts[State.WAITING]) == (3, 9 - amount)
            gate.let_out(next(iter(gate.inside)))
        while len(heard.of(AttemptEnded)) < 9:
            gate.let_out()
            await asyncio.sleep(0)
    assert max(asked) == 3


def with_transactional(gate, **others):
    """Handlers of which `pay` needs a transaction."""
    handlers = handlers_of(**others)
    handlers.add(make_handler("pay", gate, STEADY, transactional=True))
    return handlers


@pytest.mark.every_store
async def test_transactional_tasks_are_claimed_when_they_can_start(real_ledger, heard, gate):
    """Those for which there is no connection are left to other workers, and are claimed as soon as there is one."""
    few = Faulty(real_ledger)
    few.transactions_max = 1
    await add(real_ledger, "p1", "p2", "p3", kind="pay")
    async with working(few, with_transactional(gate), heard=heard, poll=NEVER):
        for amount in (1, 2, 3):
            await gate.until_started(amount)
            counts = await real_ledger.counts()
            assert (counts[State.CLAIMED], counts[State.WAITING]) == (1, 3 - amount)
            gate.let_out()
            await heard.amount(AttemptEnded, amount)
    assert gate.most == 1


@pytest.mark.parametrize("store", ["postgres"])  # on SQLite a transaction holds the one write lock
async def test_other_kinds_do_not_wait_for_transactions(real_ledger, heard, gate):
    """While every connection is taken, what needs none is claimed and run as ever."""
    few = Faulty(real_ledger)
    few.transactions_max = 1
    await add(real_ledger, "p1", "p2", kind="pay")
    async with working(few, with_transactional(gate, job=ignore), heard=heard, concurrency=4, poll=NEVER):
        await gate.until_started(1)
        await add(real_ledger, *(f"k{number}" for number in range(20)))
        ended = await heard.amount(AttemptEnded, 20)
        assert {event.settlement.claim.task.kind for event in ended} == {"job"}
        gate.let_out()
        await gate.until_started(2)
        gate.let_out()
        await heard.amount(AttemptEnded, 22)


async def test_a_claim_is_not_larger_than_the_batch(real_ledger, heard):
    """`batch` bounds one claim however many slots are free."""
    asked, spied = spying(real_ledger)
    await add(real_ledger, *(f"k{number}" for number in range(12)))
    async with working(spied, handlers_of(job=ignore), heard=heard, concurrency=50, batch=5):
        await heard.amount(AttemptEnded, 12)
    assert max(asked) == 5


@pytest.mark.parametrize(("concurrency", "limit"), [(100, 100), (600, 500), (1400, 700), (2000, 1000), (9000, 1000)])
async def test_a_claim_leaves_slots_for_the_next(real_ledger, heard, concurrency, limit):
    """Of many slots one claim fills half, up to `batch`, so that the next can be sent for while its tasks run."""
    asked, spied = spying(real_ledger)
    await add(real_ledger, "k")
    async with working(spied, handlers_of(job=ignore), heard=heard, concurrency=concurrency):
        await heard.amount(AttemptEnded, 1)
    assert max(asked) == limit


async def test_outcomes_are_settled_in_groups(real_ledger, heard, gate):
    """Handlers that end together are written together."""
    groups = []
    faulty = Faulty(real_ledger)

    async def settle(settlements, **options):
        groups.append(len(settlements))
        return await real_ledger.settle(settlements, **options)

    faulty.settle = settle
    await add(real_ledger, *(f"k{number}" for number in range(40)))
    async with working(faulty, handlers_of(job=gate), heard=heard, concurrency=40):
        await gate.until_started(40)
        gate.let_out()
        await heard.amount(AttemptEnded, 40)
    assert sum(groups) == 40
    assert len(groups) <= 4


async def test_failures_are_retried_to_the_end_of_the_budget(real_ledger, heard):
    """A task that always fails is tried as often as its policy says and is dead then."""
    tried = []

    async def handle(task, context):
        tried.append(context.attempt)
        raise ValueError("odd")

    [id_] = await add(real_ledger, "one")
    async with working(real_ledger, handlers_of(policy=AT_ONCE, job=handle), heard=heard):
        await heard.amount(AttemptEnded, 3)
    assert tried == [1, 2, 3]
    task = await real_ledger.get(id_)
    assert (task.state, task.failures, task.last_error) == (State.DEAD, 3, "ValueError: odd")


@pytest.mark.parametrize("how", ["cancels its task", "raises it"])
async def test_a_handler_that_cancels_itself_spends_its_budget(real_ledger, heard, how):
    """It is no release, which would be due at once and uncharged for ever: each such run is a failure, and it ends dead."""

    async def handle(task):
        if how == "raises it":
            raise asyncio.CancelledError
        asyncio.current_task().cancel()
        await asyncio.sleep(60)

    [id_] = await add(real_ledger, "one")
    async with working(real_ledger, handlers_of(policy=AT_ONCE, job=handle), heard=heard):
        ended = await heard.amount(AttemptEnded, 3)
    assert [event.settlement.outcome for event in ended] == ["failed"] * 3
    task = await real_ledger.get(id_)
    assert (task.state, task.failures, task.last_error) == (State.DEAD, 3, "CancelledError")


async def test_plain_functions_fill_the_slots_too(real_ledger, heard):
    """Sync handlers run in threads, as many at once as there are slots."""
    together = threading.Barrier(5, timeout=150)
    await add(real_ledger, *(f"k{number}" for number in range(5)))
    async with working(real_ledger, handlers_of(job=lambda task: together.wait() and None), heard=heard, concurrency=5):
        ended = await heard.amount(AttemptEnded, 5)
    assert [event.settlement.outcome for event in ended] == ["done"] * 5


async def test_a_handler_that_blocks_the_loop_is_named(real_ledger, heard, gate, monkeypatch):
    """Everything stands still meanwhile; afterwards it is told for how long, and by which kind, whatever else was running."""
    monkeypatch.setattr(watchdog, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "LIMIT_SECONDS", 0.05)

    async def block(task):
        assert worker._watchdog.noticed.wait(60)

    await add(real_ledger, "innocent")
    async with working(real_ledger, handlers_of(job=gate, pay=block), heard=heard) as worker:
        await gate.until_started(1)
        await add(real_ledger, "slow", kind="pay")
        [blocked, *_] = await heard.amount(LoopBlocked, 1)
        gate.let_out()
    assert (blocked.ledger, blocked.kinds) == (real_ledger.name, ("pay",))
    assert blocked.span >= timedelta(seconds=0.05)


@pytest.mark.every_store
async def test_expired_claims_of_others_are_settled_by_the_worker(real_ledger, heard, monkeypatch):
    """A worker keeps house: what a lost worker held is settled as expired and tried again here."""
    monkeypatch.setattr(keeper_module, "EVERY_SECONDS", 0.05)
    [id_] = await add(real_ledger, "orphan")
    assert len(await real_ledger.claim(1, timedelta(milliseconds=50))) == 1
    async with working(real_ledger, handlers_of(policy=AT_ONCE, job=ignore), heard=heard):
        await heard.amount(AttemptEnded, 2)
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["lease_expired", "done"]


async def test_abandoned_claims_are_settled_and_not_run(real_ledger, heard):
    """A queue hands an abandoned task out by `claim`: it is settled as expired before it can run again."""
    faulty = Faulty(real_ledger)
    abandon = [True]

    async def claim(limit, lease, **options):
        claims = await real_ledger.claim(limit, lease, **options)
        if claims and abandon:
            abandon.clear()
            lost = Abandoned(claim_id=None, claimed_at=None)
            claims = [one._replace(abandoned=lost) for one in claims]
        return claims

    faulty.claim = claim
    tried = []

    async def handle(task, context):
        tried.append(context.attempt)

    [id_] = await add(real_ledger, "one")
    async with working(faulty, handlers_of(policy=AT_ONCE, job=handle), heard=heard):
        await heard.amount(AttemptEnded, 2)
    assert tried == [1]
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["lease_expired", "done"]


# --- kinds ------------------------------------------------------------------------------------------------------------


async def test_unknown_kinds_wait_for_a_worker_that_knows_them(real_ledger, heard):
    """During a rolling deploy new kinds cost no tries on old workers; a worker that knows them runs them."""
    [unknown] = await add(real_ledger, "u", kind="new_kind")
    await add(real_ledger, "k")
    async with working(real_ledger, handlers_of(job=ignore), heard=heard):
        await heard.amount(AttemptEnded, 1)
    task = await real_ledger.get(unknown)
    assert (task.state, task.failures) == (State.WAITING, 0)
    assert await real_ledger.attempts(unknown) == []
    async with working(real_ledger, handlers_of(job=ignore, new_kind=ignore), heard=heard):
        await heard.amount(AttemptEnded, 2)
    assert (await real_ledger.get(unknown)).state is State.DONE


@pytest.mark.every_store
async def test_patterns_find_kinds_that_appear_later(real_ledger, heard):
    """A handler with a star picks up a kind that nobody had heard of when the worker started."""
    handlers = Handlers()
    handlers.add(make_handler("mail.*", ignore, STEADY))
    async with working(real_ledger, handlers, heard=heard):
        await add(real_ledger, "one", kind="mail.sent")
        await heard.amount(AttemptEnded, 1)
        await add(real_ledger, "two", kind="mail.read")
        await heard.amount(AttemptEnded, 2)


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["claim", "waiter"])
async def test_an_outage_is_waited_out(real_ledger, heard, where):
    """Whether the ledger goes away while it is asked for work or while it is waited for: one event each way, then work."""
    faulty = Faulty(real_ledger)
    away = [0]

    async def claim(*args, **options):
        if where == "claim" and away[0]:
            away[0] -= 1
            raise LedgerAwayError("gone")
        return await real_ledger.claim(*args, **options)

    class Waiting:
        hears_due = False

        def __enter__(self):
            self.real = real_ledger.waiter()
            self.waiter = self.real.__enter__()
            return self

        def __exit__(self, *error):
            return self.real.__exit__(*error)

        def clear(self):
            self.waiter.clear()

        async def wait(self, timeout):
            if where == "waiter" and away[0]:
                away[0] -= 1
                raise LedgerAwayError("gone")
            return await self.waiter.wait(timeout)

    faulty.claim = claim
    faulty.waiter = Waiting
    async with working(faulty, handlers_of(job=ignore), heard=heard, poll=timedelta(milliseconds=20)):
        away[0] = 3 if where == "claim" else 1
        await heard.amount(LedgerBack, 1)
        await add(real_ledger, "one")
        await heard.amount(AttemptEnded, 1)
    assert len(heard.of(LedgerAway)) == len(heard.of(LedgerBack)) == 1


@pytest.mark.every_store
@pytest.mark.parametrize("committed", [True, False])
async def test_a_commit_whose_answer_is_lost_is_told_as_it_was(real_ledger, heard, committed):
    """Of a transactional handler the observers hear what is in the ledger: done if the commit came through, else failed."""
    faulty = Faulty(real_ledger)

    @asynccontextmanager
    async def transaction():
        faulty.transaction = real_ledger.transaction
        async with real_ledger.transaction() as opened:
            yield opened
            if not committed:
                raise LedgerAwayError("the connection was closed")
        raise LedgerAwayError("the answer was lost")

    faulty.transaction = transaction
    [id_] = await add(real_ledger, "one")
    handlers = Handlers()
    handlers.add(make_handler("job", ignore, ONCE, transactional=True))
    async with working(faulty, handlers, heard=heard):
        [ended] = await heard.amount(AttemptEnded, 1)
    assert ended.settlement.outcome == ("done" if committed else "failed")
    assert ended.settlement.state is (await real_ledger.get(id_)).state
    assert heard.of(SettleLost) == []


async def test_settlements_survive_an_outage(real_ledger, heard, gate):
    """Work that ends while the ledger is away is written when it is back, once."""
    faulty = Faulty(real_ledger)
    away = [True]

    async def settle(*args, **options):
        if away:
            raise LedgerAwayError("gone")
        return await real_ledger.settle(*args, **options)

    faulty.settle = settle
    ids = await add(real_ledger, "a", "b")
    async with working(faulty, handlers_of(job=gate), heard=heard):
        await gate.until_started(2)
        gate.let_out()
        await heard.amount(LedgerAway, 1)
        away.clear()
        await heard.amount(AttemptEnded, 2)
    assert [len(await real_ledger.attempts(id_)) for id_ in ids] == [1, 1]


async def test_one_that_cannot_be_settled_takes_none_down(real_ledger, heard):
    """A settlement that the ledger does not take is announced; the others of its group are done, and so is what comes later."""
    faulty = Faulty(real_ledger)

    async def settle(settlements, **options):
        if any(one.claim.task.key == "bad" for one in settlements):
            raise ValueError("cannot be stored")
        return await real_ledger.settle(settlements, **options)

    faulty.settle = settle
    await add(real_ledger, "a", "bad", "c")
    async with working(faulty, handlers_of(job=ignore), heard=heard):
        await heard.amount(AttemptEnded, 2)
        [failed, *_] = await heard.amount(SettleFailed, 1)
        await add(real_ledger, "later")
        await heard.amount(AttemptEnded, 3)
    assert failed.settlement.claim.task.key == "bad"


async def test_an_observer_that_raises_stops_nothing(real_ledger, heard, caplog):
    """A broken observer is logged; the work goes on and the other observers are told."""

    class Broken:
        def observe(self, events):
            raise OSError("no space left for logs")

    await add(real_ledger, "a", "b")
    worker = Worker(real_ledger, handlers_of(job=ignore), observers=[Broken(), heard])
    running = asyncio.create_task(worker.run())
    await heard.amount(AttemptEnded, 2)
    worker.stop()
    await running
    assert "Broken failed as an observer" in caplog.text


# --- waking up --------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
async def test_wake_up_from_another_application(url, real_ledger, heard):
    """Work that another process adds is seen at once, not at the next poll."""
    other = open_database(url, durable=False)
    try:
        async with working(real_ledger, handlers_of(job=ignore), heard=heard, poll=NEVER):
            await asyncio.sleep(0.1)  # asleep by now
            await add(own_ledger(other), "one")
            await heard.amount(AttemptEnded, 1)
    finally:
        await other.close()


@pytest.mark.every_store
@pytest.mark.parametrize("store", ["postgres"])
async def test_a_due_row_that_is_locked_is_no_hot_loop(real_ledger, heard):
    """While somebody else's transaction locks a due row, the worker looks now and then, not without a pause."""
    from sqlalchemy import text

    looks = []
    faulty = Faulty(real_ledger)

    async def claim(*args, **options):
        looks.append(time.monotonic())
        return await real_ledger.claim(*args, **options)

    faulty.claim = claim
    await add(real_ledger, "one")
    async with real_ledger.transaction() as transaction:
        await transaction.connection.execute(text("SELECT * FROM redrive_task FOR UPDATE"))
        async with working(faulty, handlers_of(job=ignore), heard=heard):
            async with asyncio.timeout(60):
                while len(looks) < 12:
                    await asyncio.sleep(0.01)
            assert looks[11] - looks[0] > 0.1, "twelve looks without a pause"
            await transaction.connection.rollback()
            await heard.amount(AttemptEnded, 1)


@pytest.mark.parametrize(
    ("due", "hears_due", "gates", "seconds"),
    [
        (None, False, False, 7.0),
        (timedelta(0), True, False, 7.0),
        (ValueError("odd"), False, False, 7.0),
        (timedelta(seconds=9), False, False, 7.0),
        (timedelta(seconds=3), False, False, 3.0),
        (timedelta(microseconds=1), False, False, 0.001),
        (timedelta(0), False, False, 0.014),
        (None, False, True, 0.5),
        (timedelta(seconds=0.25), False, True, 0.25),
    ],
)
async def test_how_long_there_is_nothing_to_do(due, hears_due, gates, seconds):
    """Until the next task is due, at most the poll; where there are gates half a second at most, where the store tells of what is due the poll."""
    ledger = Due(due)
    worker = Worker(ledger, handlers_of(job=ignore), WorkerSettings(poll=timedelta(seconds=7)))
    worker._looks.in_use = gates
    waiter = SimpleNamespace(hears_due=hears_due)
    assert (await worker._idle_time(waiter)).total_seconds() == seconds
    assert ledger.asked == ([] if hears_due else [["job"]])


@pytest.mark.parametrize(
    ("due", "gates", "idle"),
    [(None, False, True), (timedelta(0), False, False), (timedelta(microseconds=1), False, True), (None, True, True)],
)
async def test_when_a_run_until_idle_is_over(due, gates, idle):
    """Nothing is due any more; where there are gates they are looked for first."""
    ledger = Due(due, gates=gates)
    worker = Worker(ledger, handlers_of(job=ignore))
    assert await worker._is_idle() is idle
    assert ledger.asked == [*(["discover"] if gates else []), ["job"]]


async def test_a_settler_that_is_behind_holds_up_the_next_claims(real_ledger, heard, monkeypatch):
    """What is not written yet is kept in memory: beyond some batches of it nothing more is claimed."""
    monkeypatch.setattr(module, "UNWRITTEN_BATCHES_MAX", 0)
    asked, spied = spying(real_ledger)
    behind, write = asyncio.Event(), asyncio.Event()
    written = Settler.written

    async def wait_until_written(settler):
        behind.set()
        await written(settler)

    async def settle(settlements, **options):
        await write.wait()
        return await real_ledger.settle(settlements, **options)

    monkeypatch.setattr(Settler, "written", wait_until_written)
    spied.settle = settle
    await add(real_ledger, "one")
    async with working(spied, handlers_of(job=ignore), heard=heard, poll=timedelta(milliseconds=10)):
        await behind.wait()
        await add(real_ledger, "two")
        before = len(asked)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(asked) == before
        assert (await real_ledger.get_by_key("two")).state is State.WAITING
        write.set()
        await heard.amount(AttemptEnded, 2)


async def test_a_blocked_loop_is_laid_to_all_where_nobody_knows(real_ledger, heard, gate):
    """The task of the loop that blocks may have been started by any of the handlers that run."""
    await add(real_ledger, "a")
    await add(real_ledger, "b", kind="pay")
    async with working(real_ledger, handlers_of(job=gate, pay=gate), heard=heard) as worker:
        await gate.until_started(2)
        assert worker._kinds_of(None) == ("job", "pay")
        gate.let_out()
        await heard.amount(AttemptEnded, 2)
        assert worker._kinds_of(None) == ()


async def test_what_a_worker_has_counted_names_its_ledger():
    """Whoever writes the counts down writes them for that ledger."""
    assert Worker(Due(None), handlers_of(job=ignore)).tally.take().ledger == "tasks"


async def test_a_worker_says_what_it_holds(real_ledger, heard, gate):
    """By kind, and since when; what it was made with, too."""
    await add(real_ledger, "a", "b")
    async with working(
        real_ledger, handlers_of(job=gate, pay=gate), heard=heard, concurrency=7, lease=SECOND * 9
    ) as worker:
        await gate.until_started(2)
        await add(real_ledger, "c", kind="pay")
        await gate.until_started(3)
        assert worker.holds() == {"job": 2, "pay": 1}
        since = worker.held_since()
        assert since == min(event.claim.claimed_at for event in heard.of(AttemptStarted))
        assert since < max(event.claim.claimed_at for event in heard.of(AttemptStarted))
        assert (worker.slots, worker.lease, worker.ledger_name) == (7, SECOND * 9, "redrive_task")
        gate.let_out()
        await heard.amount(AttemptEnded, 3)
        assert (worker.holds(), worker.held_since(), worker.running) == ({}, None, 0)


async def test_the_next_tasks_are_sent_for_while_these_start(real_ledger, heard, monkeypatch):
    """A claim that fills the batch is followed by the next before its tasks run, as far as there are slots for it."""
    monkeypatch.setattr(module, "AHEAD_FROM", 4)
    asked, seen = [], []
    spied = Faulty(real_ledger)

    async def claim(limit, lease, **options):
        asked.append(limit)
        return await real_ledger.claim(limit, lease, **options)

    async def handle(task):
        seen.append(list(asked))

    spied.claim = claim
    await add(real_ledger, *(f"k{number}" for number in range(4)))
    async with working(spied, handlers_of(job=handle), heard=heard, concurrency=8, batch=4):
        await heard.amount(AttemptEnded, 4)
    assert seen[0] == [4, 4], "the second was asked for before the first of the tasks ran"


@pytest.mark.parametrize("why", ["not full", "no slots", "suspects"])
async def test_nothing_is_sent_for_ahead_without_need(real_ledger, heard, monkeypatch, why):
    """A claim that came back with room left the ledger empty; with no slots, or with suspects, nothing more may come."""
    monkeypatch.setattr(module, "AHEAD_FROM", 4)
    asked, seen = [], []
    spied = Faulty(real_ledger)

    async def claim(limit, lease, **options):
        asked.append(limit)
        return await real_ledger.claim(limit, lease, **options)

    async def handle(task):
        seen.append(list(asked))

    spied.claim = claim
    if why == "suspects":
        await lose(real_ledger, "s")
    await add(real_ledger, *(f"k{number}" for number in range(3)))
    slots = {"not full": 12, "no slots": 7, "suspects": 8}[why]
    batch = {"not full": 5, "no slots": 4, "suspects": 4}[why]
    if why == "no slots":
        await add(real_ledger, "k3")
    async with working(spied, handlers_of(job=handle), heard=heard, concurrency=slots, batch=batch):
        await heard.amount(AttemptEnded, 4 if why != "not full" else 3)
    assert len(seen[0]) == 1


@pytest.mark.parametrize(("came_to", "told"), [("written", AttemptEnded), ("lost", SettleLost)])
async def test_what_a_transaction_came_to_is_told_with_its_ledger(heard, came_to, told):
    """Who watches several ledgers knows where it was, and what became of which claim."""
    run = run_of("one")
    settlement = decide(run.claim, Done(), STEADY)
    worker = Worker(Due(None), handlers_of(job=ignore), observers=[heard])

    async def ran(*_):
        return Ran(settlement, **{came_to: True})

    worker._runner = SimpleNamespace(run=ran)
    await worker._run_one(run)
    assert heard.events == [told("tasks", settlement)]


async def test_a_run_that_was_lost_is_told_as_given_back(heard):
    """It was cut off, or had not begun as a suspect: nothing is written, since somebody else owns the task."""
    cut, suspect = run_of("cut", lost=True), run_of("suspect", lost=True)
    worker = Worker(Due(None), handlers_of(job=ignore), observers=[heard])

    async def ran(*_):
        raise asyncio.CancelledError

    worker._runner = SimpleNamespace(run=ran)
    await worker._run_one(cut)
    await worker._run_alone(suspect)
    assert [(event.ledger, event.settlement.claim, event.settlement.outcome) for event in heard.of(SettleLost)] == [
        ("tasks", cut.claim, "released"),
        ("tasks", suspect.claim, "released"),
    ]
    assert worker._settler.unwritten == 0


async def test_a_run_that_begins_is_told_with_its_ledger(real_ledger, heard):
    """Before its handler is called."""
    await add(real_ledger, "one")
    async with working(real_ledger, handlers_of(job=ignore), heard=heard):
        [ended] = await heard.amount(AttemptEnded, 1)
    assert heard.of(AttemptStarted) == [AttemptStarted("redrive_task", ended.settlement.claim)]


def sends(worker):
    """Keep what the worker sends for."""
    sent = []
    worker._asks = SimpleNamespace(send=lambda limit, kinds, **options: sent.append((limit, kinds, options)))
    return sent


async def test_the_reserve_is_for_tenants_that_have_less_than_their_share():
    """Of the worker's own kinds, and no more than its part."""
    worker = Worker(Due(None), handlers_of(job=ignore), WorkerSettings(concurrency=16))
    sent = sends(worker)
    hog = run_of("hog")
    hog.claim = hog.claim._replace(task=hog.claim.task._replace(tenant="hog"))
    worker._running |= {HeldRun(hog.claim, 0.0, hog.handler) for _ in range(16)}
    await worker._ask_for_reserve()
    assert sent == [(2, ["job"], {"busy": ["hog"]})]


async def test_what_is_sent_for_ahead_is_of_the_kinds_that_are_known():
    """As much as there are slots for beside those that start now."""
    worker = Worker(Due(None), handlers_of(job=ignore), WorkerSettings(concurrency=12, batch=5))
    sent = sends(worker)
    claims = [run_of(f"k{number}").claim for number in range(5)]
    worker._ask_ahead(claims)
    assert sent == [], "kinds that have to be looked up are for the next turn"
    await worker._kinds.to_claim()
    worker._ask_ahead(claims)
    assert sent == [(5, ["job"], {"gates": False})]


async def test_each_try_in_an_outage_waits_longer(real_ledger, heard, monkeypatch):
    """And once the ledger has answered, the next outage begins with a short wait again."""
    faulty, tries = Faulty(real_ledger), []
    fails = iter([True, True, True, False, True, False])

    async def claim(*given, **options):
        if next(fails, False):
            raise LedgerAwayError("gone fishing")
        return await real_ledger.claim(*given, **options)

    async def pause(often):
        tries.append(often)

    faulty.claim = claim
    monkeypatch.setattr(Patience, "pause", staticmethod(pause))
    await add(real_ledger, "one")
    async with working(faulty, handlers_of(job=ignore), heard=heard, poll=timedelta(milliseconds=10)):
        await heard.amount(LedgerBack, 2)
    assert tries == [1, 2, 3, 1]
    assert "gone fishing" in heard.of(LedgerAway)[0].error
