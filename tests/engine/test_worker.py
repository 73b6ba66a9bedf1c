"""The worker, with real time: signals instead of sleeps, faults only where a real ledger cannot have them."""

import asyncio
import math
import os
import socket
import threading
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.durations import ZERO
from redrive.core.jitter import none
from redrive.core.outcome import LeaseExpired
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Abandoned, ClaimLocked, ClaimLost
from redrive.engine import keeper as keeper_module
from redrive.engine import watchdog
from redrive.engine import worker as module
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.settler import Settler
from redrive.engine.worker import Worker, WorkerSettings, worker_name
from redrive.errors import LedgerAwayError, SettingsError
from redrive.events import (
    AttemptEnded,
    AttemptStarted,
    LedgerAway,
    LedgerBack,
    LoopBlocked,
    SettleFailed,
    SettleLost,
    ThreadsLeft,
)
from redrive.ledgers.open import open_database, own_ledger
from tests.core.test_decide import claim_of
from tests.engine.workbench import STEADY, Faulty, add, handlers_of, ignore, working

SECOND = timedelta(seconds=1)
NEVER = timedelta(hours=1)
"""A poll for which no test waits."""
AT_ONCE = Policy(Fixed(ZERO), retries=2, jitter=none)


class Gate:
    """A handler that shows who is inside and lets them out one by one, or all."""

    def __init__(self):
        self.inside = {}
        self.most = 0
        self.started = []
        self.cancelled = []
        self._changed = asyncio.Event()

    async def __call__(self, task):
        self.inside[task.key] = out = asyncio.Event()
        self.started.append(task.key)
        self.most = max(self.most, len(self.inside))
        self._changed.set()
        try:
            await out.wait()
        except asyncio.CancelledError:
            self.cancelled.append(task.key)
            raise
        finally:
            del self.inside[task.key]

    def let_out(self, *keys):
        for key in keys or list(self.inside):
            self.inside[key].set()

    async def until_started(self, amount):
        async with asyncio.timeout(60):
            while len(self.started) < amount:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def gate():
    return Gate()


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


def spying(ledger):
    """How much each claim asks for, and the ledger that it must go through to be told."""
    asked, spied = [], Faulty(ledger)

    async def claim(limit, lease, **options):
        asked.append(limit)
        return await ledger.claim(limit, lease, **options)

    spied.claim = claim
    return asked, spied


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


# --- leases -----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
async def test_leases_are_extended_while_a_handler_runs(real_ledger, heard, gate, monkeypatch):
    """A handler may take several leases long: it keeps its claim, and nobody charges it."""
    monkeypatch.setattr(keeper_module, "EVERY_SECONDS", 0.05)
    [id_] = await add(real_ledger, "long")
    async with working(real_ledger, handlers_of(job=gate), heard=heard, lease=SECOND):
        await gate.until_started(1)
        first = (await real_ledger.get(id_)).lease_until
        async with asyncio.timeout(60):
            # Held for more than a lease: only time itself can show that it is extended.
            while (held := await real_ledger.get(id_)).lease_until - first <= SECOND:
                await asyncio.sleep(0.05)
        assert held.state is State.CLAIMED
        gate.let_out()
        [ended] = await heard.amount(AttemptEnded, 1)
    assert ended.settlement.outcome == "done"
    assert gate.started == ["long"]


async def test_what_is_finished_and_not_written_is_kept_alive(real_ledger, heard, monkeypatch):
    """A settlement that the ledger does not take keeps its claim for many leases: its task is not run again."""
    monkeypatch.setattr(keeper_module, "EVERY_SECONDS", 0.05)
    faulty, runs, refused = Faulty(real_ledger), [], asyncio.Event()

    async def settle(settlements, **options):
        if not refused.is_set():
            raise ValueError("not now")
        return await real_ledger.settle(settlements, **options)

    faulty.settle = settle
    [id_] = await add(real_ledger, "finished")
    async with working(faulty, handlers_of(job=lambda task: runs.append(task.key)), heard=heard, lease=SECOND):
        await heard.amount(SettleFailed, 1)
        first = (await real_ledger.get(id_)).lease_until
        async with asyncio.timeout(60):
            # Held for more than a lease: only time itself can show that it is extended.
            while (await real_ledger.get(id_)).lease_until - first <= SECOND:
                await asyncio.sleep(0.05)
        refused.set()
        [ended] = await heard.amount(AttemptEnded, 1)
    assert (ended.settlement.outcome, runs) == ("done", ["finished"])


