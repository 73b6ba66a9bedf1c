"""Bringing tasks back, or ending them: seen first, then done, recorded with who and why."""

import asyncio
from datetime import timedelta

import pytest
from workbench import STEADY, Faulty, add

from redrive.core.decide import decide
from redrive.core.outcome import Failed
from redrive.core.states import Act, State
from redrive.engine import redriver as module
from redrive.engine.redriver import Redriver
from redrive.errors import PermanentError, UsageError
from redrive.events import TasksChanged
from redrive.ports import Actor, Where

LEASE = timedelta(seconds=30)
ADA = Actor(name="ada", reason="the bank is back")


async def dead(ledger, *keys, kind="job", error="no"):
    """Dead tasks with these keys; their ids in the order of the keys."""
    ids = await add(ledger, *keys, kind=kind)
    claims = await ledger.claim(len(keys), LEASE, kinds=[kind])
    await ledger.settle([decide(claim, Failed(PermanentError(error)), STEADY) for claim in claims], worker="tester")
    return ids


@pytest.fixture
def redriver(ledger, heard):
    return Redriver(ledger, heard.tell)


async def states(ledger, ids):
    return [(await ledger.get(id_)).state.value for id_ in ids]


async def test_by_ids(ledger, redriver):
    """Only the named dead tasks come back: due now, with a fresh budget, and their history stays."""
    a, b, c = await dead(ledger, "a", "b", "c")
    redriven = await redriver.redrive(Where(ids=[a, c]), ADA)
    assert (redriven.matched, sorted(redriven.changed)) == (2, [a, c])
    assert await states(ledger, [a, b, c]) == ["waiting", "dead", "waiting"]
    task = await ledger.get(a)
    assert (task.failures, task.redrives) == (0, 1)
    assert [attempt.outcome for attempt in await ledger.attempts(a)] == ["failed"]
    assert len(await ledger.claim(10, LEASE)) == 2


async def test_by_filter(ledger, redriver):
    """Kind and error choose which of the dead come back."""
    [mail] = await dead(ledger, "m", kind="mail", error="mailbox full")
    [other] = await dead(ledger, "o", kind="mail", error="no such user")
    [job] = await dead(ledger, "j", error="mailbox full")
    redriven = await redriver.redrive(Where(kind="mail", error="mailbox full"), ADA)
    assert redriven.changed == (mail,)
    assert await states(ledger, [mail, other, job]) == ["waiting", "dead", "dead"]


async def test_dry_run_only_counts(ledger, redriver, heard):
    """A dry run says how many would come back, changes nothing and is no deed."""
    ids = await dead(ledger, "a", "b")
    await add(ledger, "alive")
    redriven = await redriver.redrive(Where(), ADA, dry_run=True)
    assert (redriven.matched, redriven.changed) == (2, ())
    assert await states(ledger, ids) == ["dead", "dead"]
    assert await ledger.deeds(ids[0]) == []
    assert heard.events == []


async def test_who_and_why_are_recorded(ledger, redriver, heard, clock):
    """Each changed task has a deed with the name and the reason, and observers are told."""
    [id_] = await dead(ledger, "a")
    await redriver.redrive(Where(), ADA)
    [deed] = await ledger.deeds(id_)
    assert (deed.act, deed.actor, deed.reason, deed.at) == ("redrive", "ada", "the bank is back", clock.now())
    assert heard.events == [TasksChanged("redrive_task", Act.REDRIVE, (id_,), "ada", "the bank is back")]


@pytest.mark.parametrize("name", ["", "   "])
async def test_nobody_cannot_act(ledger, redriver, name):
    """An act without a name is refused, for all acts, and nothing changes."""
    [id_] = await dead(ledger, "a")
    nobody = Actor(name=name)
    for act in (
        redriver.redrive(Where(), nobody),
        redriver.cancel(Where(), nobody),
        redriver.resolve([id_], State.DONE, nobody),
    ):
        with pytest.raises(UsageError, match="give the actor a name"):
            await act
    assert await states(ledger, [id_]) == ["dead"]


