"""Settling in groups."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done, LeaseExpired
from redrive.core.states import State
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import LedgerAwayError
from redrive.events import AttemptEnded, LedgerAway, LedgerBack, SettleFailed, SettleLost
from tests.engine.workbench import STEADY, Faulty, add

LEASE = timedelta(seconds=30)
pytestmark = pytest.mark.parametrize("store", ["sqlite"])


class Recorded(Faulty):
    """A ledger that keeps the sizes of the groups it was given and may be made to wait or to fail."""

    def __init__(self, ledger):
        super().__init__(ledger)
        self.groups = []
        self.open = asyncio.Event()
        self.open.set()
        self.begun = asyncio.Event()
        self.poison = None
        self.away = 0

    async def settle(self, settlements, **options):
        self.groups.append([one.claim.task.key for one in settlements])
        self.begun.set()
        await self.open.wait()
        if self.away:
            self.away -= 1
            raise LedgerAwayError("gone")
        if any(one.claim.task.key == self.poison for one in settlements):
            raise ValueError("cannot be written")
        return await self.real.settle(settlements, **options)


@pytest.fixture
def recorded(ledger):
    return Recorded(ledger)


def make_settler(ledger, heard, batch=100):
    return Settler(ledger, "tester", Patience(ledger.name, heard.tell), heard.tell, batch=batch)


@asynccontextmanager
async def running(settler):
    task = asyncio.create_task(settler.run())
    try:
        async with asyncio.timeout(60):
            yield settler
    finally:
        task.cancel()
        await asyncio.wait([task])


async def done(ledger, *keys):
    """Claimed tasks and the settlements that end them as done, in the order of the keys."""
    await add(ledger, *keys)
    claims = await ledger.claim(len(keys), LEASE)
    by_key = {claim.task.key: decide(claim, Done(), STEADY) for claim in claims}
    return [by_key[key] for key in keys]


async def test_a_lone_outcome_is_written_at_once(recorded, heard):
    """There is no timer: one outcome is one group, and it is announced after it is durable."""
    [settlement] = await done(recorded, "one")
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlement)
        assert settler.unwritten == 1
        await settler.flushed()
    assert recorded.groups == [["one"]]
    assert heard.events == [AttemptEnded("redrive_task", settlement)]
    assert (await recorded.get_by_key("one")).state is State.DONE


async def test_outcomes_share_the_next_group(recorded, heard):
    """What comes in while one group is being written is one group, not many."""
    settlements = await done(recorded, "a", "b", "c", "d")
    recorded.open.clear()
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlements[0])
        await recorded.begun.wait()
        for settlement in settlements[1:]:
            settler.put(settlement)
        assert settler.unwritten == 4
        recorded.open.set()
        await settler.flushed()
        assert settler.unwritten == 0
    assert recorded.groups == [["a"], ["b", "c", "d"]]


async def test_a_group_has_a_limit(recorded, heard):
    """No group is larger than the batch, and none is forgotten."""
    keys = [f"k{number}" for number in range(7)]
    settlements = await done(recorded, *keys)
    async with running(make_settler(recorded, heard, batch=3)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        await settler.flushed()
    assert [len(group) for group in recorded.groups] == [3, 3, 1]
    assert sorted(key for group in recorded.groups for key in group) == keys


async def test_a_refused_settlement_is_announced_as_lost(recorded, heard, clock):
    """The fence refuses a late settlement; the others of its group are written."""
    late, fine = await done(recorded, "late", "fine")
    clock.advance(LEASE)
    claims = {claim.task.key: claim for claim in await recorded.reclaim(2, LEASE)}
    await recorded.real.settle([decide(claims["late"], LeaseExpired(), STEADY)], worker="keeper")
    fine = decide(claims["fine"], Done(), STEADY)
    await make_settler(recorded, heard).write([late, fine])
    assert heard.of(SettleLost) == [SettleLost("redrive_task", late)]
    assert heard.of(AttemptEnded) == [AttemptEnded("redrive_task", fine)]


async def test_one_that_cannot_be_written_takes_none_down(recorded, heard):
    """A settlement that the ledger refuses with an error is announced as failed; the rest of its group is written."""
    settlements = await done(recorded, "a", "bad", "c")
    recorded.poison = "bad"
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        await settler.flushed()
    [failed] = heard.of(SettleFailed)
    assert (failed.settlement.claim.task.key, failed.error) == ("bad", "ValueError: cannot be written")
    assert sorted(event.settlement.claim.task.key for event in heard.of(AttemptEnded)) == ["a", "c"]
    assert (await recorded.get_by_key("bad")).state is State.CLAIMED


async def test_an_outage_is_waited_out(recorded, heard):
    """Settlements outlive an absent ledger and are written when it is back, once each."""
    [settlement] = await done(recorded, "one")
    recorded.away = 2
    await make_settler(recorded, heard).write([settlement])
    assert [type(event) for event in heard.events] == [LedgerAway, LedgerBack, AttemptEnded]
    assert len(await recorded.attempts(settlement.claim.task.id)) == 1


async def test_flushed_waits_for_what_is_being_written(recorded, heard):
    """`flushed` does not come back while a group is under way."""
    [settlement] = await done(recorded, "one")
    recorded.open.clear()
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlement)
        await recorded.begun.wait()
        flushing = asyncio.create_task(settler.flushed())
        await asyncio.sleep(0)
        assert not flushing.done()
        recorded.open.set()
        await flushing
    assert len(heard.of(AttemptEnded)) == 1