@pytest.mark.every_store
async def test_a_locked_row_is_not_a_lost_claim(real_ledger, heard, gate):
    """A run whose lease cannot be extended because its row is locked goes on, and is tried again soon."""
    faulty, asked = Faulty(real_ledger), asyncio.Event()
    locked = []

    async def extend(claims, lease):
        if len(locked) == 3:
            asked.set()
            return await real_ledger.extend(claims, lease)
        locked.append(claims)
        return [ClaimLocked(claim) for claim in claims]

    faulty.extend = extend
    await add(real_ledger, "locked")
    async with working(faulty, handlers_of(job=gate), heard=heard, lease=timedelta(seconds=2)), asyncio.timeout(60):
        await asked.wait()
        gate.let_out()
        [ended] = await heard.amount(AttemptEnded, 1)
    assert (ended.settlement.outcome, gate.cancelled) == ("done", [])


async def test_a_run_that_was_just_written_is_not_lost(real_ledger, heard):
    """A transactional handler commits while its lease is being extended: the fence is gone because it was written."""
    faulty = Faulty(real_ledger)
    asked, committed, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def transaction():
        async with real_ledger.transaction() as opened:
            yield opened
        committed.set()
        await again.wait()  # the run has not ended yet when the extension is answered

    async def extend(claims, lease):
        if asked.is_set():
            again.set()
        asked.set()
        await committed.wait()
        return await real_ledger.extend(claims, lease)

    async def handle(task, context):
        await asked.wait()

    faulty.transaction, faulty.extend = transaction, extend
    handlers = Handlers()
    handlers.add(make_handler("job", handle, STEADY, transactional=True))
    [id_] = await add(real_ledger, "long")
    async with working(faulty, handlers, heard=heard, lease=SECOND):
        [ended] = await heard.amount(AttemptEnded, 1)
    assert ended.settlement.outcome == "done"
    assert heard.of(SettleLost) == []
    assert [one.outcome for one in await real_ledger.attempts(id_)] == ["done"]


@pytest.mark.every_store
async def test_lost_lease_cancels_the_run(real_ledger, heard, gate):
    """A worker that learns that it lost a claim stops the handler, writes nothing and says so."""
    [id_] = await add(real_ledger, "stolen")
    async with working(real_ledger, handlers_of(job=gate), heard=heard, lease=SECOND) as worker:
        await gate.until_started(1)
        await real_ledger.database.write(steal)
        [lost] = await heard.amount(SettleLost, 1)
        assert gate.cancelled == ["stolen"]
        assert lost.settlement.claim.task.id == id_
        assert worker.running == 0
    assert await real_ledger.attempts(id_) == []


def steal(connection):
    """Give every held row a fence that nobody has."""
    from uuid import uuid4

    from redrive.ledgers.sql import schema

    connection.execute(schema.task.update().where(schema.task.c.state == "claimed").values(claim_id=uuid4()))


async def test_the_next_run_of_a_task_may_overlap_a_lost_one(real_ledger, heard):
    """A run that ignores its cancellation does not take the next run's slot or lease away when it ends at last."""
    stubborn_out, runs = asyncio.Event(), []
    second = asyncio.Event()
    second_out = asyncio.Event()

    async def handle(task):
        runs.append(task.key)
        if len(runs) == 1:
            while not stubborn_out.is_set():
                try:
                    await stubborn_out.wait()
                except asyncio.CancelledError:
                    continue
        else:
            second.set()
            await second_out.wait()

    await add(real_ledger, "one")
    async with working(real_ledger, handlers_of(job=handle), heard=heard, lease=SECOND) as worker, asyncio.timeout(60):
        while not runs:
            await asyncio.sleep(0.005)
        await real_ledger.database.write(give_back)
        real_ledger.database.wake(real_ledger.name)
        await second.wait()
        assert worker.running == 2
        stubborn_out.set()
        await heard.amount(SettleLost, 1)
        assert worker.running == 1
        second_out.set()
        [ended] = await heard.amount(AttemptEnded, 1)
    assert ended.settlement.outcome == "done"