async def test_wrong_state_is_refused(redriver):
    """Redriving what is not dead, or cancelling what does not wait, is refused before anything is looked for."""
    with pytest.raises(UsageError, match="dead tasks only"):
        await redriver.redrive(Where(state=State.DONE), ADA)
    with pytest.raises(UsageError, match="waiting tasks only"):
        await redriver.cancel(Where(state=State.DEAD), ADA)


async def test_ids_that_are_not_dead_do_not_change(ledger, redriver):
    """A waiting task named by its id is not touched."""
    [id_] = await add(ledger, "alive")
    assert (await redriver.redrive(Where(ids=[id_]), ADA)).matched == 0
    assert (await ledger.get(id_)).redrives == 0


async def test_cancel_ends_waiting_tasks(ledger, redriver):
    """Waiting tasks that match end as cancelled; dead ones do not."""
    [waiting] = await add(ledger, "w")
    [gone] = await dead(ledger, "d", kind="other")
    cancelled = await redriver.cancel(Where(), ADA)
    assert cancelled.changed == (waiting,)
    assert await states(ledger, [waiting, gone]) == ["cancelled", "dead"]


async def test_resolve_ends_dead_tasks(ledger, redriver, heard):
    """A person has dealt with it: the dead task ends as done, others do not change."""
    [gone] = await dead(ledger, "d")
    [waiting] = await add(ledger, "w")
    assert await redriver.resolve([gone, waiting], State.DONE, ADA) == [gone]
    assert await states(ledger, [gone, waiting]) == ["done", "waiting"]
    assert [event.act for event in heard.events] == [Act.RESOLVE]
    assert await redriver.resolve([gone], State.DONE, ADA) == []
    assert len(heard.events) == 1


async def test_progress_is_told_page_by_page(ledger, redriver, monkeypatch):
    """Many tasks come back in pages; progress hears the size of each, in a dry run too."""
    monkeypatch.setattr(module, "PAGE", 3)
    await dead(ledger, *(f"k{number}" for number in range(7)))
    for dry_run in (True, False):
        told = []
        redriven = await redriver.redrive(Where(), ADA, dry_run=dry_run, progress=told.append)
        assert redriven.matched == sum(told) == 7
        assert told == [3, 3, 1]


async def test_two_at_once_act_once(ledger, redriver, monkeypatch):
    """Two people press the same button: each task comes back once and has one deed."""
    monkeypatch.setattr(module, "PAGE", 5)
    ids = await dead(ledger, *(f"k{number}" for number in range(20)))
    both = await asyncio.gather(redriver.redrive(Where(), ADA), redriver.redrive(Where(), ADA))
    assert sorted([*both[0].changed, *both[1].changed]) == sorted(ids)
    for id_ in ids:
        assert (await ledger.get(id_)).redrives == 1
        assert len(await ledger.deeds(id_)) == 1


async def test_a_task_that_dies_again_meanwhile_is_met_once(ledger, heard, monkeypatch):
    """A worker kills a redriven task again while the pages go on: it is not redriven a second time."""
    monkeypatch.setattr(module, "PAGE", 2)
    ids = await dead(ledger, *(f"k{number}" for number in range(6)))
    faulty = Faulty(ledger)

    async def redrive_and_die(ids, actor):
        changed = await ledger.redrive(ids, actor)
        claims = await ledger.claim(10, LEASE)
        await ledger.settle(
            [decide(claim, Failed(PermanentError("again")), STEADY) for claim in claims], worker="quick"
        )
        return changed

    faulty.redrive = redrive_and_die
    redriven = await Redriver(faulty, heard.tell).redrive(Where(), ADA)
    assert (redriven.matched, sorted(redriven.changed)) == (6, sorted(ids))
    assert await states(ledger, ids) == ["dead"] * 6
    assert [(await ledger.get(id_)).redrives for id_ in ids] == [1] * 6
