"""Leases: what a worker holds is kept alive as long as it runs or is not written, and what it has lost is stopped."""

import asyncio
import math
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.states import State
from redrive.core.task import ClaimLocked, ClaimLost
from redrive.engine import keeper as keeper_module
from redrive.engine import leases as module
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.held import Held
from redrive.engine.leases import Leases
from redrive.engine.patience import Patience
from redrive.errors import LedgerAwayError
from redrive.events import (
    AttemptEnded,
    LedgerAway,
    SettleFailed,
    SettleLost,
)
from tests.engine.workbench import NEVER, SECOND, STEADY, Due, Faulty, add, handlers_of, run_of, steal, working


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


class Extends(Due):
    """A ledger that keeps what it is asked to extend, and answers that all of it is held, but for what is locked or lost."""

    def __init__(self, **rest):
        super().__init__(None)
        self.rest = rest
        self.told = []
        self.written = set()

    async def extend(self, claims, lease):
        self.asked.append(([claim.task.key for claim in claims], lease))
        return [self.rest[claim.task.key](claim) for claim in claims if claim.task.key in self.rest]

    async def settled_by(self, lost, worker):
        self.told.append(([claim.task.key for claim in lost], worker))
        return [claim for claim in lost if claim.task.key in self.written]


def leases_of(ledger, *running, lease=NEVER, batch=100):
    """The leases of a worker that runs these, and has written all else."""
    patience, settler = Patience("tasks", lambda events: None), SimpleNamespace(claims=[])
    return Leases(ledger, "w", running, settler, patience, lease=lease, batch=batch)


async def in_rounds(monkeypatch, amount, leases):
    """Let it come round so often, without waiting; how long each of its pauses would have been."""
    real, pauses = asyncio.sleep, []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) > amount:
            raise asyncio.CancelledError
        await real(0)

    with monkeypatch.context() as patched, pytest.raises(asyncio.CancelledError):
        patched.setattr(module.asyncio, "sleep", sleep)
        await leases.run()
    return pauses


async def test_a_claim_is_extended_at_half_time(monkeypatch):
    """Once, by the whole lease, and again when the next half is over; what is lost is not. The worker looks four times in each half."""
    ledger, now = Extends(), time.monotonic()
    old, young, lost = run_of("old"), run_of("young", at=now), run_of("lost", lost=True)
    leases = leases_of(ledger, old, young, lost, lease=NEVER)
    assert await in_rounds(monkeypatch, 5, leases) == [450.0] * 6
    assert ledger.asked == [(["old"], NEVER)]
    assert old.extended_at >= now == young.extended_at
    assert lost.extended_at == -math.inf
    young.extended_at = time.monotonic() - 1801
    await in_rounds(monkeypatch, 2, leases)
    assert ledger.asked[1:] == [(["young"], NEVER)]


async def test_claims_are_extended_in_batches(monkeypatch):
    """However many are held, one statement is for so many as are claimed in one."""
    ledger = Extends()
    await in_rounds(monkeypatch, 1, leases_of(ledger, *(run_of(f"k{number}") for number in range(5)), batch=2))
    assert [len(keys) for keys, _ in ledger.asked] == [2, 2, 1]
    assert len({key for keys, _ in ledger.asked for key in keys}) == 5


async def test_what_is_locked_is_extended_soon_and_what_is_lost_is_stopped(monkeypatch):
    """A row that somebody has locked is tried in the next round; a lost run is cancelled, and not asked for again."""
    ledger = Extends(locked=ClaimLocked, gone=ClaimLost)
    locked, gone = run_of("locked"), run_of("gone")
    await in_rounds(monkeypatch, 3, leases_of(ledger, locked, gone))
    assert sorted(ledger.asked[0][0]) == ["gone", "locked"]
    assert [keys for keys, _ in ledger.asked[1:]] == [["locked"]] * 2
    assert (gone.lost, gone.stopped, locked.lost, locked.stopped) == (True, True, False, False)
    assert locked.extended_at == -math.inf


async def test_what_is_not_written_is_extended_when_it_comes_round_again(monkeypatch):
    """What has just ended is mostly written by then, and costs nothing; what is still not, is held for as long as that takes."""
    ledger, rounds = Extends(), []
    leases = leases_of(ledger)

    def monotonic():
        return NEVER.total_seconds() / 8 * len(rounds)

    def claims():
        rounds.append(len(ledger.asked))
        return [run_of("ended").claim]

    leases._settler = type("Settler", (), {"claims": property(lambda _: claims())})()
    monkeypatch.setattr(module.time, "monotonic", monotonic)
    await in_rounds(monkeypatch, 8, leases)
    assert rounds == [0, 0, 1, 1, 1, 1, 1, 2]


async def test_what_was_written_meanwhile_or_has_ended_is_not_stopped(monkeypatch):
    """The fence is gone because the run was written by its own transaction; and what has ended cannot be stopped any more."""
    ledger = Extends(written=ClaimLost, held=ClaimLost, locked=ClaimLocked)
    ledger.written = {"written"}
    written, locked = run_of("written"), run_of("locked")
    leases = leases_of(ledger, written, locked)
    leases._settler.claims = [run_of("held").claim]
    now = time.monotonic()
    monkeypatch.setattr(module, "Held", lambda claim, _: Held(claim, -math.inf))
    await in_rounds(monkeypatch, 1, leases)
    [(lost, worker)] = ledger.told
    assert (sorted(lost), worker) == (["held", "written"], "w")
    assert (written.lost, written.stopped) == (False, False)
    assert written.extended_at >= now


async def test_a_run_that_ends_while_it_is_extended_is_not_stopped(monkeypatch):
    """Its claim is gone because it was settled: that is its end, and no loss."""
    running = [run_of("ended")]

    class Ends(Extends):
        async def extend(self, claims, lease):
            left.append(running.pop())
            return await super().extend(claims, lease)

    left = []
    leases = leases_of(Ends(ended=ClaimLost))
    leases._running = running
    await in_rounds(monkeypatch, 1, leases)
    [ended] = left
    assert (ended.lost, ended.stopped) == (False, False)