def give_back(connection):
    """Make every held row wait again, as if its lease had run out and had been settled long ago."""
    from redrive.ledgers.sql import schema

    held = schema.task.update().where(schema.task.c.state == "claimed")
    connection.execute(held.values(state="waiting", lease_until=None, claim_id=None, claimed_at=None))


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


# --- suspects ---------------------------------------------------------------------------------------------------------


async def lose(ledger, *keys, kind="job"):
    """Tasks whose last run was lost with its worker; their ids."""
    ids = await add(ledger, *keys, kind=kind)
    claims = await ledger.claim(len(keys), SECOND, kinds=[kind])
    lost = [claim._replace(abandoned=Abandoned(claim_id=None, claimed_at=None)) for claim in claims]
    assert await ledger.settle([decide(one, LeaseExpired(), STEADY) for one in lost], worker="lost") == []
    return ids


async def test_suspects_run_alone_one_after_the_other(real_ledger, heard, gate):
    """What runs may end, then each suspect has the worker for itself; nothing is claimed until all of them ended."""
    await lose(real_ledger, "s1", "s2")
    await add(real_ledger, "healthy")
    async with working(real_ledger, handlers_of(job=gate), heard=heard) as worker:
        await gate.until_started(1)
        assert gate.started == ["healthy"]
        await add(real_ledger, "later")
        gate.let_out()
        for suspects in (1, 2):
            await gate.until_started(1 + suspects)
            [suspect] = gate.inside
            assert suspect in ("s1", "s2")
            assert worker.running == 1
            assert (await real_ledger.get_by_key("later")).state is State.WAITING
            gate.let_out()
        await gate.until_started(4)
        gate.let_out()
        await heard.amount(AttemptEnded, 4)
    assert gate.most == 1
    assert gate.started[-1] == "later"
    assert {event.settlement.outcome for event in heard.of(AttemptEnded)} == {"done"}


async def test_suspects_in_line_keep_their_leases(real_ledger, heard, gate, monkeypatch):
    """While one takes longer than a lease the others are held, and none is run by anybody else or charged."""
    monkeypatch.setattr(keeper_module, "EVERY_SECONDS", 0.05)
    ids = await lose(real_ledger, "s1", "s2", "s3")
    async with working(real_ledger, handlers_of(job=gate), heard=heard, lease=SECOND):
        await gate.until_started(1)
        first = min([(await real_ledger.get(id_)).lease_until for id_ in ids])
        async with asyncio.timeout(60):
            # Held for more than a lease: only time itself can show that they are extended.
            while min([(await real_ledger.get(id_)).lease_until for id_ in ids]) - first <= SECOND:
                await asyncio.sleep(0.05)
        for started in (1, 2, 3):
            await gate.until_started(started)
            gate.let_out()
        await heard.amount(AttemptEnded, 3)
    assert gate.most == 1
    assert sorted(gate.started) == ["s1", "s2", "s3"]


async def test_a_suspect_that_fails_is_no_suspect_any_more(real_ledger, heard):
    """It has come to an end, so its next run is like any other's."""

    async def fail(task):
        raise ValueError("odd")

    await lose(real_ledger, "one")
    async with working(real_ledger, handlers_of(policy=AT_ONCE, job=fail), heard=heard):
        await heard.amount(AttemptEnded, 3)
    assert [event.claim.suspect for event in heard.of(AttemptStarted)] == [True, False, False]


async def test_a_suspect_that_was_lost_in_line_is_not_run(real_ledger, heard, gate):
    """Somebody else holds it by now: it is dropped, and the next one runs."""
    await lose(real_ledger, "s1", "s2")
    async with working(real_ledger, handlers_of(job=gate), heard=heard):
        await gate.until_started(1)
        await real_ledger.database.write(steal)
        gate.let_out()
        await heard.amount(SettleLost, 2)
    assert len(gate.started) == 1


