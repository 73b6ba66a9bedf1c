"""Tasks whose last run was lost with its worker run again alone."""

import asyncio
import math

from redrive.core.states import State
from redrive.engine import keeper as keeper_module
from redrive.engine.worker import Worker
from redrive.events import (
    AttemptEnded,
    AttemptStarted,
    SettleLost,
)
from tests.engine.workbench import AT_ONCE, SECOND, Due, add, handlers_of, ignore, lose, run_of, steal, working


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


class Silent(Due):
    """A ledger that never answers what fence a run alone has."""

    async def run_alone(self, claim):
        await asyncio.Event().wait()


async def test_a_suspect_whose_fence_is_asked_for_is_not_extended():
    """Which of its two fences the row has is not known until then: extended by the wrong one it would pass for lost."""
    worker = Worker(Silent(None), handlers_of(job=ignore))
    suspect = run_of("s")
    fencing = await worker._fence_alone(suspect)
    assert suspect.extended_at == math.inf
    assert await worker._fence_alone(suspect) is fencing, "it is asked for once"
    fencing.cancel()
