"""Settling in groups."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, LeaseExpired, Snoozed
from redrive.core.states import State
from redrive.core.task import ClaimLocked
from redrive.engine import settler as settler_module
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
        self.locked = set()
        self.waits = []
        self.spans = []
        self.line = asyncio.Event()

    async def settle(self, settlements, **options):
        self.groups.append([one.claim.task.key for one in settlements])
        self.begun.set()
        await self.open.wait()
        if self.away:
            self.away -= 1
            raise LedgerAwayError("gone")
        if any(one.claim.task.key == self.poison for one in settlements):
            raise ValueError("cannot be written")
        if self.locked and options.get("wait") is not None:
            self.waits.append([one.claim.task.key for one in settlements])
            self.spans.append(options["wait"].total_seconds())
            await self.line.wait()
        locked = [one for one in settlements if one.claim.task.key in self.locked]
        free = [one for one in settlements if one not in locked]
        return [*await self.real.settle(free, **options), *(ClaimLocked(one.claim) for one in locked)]

    def unlock(self):
        self.locked.clear()
        self.line.set()


@pytest.fixture
def recorded(ledger):
    return Recorded(ledger)


def make_settler(ledger, heard, batch=100, **options):
    return Settler(ledger, "tester", Patience(ledger.name, heard.tell), heard.tell, batch=batch, **options)


@asynccontextmanager
async def running(settler):
    task = asyncio.create_task(settler.run())
    try:
        async with asyncio.timeout(60):
            yield settler
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


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


async def test_a_group_grows_while_others_are_about_to_end(recorded, heard):
    """What is claimed together is written together, as long as the loop's next turn brings more and the group is not full."""
    settlements = await done(recorded, "a", "b", "c", "d")
    coming = list(settlements)

    def more_to_come():
        if coming:
            settler.put(coming.pop(0))
        return bool(coming)

    settler = make_settler(recorded, heard, batch=3, more_to_come=more_to_come)
    settler.put(coming.pop(0))
    async with running(settler):
        await settler.flushed()
    assert recorded.groups == [["a", "b", "c"], ["d"]]


async def test_a_group_does_not_wait_long_for_others(recorded, heard, monkeypatch):
    """A line that does not come to its end holds nothing up."""
    monkeypatch.setattr(settler_module, "FILL_SECONDS", 0.0)
    [settlement] = await done(recorded, "one")
    async with running(make_settler(recorded, heard, more_to_come=lambda: True)) as settler:
        settler.put(settlement)
        await settler.flushed()
    assert recorded.groups == [["one"]]


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


def keys_of(events):
    return sorted(event.settlement.claim.task.key for event in events)


@pytest.fixture
def quickly(monkeypatch):
    """Pauses that grow as they do, a thousandth as long."""
    monkeypatch.setattr(settler_module, "PAUSE_FIRST_SECONDS", settler_module.PAUSE_FIRST_SECONDS / 1000)
    monkeypatch.setattr(settler_module, "LOCKED_PAUSE_SECONDS_MAX", settler_module.LOCKED_PAUSE_SECONDS_MAX / 1000)


async def test_one_that_cannot_be_written_takes_none_down(recorded, heard, quickly):
    """A settlement that the ledger refuses is announced as failed; the rest of its group is written."""
    settlements = await done(recorded, "a", "bad", "c")
    recorded.poison = "bad"
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        await heard.amount(AttemptEnded, 2)
        [failed, *_] = await heard.amount(SettleFailed, 1)
        await settler.flushed()
        assert [claim.task.key for claim in settler.claims] == ["bad"]
    assert {one.settlement.claim.task.key for one in heard.of(SettleFailed)} == {"bad"}
    assert failed.error == "ValueError: cannot be written"
    assert keys_of(heard.of(AttemptEnded)) == ["a", "c"]
    assert (await recorded.get_by_key("bad")).state is State.CLAIMED


async def test_what_is_refused_is_tried_until_it_is_written(recorded, heard, quickly):
    """Whatever the ledger says, finished work is kept: it is written when the ledger takes it, once."""
    [settlement] = await done(recorded, "bad")
    recorded.poison = "bad"
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlement)
        failed = await heard.amount(SettleFailed, 7)
        assert {one.error for one in failed} == {"ValueError: cannot be written"}
        recorded.poison = None
        await heard.amount(AttemptEnded, 1)
        await settler.flushed()
    assert settler.claims == []
    assert len(await recorded.attempts(settlement.claim.task.id)) == 1