async def test_stop_releases_suspects_in_line(real_ledger, heard, gate):
    """A worker that stops gives back those that it has not run: uncharged, and suspects as before."""
    await lose(real_ledger, "s1", "s2", "s3")
    async with working(real_ledger, handlers_of(job=gate), heard=heard) as worker:
        await gate.until_started(1)
        worker.stop()
        await heard.amount(AttemptEnded, 2)
        gate.let_out()
    assert len(gate.started) == 1
    assert [claim.suspect for claim in await real_ledger.claim(9, SECOND)] == [True, True]


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_stop_waits_for_running_handlers(real_ledger, heard, gate):
    """Within the grace handlers end by themselves and are settled; nothing new is claimed."""
    running, waiting = (await add(real_ledger, "running", "waiting"))[:2]
    async with working(real_ledger, handlers_of(job=gate), heard=heard, concurrency=1) as worker:
        await gate.until_started(1)
        worker.stop()
        await asyncio.sleep(0.05)
        gate.let_out()
    assert len(gate.started) == 1
    by_key = {key: (await real_ledger.get_by_key(key)).state for key in ("running", "waiting")}
    assert by_key[gate.started[0]] is State.DONE
    assert sorted(by_key.values()) == [State.DONE, State.WAITING]
    assert not gate.cancelled
    assert {running, waiting} == {(await real_ledger.get_by_key(key)).id for key in by_key}


async def test_stop_releases_the_rest_uncharged(real_ledger, heard, gate):
    """What is not finished after the grace goes back: due at once, no failure, its attempt says released."""
    ids = await add(real_ledger, "a", "b", "c")
    async with working(real_ledger, handlers_of(job=gate), heard=heard, grace=ZERO) as worker:
        await gate.until_started(3)
        worker.stop()
    assert sorted(gate.cancelled) == ["a", "b", "c"]
    for id_ in ids:
        task = await real_ledger.get(id_)
        assert (task.state, task.failures) == (State.WAITING, 0)
        assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["released"]
    assert len(await real_ledger.claim(3, SECOND)) == 3


async def test_stuck_handlers_are_released_all_the_same(real_ledger, heard, monkeypatch):
    """A handler that ignores its cancellation does not keep the worker from ending, nor its task from going back."""
    monkeypatch.setattr(module, "CANCEL_PATIENCE_SECONDS", 0.5)
    out = asyncio.Event()
    inside = asyncio.Event()

    async def stuck(task):
        inside.set()
        while not out.is_set():
            try:
                await out.wait()
            except asyncio.CancelledError:
                continue

    [id_] = await add(real_ledger, "stuck")
    async with working(real_ledger, handlers_of(job=stuck), heard=heard, grace=ZERO) as worker:
        await inside.wait()
        worker.stop()
    out.set()
    await asyncio.sleep(0)
    task = await real_ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 0)


class ThreadGate:
    """A plain handler that stays in its thread until it is let out."""

    def __init__(self):
        self.out = threading.Event()
        self.started = []
        self._loop = asyncio.get_running_loop()
        self._inside = asyncio.Event()

    def __call__(self, task):
        self.started.append(task.key)
        self._loop.call_soon_threadsafe(self._inside.set)
        assert self.out.wait(60)

    async def until_inside(self):
        async with asyncio.timeout(60):
            await self._inside.wait()


async def test_a_thread_that_outlives_the_grace_keeps_its_claim(real_ledger, heard):
    """It is not released but extended until the thread ends, and settled as it ended: nobody can run it a second time."""
    gate = ThreadGate()
    [id_] = await add(real_ledger, "one")
    worker = Worker(real_ledger, handlers_of(job=gate), WorkerSettings(grace=ZERO, lease=SECOND), observers=[heard])
    running = asyncio.create_task(worker.run())
    await gate.until_inside()
    worker.stop()
    [left] = await heard.amount(ThreadsLeft, 1)
    assert (left.kinds, left.amount) == (("job",), 1)
    first = (await real_ledger.get(id_)).lease_until
    async with asyncio.timeout(60):
        # Held for more than a lease: only time itself can show that it is extended.
        while (held := await real_ledger.get(id_)).lease_until - first <= SECOND:
            assert held.state is State.CLAIMED
            await asyncio.sleep(0.05)
    assert not running.done()
    gate.out.set()
    await running
    assert gate.started == ["one"]
    assert (await real_ledger.get(id_)).state is State.DONE
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["done"]


async def test_a_process_that_exits_does_not_wait_for_threads(real_ledger, heard):
    """With `then_exit` the worker ends after the grace; the claim is kept, and comes back by its lease."""
    gate = ThreadGate()
    [id_] = await add(real_ledger, "one")
    worker = Worker(real_ledger, handlers_of(job=gate), WorkerSettings(grace=ZERO), observers=[heard])
    running = asyncio.create_task(worker.run(then_exit=True))
    await gate.until_inside()
    worker.stop()
    async with asyncio.timeout(60):
        await running
    assert len(heard.of(ThreadsLeft)) == 1
    assert (await real_ledger.get(id_)).state is State.CLAIMED
    gate.out.set()


@pytest.mark.every_store
async def test_stop_gives_back_a_claim_under_way(real_ledger):
    """Tasks that are being claimed while the worker is stopped are not held until their lease ends."""
    faulty = Faulty(real_ledger)
    claiming, answer = asyncio.Event(), asyncio.Event()

    async def claim(limit, lease, **options):
        claims = await real_ledger.claim(limit, lease, **options)
        if claims:
            claiming.set()
            await answer.wait()
        return claims

    faulty.claim = claim
    started = []
    [id_] = await add(real_ledger, "one")
    worker = Worker(faulty, handlers_of(job=started.append), WorkerSettings(grace=SECOND))
    running = asyncio.create_task(worker.run())
    await claiming.wait()
    worker.stop()
    await asyncio.sleep(0)
    answer.set()
    await running
    assert started == []
    task = await real_ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 0)
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["released"]


@pytest.mark.every_store
async def test_stop_gives_back_a_claim_whose_answer_is_lost(real_ledger):
    """Also what a claim took whose answer never came goes back uncharged when the worker stops."""
    faulty = Faulty(real_ledger)
    claiming, answer = asyncio.Event(), asyncio.Event()

    async def claim(limit, lease, **options):
        claims = await real_ledger.claim(limit, lease, **options)
        if claims:
            claiming.set()
            await answer.wait()
            raise LedgerAwayError("the answer was lost")
        return claims

    faulty.claim = claim
    [id_] = await add(real_ledger, "one")
    worker = Worker(faulty, handlers_of(job=ignore), WorkerSettings(grace=SECOND))
    running = asyncio.create_task(worker.run())
    await claiming.wait()
    worker.stop()
    await asyncio.sleep(0)
    answer.set()
    await running
    task = await real_ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 0)
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["released"]


async def test_stop_before_the_start(real_ledger):
    """A worker that was stopped before it ran comes back and claims nothing to keep."""
    [id_] = await add(real_ledger, "one")
    worker = Worker(real_ledger, handlers_of(job=ignore))
    worker.stop()
    async with asyncio.timeout(60):
        await worker.run()
    assert (await real_ledger.get(id_)).state is not State.CLAIMED


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


ONCE = Policy(attempts=1)


def losing_answers(ledger, lost=(LedgerAwayError("the answer was lost"),), *, recalls=()):
    """A ledger that takes tasks and does not say so, and then raises these when it is asked what it took."""
    faulty, lost, recalls = Faulty(ledger), list(lost), list(recalls)

    async def claim(limit, lease, **options):
        claims = await ledger.claim(limit, lease, **options)
        if claims and lost:
            raise lost.pop()
        return claims

    async def recall(fence, lease):
        if recalls:
            raise recalls.pop()
        return await ledger.recall(fence, lease)

    faulty.claim, faulty.recall = claim, recall
    return faulty


@pytest.mark.parametrize("error", [LedgerAwayError("cut"), OSError("odd")], ids=["away", "odd"])
async def test_a_claim_whose_answer_is_lost_runs_all_the_same(real_ledger, heard, error):
    """The worker asks for what it holds under its fence: nothing is charged, though the policy allows one try only."""
    ids = await add(real_ledger, "a", "b")
    faulty = losing_answers(real_ledger, [error])
    async with working(faulty, handlers_of(policy=ONCE, job=ignore), heard=heard, lease=SECOND):
        ended = await heard.amount(AttemptEnded, 2)
        await add(real_ledger, "next")
        await heard.amount(AttemptEnded, 3)
    assert [event.settlement.outcome for event in ended] == ["done", "done"]
    assert [len(await real_ledger.attempts(id_)) for id_ in ids] == [1, 1]


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