async def test_pauses_grow(recorded, heard, monkeypatch):
    """A settlement that is refused again and again is asked for less and less often: no hot loop, and few lines of log."""
    pauses = []

    async def sleep(span):
        pauses.append(span)
        assert len(heard.of(SettleFailed)) == len(pauses), "each failure is followed by a pause"
        await asyncio.Event().wait() if len(pauses) == 15 else await real_sleep(0)

    real_sleep = asyncio.sleep
    [settlement] = await done(recorded, "bad")
    recorded.poison = "bad"
    monkeypatch.setattr(settler_module.asyncio, "sleep", sleep)
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlement)
        await heard.amount(SettleFailed, 15)
    spans = pauses[:15]
    assert all(0.04 * 2**n <= span <= 0.1 * 2**n for n, span in enumerate(spans[:9]))
    assert all(25 <= span <= 60 for span in spans[10:])


async def test_nobody_waits_for_ever_for_what_is_refused(recorded, heard, quickly):
    """One settlement that is never taken does not stop a flush, and does not count as a settler that is behind."""
    settlements = await done(recorded, "bad", "fine")
    recorded.poison = "bad"
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        await settler.flushed()
        assert len(heard.of(SettleFailed)) >= settler_module.REFUSED_OFTEN
        assert keys_of(heard.of(AttemptEnded)) == ["fine"]
        assert settler.unwritten == 0
        assert [claim.task.key for claim in settler.claims] == ["bad"]


async def test_what_is_locked_leaves_its_group(recorded, heard, quickly):
    """The others are written and told at once; what is locked stands in the line for its row and holds up no later group."""
    settlements = await done(recorded, "a", "locked", "c", "later")
    recorded.locked = {"locked"}
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements[:3]:
            settler.put(settlement)
        await heard.amount(AttemptEnded, 2)
        settler.put(settlements[3])
        await heard.amount(AttemptEnded, 3)
        assert keys_of(heard.of(AttemptEnded)) == ["a", "c", "later"]
        while settler.unwritten:
            await settler.written()
        flushing = asyncio.create_task(settler.flushed())
        await asyncio.sleep(0)
        assert not flushing.done()
        assert [claim.task.key for claim in settler.claims] == ["locked"]
        recorded.unlock()
        await flushing
    assert keys_of(heard.of(AttemptEnded)) == ["a", "c", "later", "locked"]
    assert recorded.waits == [["locked"]]
    assert heard.of(SettleLost, SettleFailed) == []


async def test_few_stand_in_line_at_once(recorded, heard, quickly):
    """However many are locked, no more connections wait than are meant for it, and all are written in the end."""
    keys = [f"k{number}" for number in range(9)]
    settlements = await done(recorded, *keys)
    recorded.locked = set(keys)
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        async with asyncio.timeout(60):
            while len(recorded.waits) < settler_module.LATE_WRITERS:
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(recorded.waits) == settler_module.LATE_WRITERS
        recorded.unlock()
        await settler.flushed()
    assert keys_of(heard.of(AttemptEnded)) == keys
    assert len(recorded.groups[-1]) == len(keys) - settler_module.LATE_WRITERS, (
        "one lock was for many: they go together"
    )


async def test_what_only_buries_a_lost_claim_is_left_to_the_next_keeper(recorded, heard, clock):
    """Where the row of a lost claim is locked, its owner may stand in the line: the keeper lets it go first."""
    [settlement] = await done(recorded, "late")
    clock.advance(LEASE)
    [lost] = await recorded.reclaim(1, LEASE)
    recorded.locked = {"late"}
    settler = make_settler(recorded, heard)
    await settler.write([decide(lost, LeaseExpired(), STEADY)])
    assert settler.claims == []
    assert heard.events == []
    assert await recorded.real.settle([settlement], worker="tester") == []


async def test_an_answer_that_was_lost_is_not_a_claim_that_was_lost(recorded, heard):
    """A settlement that was written before its answer was cut off is told as written when the next try is refused."""
    mine, theirs = await done(recorded, "mine", "theirs")

    async def cut_off(settlements, **options):
        recorded.settle = real
        assert await real([one for one in settlements if one is mine], **options) == []
        assert await recorded.real.settle([theirs], worker="somebody else") == []
        raise LedgerAwayError("the connection was closed")

    real, recorded.settle = recorded.settle, cut_off
    await make_settler(recorded, heard).write([mine, theirs])
    assert heard.of(AttemptEnded) == [AttemptEnded("redrive_task", mine)]
    assert heard.of(SettleLost) == [SettleLost("redrive_task", theirs)]
    assert len(await recorded.attempts(mine.claim.task.id)) == 1


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