async def test_the_question_survives_an_outage(real_ledger, heard):
    """While the ledger is away the worker goes on asking for what it may hold, and claims nothing before it knows."""
    faulty = losing_answers(real_ledger, recalls=[LedgerAwayError("still"), LedgerAwayError("away")])
    [id_] = await add(real_ledger, "one")
    async with working(faulty, handlers_of(policy=ONCE, job=ignore), heard=heard):
        await heard.amount(AttemptEnded, 1)
    assert (await real_ledger.get(id_)).state is State.DONE


async def test_a_question_that_cannot_be_answered_stops_nothing(real_ledger, heard):
    """Where the ledger cannot say what it holds, the lease brings it back, and other work goes on."""
    faulty = losing_answers(real_ledger, recalls=[ValueError("cannot be read")])
    await add(real_ledger, "one")
    async with working(faulty, handlers_of(job=ignore), heard=heard) as worker:
        await add(real_ledger, "two")
        [ended] = await heard.amount(AttemptEnded, 1)
        assert worker.running == 0
    assert ended.settlement.claim.task.key == "two"


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


async def test_a_broken_loop_does_not_pass_in_silence(real_ledger, gate):
    """If the worker itself has a fault, it releases what runs and raises, instead of idling for ever."""
    faulty = Faulty(real_ledger)

    async def claim(*args, **options):
        if gate.started:
            raise MemoryBroken
        return await real_ledger.claim(*args, **options)

    class MemoryBroken(BaseException):
        pass

    faulty.claim = claim
    [id_] = await add(real_ledger, "one")
    worker = Worker(faulty, handlers_of(job=gate), WorkerSettings(grace=ZERO))
    with pytest.raises(MemoryBroken):
        async with asyncio.timeout(60):
            await worker.run()
    assert (await real_ledger.get(id_)).state is State.WAITING


# --- waking up --------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
async def test_the_next_due_time_needs_no_poll(real_ledger, heard):
    """A task that is due in 300 ms starts when it is due, and not at the poll, for which nobody here would wait."""
    started = []
    async with working(
        real_ledger,
        handlers_of(job=lambda task: started.append(time.monotonic())),
        heard=heard,
        poll=NEVER,
    ):
        added = time.monotonic()
        await add(real_ledger, "soon", delay=timedelta(milliseconds=300))
        await heard.amount(AttemptEnded, 1)
    assert started[0] - added >= 0.29
    [ended] = heard.of(AttemptEnded)
    claim = ended.settlement.claim
    assert claim.claimed_at >= claim.task.due_at


@pytest.mark.parametrize("seconds", [0, 0.2], ids=["fails at once", "fails later"])
async def test_a_retry_needs_no_poll(real_ledger, heard, seconds):
    """The second try follows its delay and not the poll, also where the worker was idle before the first one failed."""
    policy = Policy(Fixed(timedelta(milliseconds=200)), retries=1, jitter=none)

    async def handle(task, context):
        if context.attempt == 1:
            await asyncio.sleep(seconds)
            raise ValueError("odd")

    await add(real_ledger, "one")
    async with working(real_ledger, handlers_of(policy=policy, job=handle), heard=heard, poll=NEVER):
        _, second = await heard.amount(AttemptEnded, 2)
    claim = second.settlement.claim
    assert claim.claimed_at >= claim.task.due_at


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


class Due:
    """A ledger that says when the next task is due, or raises."""

    name = "tasks"
    transactions_max = 9
    effects = None

    def __init__(self, due, *, gates=False):
        self.due = due
        self.gates = gates
        self.asked = []

    async def next_due(self, *, kinds):
        self.asked.append(kinds)
        if isinstance(self.due, Exception):
            raise self.due
        return self.due

    async def paused_kinds(self):
        return ()

    async def uses_gates(self, *, anew=False):
        return self.gates

    async def discover(self, *, lately=False):
        self.asked.append("discover")
        return 0


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


async def test_a_lease_that_cannot_be_extended_is_tried_again(real_ledger, heard, gate):
    """While the ledger is away the handler goes on, and nothing is lost if it is back before the lease ends."""
    faulty, away, extended = Faulty(real_ledger), [1, 1], asyncio.Event()

    async def extend(claims, lease):
        if away:
            away.pop()
            raise LedgerAwayError("gone")
        extended.set()
        return await real_ledger.extend(claims, lease)

    faulty.extend = extend
    await add(real_ledger, "one")
    async with working(faulty, handlers_of(job=gate), heard=heard, lease=timedelta(seconds=2), poll=NEVER):
        await gate.until_started(1)
        async with asyncio.timeout(60):
            await extended.wait()
        gate.let_out()
        [ended] = await heard.amount(AttemptEnded, 1)
    assert (ended.settlement.outcome, gate.cancelled) == ("done", [])
    assert "gone" in heard.of(LedgerAway)[0].error


async def test_a_worker_ends_though_nothing_can_be_written(real_ledger, heard, monkeypatch):
    """A ledger that stays away holds up no worker that stops: the lease brings back what was not written. Its threads end too."""
    monkeypatch.setattr(module, "CANCEL_PATIENCE_SECONDS", 0.05)
    faulty = Faulty(real_ledger)

    async def settle(*_arguments, **_options):
        raise LedgerAwayError("gone")

    faulty.settle = settle
    [id_] = await add(real_ledger, "one")
    async with working(faulty, handlers_of(job=ignore), heard=heard, grace=ZERO) as worker:
        await heard.amount(LedgerAway, 1)
    assert (await real_ledger.get(id_)).state is State.CLAIMED
    with pytest.raises(RuntimeError, match="shutdown"):
        worker._threads.submit(ignore, None)


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


class Extends(Due):
    """A ledger that keeps what it is asked to extend, and answers that all of it is held, but for what is locked or lost."""

    def __init__(self, **rest):
        super().__init__(None)
        self.rest = rest

    async def extend(self, claims, lease):
        self.asked.append(([claim.task.key for claim in claims], lease))
        return [self.rest[claim.task.key](claim) for claim in claims if claim.task.key in self.rest]

    async def settled_by(self, lost, worker):
        return []

    async def run_alone(self, claim):
        await asyncio.Event().wait()


def held(worker, key, **options):
    """A run that the worker holds, extended long ago unless another time is said."""
    claim = claim_of(key=key)
    one = module._Running(
        claim._replace(task=claim.task._replace(id=key)),
        options.get("at", -math.inf),
        make_handler("job", ignore, STEADY),
        lost=options.get("lost", False),
    )
    worker._running.add(one)
    return one


async def in_rounds(monkeypatch, amount, loop):
    """Let a loop of the worker come round so often, without waiting; how long each of its pauses would have been."""
    real, pauses = asyncio.sleep, []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) > amount:
            raise asyncio.CancelledError
        await real(0)

    with monkeypatch.context() as patched, pytest.raises(asyncio.CancelledError):
        patched.setattr(module.asyncio, "sleep", sleep)
        await loop
    return pauses


async def test_a_claim_is_extended_at_half_time(monkeypatch):
    """Once, by the whole lease, and again when the next half is over; what is lost is not. The worker looks four times in each half."""
    lease = timedelta(hours=1)
    ledger = Extends()
    worker = Worker(ledger, handlers_of(job=ignore), WorkerSettings(lease=lease))
    now = time.monotonic()
    old, young, lost = held(worker, "old"), held(worker, "young", at=now), held(worker, "lost", lost=True)
    pauses = await in_rounds(monkeypatch, 5, worker._extend_for_ever())
    assert pauses == [450.0] * 6
    assert ledger.asked == [(["old"], lease)]
    assert old.extended_at >= now == young.extended_at
    assert lost.extended_at == -math.inf
    young.extended_at = time.monotonic() - 1801
    await in_rounds(monkeypatch, 2, worker._extend_for_ever())
    assert ledger.asked[1:] == [(["young"], lease)]


async def test_claims_are_extended_in_batches(monkeypatch):
    """However many are held, one statement is for so many as are claimed in one."""
    ledger = Extends()
    worker = Worker(ledger, handlers_of(job=ignore), WorkerSettings(batch=2))
    for number in range(5):
        held(worker, f"k{number}")
    await in_rounds(monkeypatch, 1, worker._extend_for_ever())
    assert [len(keys) for keys, _ in ledger.asked] == [2, 2, 1]
    assert len({key for keys, _ in ledger.asked for key in keys}) == 5