async def test_the_worker_is_told_of_the_next_try(recorded, heard):
    """Of a group the shortest delay counts; where nothing comes back there is nothing to plan."""
    planned = []
    settlements = await done(recorded, "a", "b", "c")
    claims = [one.claim for one in settlements]
    settler = make_settler(recorded, heard, plan=planned.append)
    await settler.write([decide(claims[0], Snoozed(timedelta(seconds=7)), STEADY)])
    await settler.write(
        [decide(claims[1], Failed(ValueError("odd")), STEADY), decide(claims[2], Snoozed(timedelta(seconds=4)), STEADY)]
    )
    assert planned == [timedelta(seconds=7), timedelta(seconds=4)]
    await settler.write(await done(recorded, "d"))
    assert len(planned) == 2


class Counted:
    """A tally that keeps what it is given."""

    def __init__(self):
        self.keys = []

    def add(self, settlements):
        self.keys += [one.claim.task.key for one in settlements]


async def test_what_was_not_written_is_not_counted(recorded, heard, clock):
    """The tally has what is in the ledger: neither a lost settlement nor one whose row is locked."""
    [late, *_] = await done(recorded, "late", "locked", "fine")
    clock.advance(LEASE)
    claims = {claim.task.key: claim for claim in await recorded.reclaim(3, LEASE)}
    await recorded.real.settle([decide(claims["late"], LeaseExpired(), STEADY)], worker="keeper")
    recorded.locked = {"locked"}
    counted = Counted()
    settler = make_settler(recorded, heard, tally=counted)
    group = [late, decide(claims["locked"], Done(), STEADY), decide(claims["fine"], Done(), STEADY)]
    await settler.write(group)
    assert counted.keys == ["fine"]
    assert keys_of(heard.of(SettleLost)) == ["late"]


async def test_without_observers_only_what_is_lost_is_told(recorded, heard, clock):
    """Nobody makes an event for each settlement that nobody hears; a lost one is always said, for the log."""
    [fine] = await done(recorded, "fine")
    settler = make_settler(recorded, heard, observed=False)
    await settler.write([fine])
    assert heard.events == []
    await settler.write([fine])
    assert heard.events == [SettleLost("redrive_task", fine)]


async def test_few_that_wait_are_no_reason_to_stop_claiming(recorded, heard, quickly, monkeypatch):
    """What left its group counts as unwritten only from some amount on, and holds up the next claims then."""
    keys = [f"k{number}" for number in range(5)]
    settlements = await done(recorded, *keys)
    recorded.locked = set(keys)
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        while len(recorded.waits) < settler_module.LATE_WRITERS:
            await asyncio.sleep(0)
        assert settler.unwritten == 0
        monkeypatch.setattr(settler_module, "LATE_MAX", 2)
        assert settler.unwritten == 3
        assert sorted(claim.task.key for claim in settler.claims) == keys
        recorded.unlock()
        await settler.flushed()
        assert settler.unwritten == 0


@pytest.mark.parametrize(("amount", "seconds"), [(1, 2.0), (8, 0.5), (100, 0.05)])
async def test_a_place_in_the_line_is_shared(recorded, heard, quickly, amount, seconds):
    """One stands there for two seconds at most; the more there are that wait, the sooner the next has its turn."""
    keys = [f"k{number}" for number in range(amount)]
    settlements = await done(recorded, *keys)
    recorded.locked = set(keys)
    async with running(make_settler(recorded, heard, batch=amount)) as settler:
        await settler.write(settlements)
        while len(recorded.spans) < min(amount, settler_module.LATE_WRITERS):
            await asyncio.sleep(0)
        recorded.unlock()
        await settler.flushed()
    assert set(recorded.spans[: settler_module.LATE_WRITERS]) == {seconds}


async def test_a_settler_that_ends_leaves_nothing_behind(recorded, heard, quickly):
    """What still waits to be written ends with it, and nothing writes afterwards."""
    settlements = await done(recorded, "a", "b", "c")
    recorded.locked = {"a", "b", "c"}
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements:
            settler.put(settlement)
        while len(recorded.waits) < settler_module.LATE_WRITERS:
            await asyncio.sleep(0)
    assert [one for one in asyncio.all_tasks() if one.get_name() == "redrive-settle-late"] == []
    assert [claim.task.key for claim in settler.claims] == []


@pytest.mark.parametrize("writes", [1, 2, 3])
async def test_an_answer_that_was_lost_is_asked_for_in_line_too(recorded, heard, quickly, writes):
    """A settlement that left its group and was written by a call without an answer is told as written, not as lost."""
    [settlement] = await done(recorded, "one")
    real, calls = recorded.real.settle, []

    async def settle(settlements, **options):
        calls.append(options.get("wait"))
        if len(calls) == writes:
            assert await real(settlements, worker=options["worker"]) == []
        if len(calls) <= 3:
            raise ValueError("the answer could not be read")
        return await real(settlements, **options)

    recorded.settle = settle
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlement)
        await heard.amount(AttemptEnded, 1)
        await settler.flushed()
    assert heard.of(SettleLost) == []
    assert len(heard.of(SettleFailed)) == 3
    assert [wait is None for wait in calls] == [True, False, False, False]