async def test_what_is_locked_is_extended_soon_and_what_is_lost_is_stopped(monkeypatch):
    """A row that somebody has locked is tried in the next round; a lost run is cancelled, and not asked for again."""
    ledger = Extends(locked=ClaimLocked, gone=ClaimLost)
    worker = Worker(ledger, handlers_of(job=ignore), WorkerSettings(lease=timedelta(hours=1)))
    locked, gone = held(worker, "locked"), held(worker, "gone")
    await in_rounds(monkeypatch, 3, worker._extend_for_ever())
    assert sorted(ledger.asked[0][0]) == ["gone", "locked"]
    assert [keys for keys, _ in ledger.asked[1:]] == [["locked"]] * 2
    assert (gone.lost, gone.stopped, locked.lost, locked.stopped) == (True, True, False, False)
    assert locked.extended_at == -math.inf


async def test_a_suspect_whose_fence_is_asked_for_is_not_extended():
    """Which of its two fences the row has is not known until then: extended by the wrong one it would pass for lost."""
    worker = Worker(Extends(), handlers_of(job=ignore))
    suspect = held(worker, "s")
    fencing = await worker._fence_alone(suspect)
    assert suspect.extended_at == math.inf
    assert await worker._fence_alone(suspect) is fencing, "it is asked for once"
    fencing.cancel()


async def test_what_a_worker_has_counted_names_its_ledger():
    """Whoever writes the counts down writes them for that ledger."""
    assert Worker(Due(None), handlers_of(job=ignore)).tally.take().ledger == "tasks"


async def test_a_nap_ends_when_the_next_retry_is_due():
    """A worker that has written a retry itself looks again in time for it; a later one changes nothing."""
    worker = Worker(Due(None), handlers_of(job=ignore))
    async with asyncio.timeout(3600) as nap:
        worker._napping = nap
        worker._plan_retry(timedelta(seconds=60))
        ends = nap.when()
        assert ends <= asyncio.get_running_loop().time() + 60
        worker._plan_retry(timedelta(seconds=90))
        assert nap.when() == ends == worker._retry_at


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 10,000, not 0"),
        ({"concurrency": 10_001}, "concurrency must be a whole number from 1 to 10,000, not 10001"),
        ({"concurrency": True}, "concurrency must be a whole number from 1 to 10,000, not True"),
        ({"concurrency": 2.5}, "concurrency must be a whole number from 1 to 10,000, not 2.5"),
        ({"batch": 0}, "batch must be a whole number from 1 to 5,000, not 0"),
        ({"batch": 5_001}, "batch must be a whole number from 1 to 5,000, not 5001"),
        ({"lease": timedelta(milliseconds=999)}, "lease must be at least 1s, not 999ms"),
        ({"poll": timedelta(milliseconds=9)}, "poll must be at least 0.01s, not 9ms"),
        ({"prune_every": timedelta(milliseconds=999)}, "prune_every must be at least 1s, not 999ms"),
        ({"grace": timedelta(seconds=-1)}, "grace must"),
        ({"retention": {State.DONE: timedelta(days=-1)}}, "retention"),
        (
            {"retention": {State.WAITING: timedelta(days=1)}},
            "retention is for tasks that have ended, not for <State.WAITING: 'waiting'>",
        ),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong, said):
    """A setting that could not work is refused with its name and with what would."""
    with pytest.raises((SettingsError, ValueError)) as refused:
        WorkerSettings(**wrong)
    assert said in str(refused.value)


def test_settings_at_their_limits_are_accepted():
    """The least and the most that the refusals name are allowed, and a retention may be text."""
    least = WorkerSettings(
        concurrency=1, batch=1, lease=SECOND, poll=timedelta(milliseconds=10), grace=ZERO, prune_every=SECOND
    )
    assert (least.concurrency, least.batch, least.grace) == (1, 1, ZERO)
    most = WorkerSettings(concurrency=10_000, batch=5_000, retention={State.DONE: "7d"})
    assert (most.concurrency, most.batch, most.retention) == (10_000, 5_000, {State.DONE: timedelta(days=7)})


def test_worker_names_differ():
    """Two workers of one process have names of their own, which say where they run."""
    assert worker_name() != worker_name()
    assert Worker(Due(None), handlers_of(job=ignore), name="w7").name == "w7"
    host, pid, letters = Worker(Due(None), handlers_of(job=ignore)).name.rsplit(":", 2)
    assert (host, pid, len(letters)) == (socket.gethostname()[:40], str(os.getpid()), 6)


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