@pytest.mark.parametrize("committed", [True, False])
async def test_what_a_commit_without_an_answer_has_written_is_told(recorded, heard, committed):
    """Of the two settlements that a run may have come to, the one that is in the ledger is announced, once."""
    [perhaps] = await done(recorded, "one")
    failed = decide(perhaps.claim, Failed(LedgerAwayError("the answer was lost")), STEADY)
    if committed:
        assert await recorded.real.settle([perhaps], worker="tester") == []
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(failed, perhaps=perhaps)
        await heard.amount(AttemptEnded, 1)
        await settler.flushed()
    assert heard.events == [AttemptEnded("redrive_task", perhaps if committed else failed)]


async def test_pauses_between_locks_grow_to_a_second(recorded, heard, monkeypatch):
    """What is locked again and again is asked for less and less often, but often enough that a lock that goes is seen soon."""
    spans, real_sleep = [], asyncio.sleep

    async def sleep(span):
        spans.append(span)
        await asyncio.Event().wait() if len(spans) == 10 else await real_sleep(0)

    [settlement] = await done(recorded, "locked")
    recorded.locked = {"locked"}
    recorded.line.set()
    monkeypatch.setattr(settler_module.asyncio, "sleep", sleep)
    monkeypatch.setattr(settler_module, "time", SimpleNamespace(monotonic=lambda: 5.0))
    async with running(make_settler(recorded, heard)) as settler:
        settler.put(settlement)
        while len(spans) < 10:
            await real_sleep(0)
    ceilings = [min(1.0, 0.1 * 2**number) for number in range(10)]
    assert all(ceiling / 2 <= span <= ceiling for span, ceiling in zip(spans, ceilings, strict=True))


async def test_what_pauses_is_tried_when_a_lock_goes(recorded, heard, monkeypatch):
    """One lock was often for many rows: nobody waits for the end of his own pause then, and they are written together."""
    monkeypatch.setattr(settler_module, "PAUSE_FIRST_SECONDS", 3600.0)
    monkeypatch.setattr(settler_module, "LOCKED_PAUSE_SECONDS_MAX", 3600.0)
    settlements = await done(recorded, "a", "b", "c")
    recorded.locked = {"a", "b", "c"}
    recorded.line.set()
    async with running(make_settler(recorded, heard)) as settler:
        for settlement in settlements[:2]:
            settler.put(settlement)
        while len(recorded.waits) < 2:
            await asyncio.sleep(0)
        recorded.line.clear()
        settler.put(settlements[2])
        while len(recorded.waits) < 3:
            await asyncio.sleep(0)
        recorded.unlock()
        await heard.amount(AttemptEnded, 3)
        await settler.flushed()
    assert keys_of(heard.of(AttemptEnded)) == ["a", "b", "c"]
    assert sorted(recorded.groups[-1]) == ["a", "b"]


async def test_one_outcome_waits_for_those_that_end_in_the_next_turns(recorded, heard):
    """Also where nothing but the first is there yet when the group begins to grow."""
    settlements = await done(recorded, "a", "b", "c")
    coming = list(settlements)

    async def end_them():
        while coming:
            settler.put(coming.pop(0))
            for _ in range(5):
                await asyncio.sleep(0)

    settler = make_settler(recorded, heard, more_to_come=lambda: bool(coming))
    async with running(settler):
        await end_them()
        await heard.amount(AttemptEnded, 3)
    assert recorded.groups == [["a", "b", "c"]]


@pytest.mark.parametrize("why", ["refused", "locked"])
async def test_what_leaves_its_group_is_tried_at_once(recorded, heard, monkeypatch, why):
    """Only what was tried by itself pauses: the others of a group that failed are innocent, and a place in the line is a pause."""
    pauses, real_sleep = [], asyncio.sleep

    async def sleep(span):
        pauses.append(span)
        await real_sleep(0)

    settlements = await done(recorded, "a", "b")
    real = recorded.settle

    async def settle(group, **options):
        if why == "refused" and len(group) > 1:
            raise ValueError("these two together cannot be written")
        return await real(group, **options)

    recorded.settle = settle
    recorded.locked = {"b"} if why == "locked" else set()
    settler = make_settler(recorded, heard)
    monkeypatch.setattr(settler_module.asyncio, "sleep", sleep)
    async with running(settler):
        await settler.write(settlements)
        while why == "locked" and not recorded.waits:
            await real_sleep(0)
        recorded.unlock()
        await heard.amount(AttemptEnded, 2)
    assert pauses == []
