"""Bringing tasks back, or ending them: seen first, then done, recorded with who and why."""

import asyncio
from datetime import timedelta

import pytest

from redrive.core.cause import cause_of
from redrive.core.decide import decide
from redrive.core.outcome import Failed
from redrive.core.states import Act, State
from redrive.errors import PermanentError, TooSlowError, UsageError
from redrive.events import TasksChanged
from redrive.operator import acts as module
from redrive.operator.acts import Acts
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.pages import SqlTaskPages
from redrive.ports import Actor, Filter, Page
from tests.engine.workbench import STEADY, Faulty, add

LEASE = timedelta(seconds=30)
ADA = Actor(name="ada", reason="the bank is back")


async def dead(ledger, *keys, kind="job", error="no"):
    """Dead tasks with these keys; their ids in the order of the keys."""
    ids = await add(ledger, *keys, kind=kind)
    claims = await ledger.claim(len(keys), LEASE, kinds=[kind])
    await ledger.settle([decide(claim, Failed(PermanentError(error)), STEADY) for claim in claims], worker="tester")
    return ids


class Actions:
    """The three acts by their names."""

    def __init__(self, ledger, tell, **options):
        self._acts = Acts(ledger, SqlTaskPages(ledger, **{"limited": False} | options), tell)

    async def redrive(self, which, actor=ADA, **how):
        return await self._acts.act(Act.REDRIVE, State.WAITING, which, actor, **how)

    async def cancel(self, which, actor=ADA, **how):
        return await self._acts.act(Act.CANCEL, State.CANCELLED, which, actor, **how)

    async def resolve(self, which, state, actor=ADA, **how):
        return await self._acts.act(Act.RESOLVE, state, which, actor, **how)


@pytest.fixture(params=[False, True], ids=["patient", "limited"])
def acts(request, ledger, heard):
    """For code, which may take its time, and for people who wait."""
    return Actions(ledger, heard.tell, limited=request.param)


async def states(ledger, ids):
    return [(await ledger.get(id_)).state.value for id_ in ids]


async def test_by_ids(ledger, acts):
    """Only the named dead tasks come back: due now, with a fresh budget, and their history stays."""
    a, b, c = await dead(ledger, "a", "b", "c")
    acted = await acts.redrive(Filter(ids=[a, c]), ADA)
    assert (acted.matched, sorted(acted.changed)) == (2, [a, c])
    assert await states(ledger, [a, b, c]) == ["waiting", "dead", "waiting"]
    task = await ledger.get(a)
    assert (task.failures, task.redrives) == (0, 1)
    assert [attempt.outcome for attempt in await ledger.attempts(a)] == ["failed"]
    assert len(await ledger.claim(10, LEASE)) == 2


@pytest.mark.every_store
async def test_by_filter(ledger, acts):
    """Kind and error choose which of the dead come back."""
    [mail] = await dead(ledger, "m", kind="mail", error="mailbox full")
    [other] = await dead(ledger, "o", kind="mail", error="no such user")
    [job] = await dead(ledger, "j", error="mailbox full")
    acted = await acts.redrive(Filter(kind="mail", error="mailbox full"), ADA)
    assert acted.changed == (mail,)
    assert await states(ledger, [mail, other, job]) == ["waiting", "dead", "dead"]


async def test_dry_run_only_counts(ledger, acts, heard):
    """A dry run says how many would come back, changes nothing and is no deed."""
    ids = await dead(ledger, "a", "b")
    await add(ledger, "alive")
    acted = await acts.redrive(Filter(), ADA, dry_run=True)
    assert (acted.matched, acted.changed) == (2, ())
    assert await states(ledger, ids) == ["dead", "dead"]
    assert await ledger.deeds(ids[0]) == []
    assert heard.events == []


async def test_who_and_why_are_recorded(ledger, acts, heard, clock):
    """Each changed task has a deed with the name and the reason, and observers are told."""
    [id_] = await dead(ledger, "a")
    await acts.redrive(Filter(), ADA)
    [deed] = await ledger.deeds(id_)
    assert (deed.act, deed.actor, deed.reason, deed.at) == ("redrive", "ada", "the bank is back", clock.now())
    assert heard.events == [TasksChanged("redrive_task", Act.REDRIVE, (id_,), "ada", "the bank is back")]


@pytest.mark.parametrize("name", ["", "   "])
async def test_nobody_cannot_act(ledger, acts, name):
    """An act without a name is refused, for all acts, and nothing changes."""
    [id_] = await dead(ledger, "a")
    nobody = Actor(name=name)
    for act in (
        acts.redrive(Filter(), nobody),
        acts.cancel(Filter(), nobody),
        acts.resolve([id_], State.DONE, nobody),
    ):
        with pytest.raises(UsageError, match="give the actor a name"):
            await act
    assert await states(ledger, [id_]) == ["dead"]


async def test_wrong_state_is_refused(acts):
    """Redriving what is not dead, or cancelling what does not wait, is refused before anything is looked for."""
    with pytest.raises(UsageError, match="dead tasks only"):
        await acts.redrive(Filter(state=State.DONE), ADA)
    with pytest.raises(UsageError, match="waiting tasks only"):
        await acts.cancel(Filter(state=State.DEAD), ADA)


async def test_ids_that_are_not_dead_do_not_change(ledger, acts):
    """A waiting task named by its id is not touched."""
    [id_] = await add(ledger, "alive")
    acted = await acts.redrive(Filter(ids=[id_, 999]), ADA)
    assert (acted.matched, acted.changed) == (0, ())
    assert acted.refused == {id_: "it is waiting: only dead tasks can be redriven", 999: "there is no such task"}
    assert (await ledger.get(id_)).redrives == 0


async def test_cancel_ends_waiting_tasks(ledger, acts):
    """Waiting tasks that match end as cancelled; dead ones do not."""
    [waiting] = await add(ledger, "w")
    [gone] = await dead(ledger, "d", kind="other")
    cancelled = await acts.cancel(Filter(), ADA)
    assert cancelled.changed == (waiting,)
    assert await states(ledger, [waiting, gone]) == ["cancelled", "dead"]


async def test_resolve_ends_dead_tasks(ledger, acts, heard):
    """A person has dealt with it: the dead task ends as done, others do not change."""
    [gone] = await dead(ledger, "d")
    [waiting] = await add(ledger, "w")
    acted = await acts.resolve([gone, waiting], State.DONE, ADA)
    assert (acted.changed, list(acted.refused)) == ((gone,), [waiting])
    assert await states(ledger, [gone, waiting]) == ["done", "waiting"]
    assert [event.act for event in heard.events] == [Act.RESOLVE]
    assert (await acts.resolve(gone, State.DONE, ADA)).refused == {gone: "it is done: only dead tasks can be resolved"}
    assert len(heard.events) == 1


async def test_progress_is_told_page_by_page(ledger, acts, monkeypatch):
    """Many tasks come back in pages; progress hears the size of each."""
    monkeypatch.setattr(module, "CHUNK", 3)
    ids = await dead(ledger, *(f"k{number}" for number in range(7)))
    told = []
    acted = await acts.redrive(Filter(), ADA, progress=told.append)
    assert acted.matched == sum(told) == 7
    assert told == [3, 3, 1]
    told = []
    assert (await acts.resolve([*ids], State.DONE, ADA, progress=told.append)).matched == 0
    assert told == [0, 0, 0]


@pytest.mark.every_store
async def test_two_at_once_act_once(ledger, acts, monkeypatch):
    """Two people press the same button: each task comes back once and has one deed."""
    monkeypatch.setattr(module, "CHUNK", 5)
    ids = await dead(ledger, *(f"k{number}" for number in range(20)))
    both = await asyncio.gather(acts.redrive(Filter(), ADA), acts.redrive(Filter(), ADA))
    assert sorted([*both[0].changed, *both[1].changed]) == sorted(ids)
    for id_ in ids:
        assert (await ledger.get(id_)).redrives == 1
        assert len(await ledger.deeds(id_)) == 1


@pytest.mark.every_store
async def test_a_task_that_dies_again_meanwhile_is_met_once(ledger, heard, monkeypatch):
    """A worker kills a redriven task again while the pages go on: it is not redriven a second time."""
    monkeypatch.setattr(module, "CHUNK", 2)
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
    acted = await Actions(faulty, heard.tell).redrive(Filter(), ADA)
    assert (acted.matched, sorted(acted.changed)) == (6, sorted(ids))
    assert await states(ledger, ids) == ["dead"] * 6
    assert [(await ledger.get(id_)).redrives for id_ in ids] == [1] * 6


async def test_by_id_and_by_key(ledger, acts):
    """A number is an id; a text is an id or a key, one or several of them in any mixture."""
    a, b, c, d = await dead(ledger, "a", "b", "c", "d")
    assert (await acts.redrive("a")).changed == (a,)
    assert (await acts.redrive(b)).changed == (b,)
    acted = await acts.redrive(["c", str(d), d, "c", "nobody"])
    assert sorted(acted.changed) == [c, d]
    assert acted.refused == {"nobody": "there is no task with the id or key 'nobody'"}


async def test_the_id_of_one_and_the_key_of_another_is_neither(ledger, acts):
    """A text that could mean two tasks touches none of them; a number, a key of its own or a filter says which."""
    [first] = await dead(ledger, "first")
    [second] = await dead(ledger, str(first))
    acted = await acts.redrive([str(first)])
    assert (acted.changed, list(acted.refused)) == ((), [str(first)])
    assert "is the id of one task and the key of another" in acted.refused[str(first)]
    assert await states(ledger, [first, second]) == ["dead", "dead"]
    assert (await acts.redrive(Filter(key=str(first)))).changed == (second,)
    assert (await acts.redrive(first)).changed == (first,)


@pytest.mark.parametrize("name", [None, True, 3.5, b"7", [None], object()], ids=lambda name: type(name).__name__)
async def test_what_is_no_name_is_refused(acts, name):
    """None, where a task was not found, or bytes, whose numbers would be taken for ids, are mistakes and not names."""
    with pytest.raises(UsageError, match="a task is named by its id or its key, not by "):
        await acts.redrive(name)


async def test_a_task_is_not_its_own_name(ledger, acts):
    """A task is a tuple: its parts would be taken for names of others. The sentence says its id and key, and none of its payload."""
    [one] = await dead(ledger, "a")
    with pytest.raises(UsageError) as refused:
        await acts.redrive(await ledger.get(one))
    assert str(refused.value) == f"a task is named by its id or its key, not by itself: say {one} or 'a'"


async def test_nothing_is_not_everything(ledger, acts):
    """An empty list means no task, for all acts."""
    ids = await dead(ledger, "a")
    for which in ([], (), Filter(ids=[])):
        acted = await acts.redrive(which)
        assert (acted.matched, acted.changed, acted.refused) == (0, (), {})
    assert await states(ledger, ids) == ["dead"]


async def test_an_act_is_frozen_at_an_instant(ledger, acts, clock):
    """With the `until` of a dry run only what was counted is changed, and never more than `at_most`."""
    ids = await dead(ledger, "a", "b", "c")
    seen = await acts.redrive(Filter(), dry_run=True)
    assert (seen.matched, seen.until) == (3, clock.now())
    clock.advance(timedelta(seconds=1))
    [late] = await dead(ledger, "late")
    first = await acts.redrive(Filter(), until=seen.until, at_most=2)
    assert (len(first.changed), first.matched, first.complete) == (2, 2, True)
    rest = await acts.redrive(Filter(until=seen.until))
    assert sorted([*first.changed, *rest.changed]) == ids
    assert await states(ledger, [late]) == ["dead"]
    assert (await acts.redrive(Filter(), dry_run=True, at_most=0)).matched == 0


@pytest.mark.every_store
async def test_an_act_without_time_left_goes_on_later(ledger, acts, monkeypatch):
    """It stops between two pages, says so, and the same again with its `until` takes the rest."""
    monkeypatch.setattr(module, "CHUNK", 2)
    ids = await dead(ledger, "a", "b", "c")
    first = await acts.redrive(Filter(), within=timedelta(seconds=-1))
    assert (len(first.changed), first.complete) == (2, False)
    rest = await acts.redrive(Filter(until=first.until), within=timedelta(seconds=-1))
    assert (sorted([*first.changed, *rest.changed]), rest.complete) == (ids, True)


async def test_what_has_changed_is_told_even_if_the_next_look_is_too_slow():
    """The first look may be refused as a whole; a later one only ends the loop."""

    async def slow_after(cursor, limit):
        if cursor is not None:
            raise TooSlowError("no index")
        return Page(items=[1, 2], cursor=2)

    async def change(ids):
        return ids[:1]

    tally = await module.act_on_pages(slow_after, change)
    assert (tally.changed, tally.unchanged, tally.matched, tally.complete) == ([1], [2], 2, False)

    async def slow(cursor, limit):
        raise TooSlowError("no index")

    with pytest.raises(TooSlowError):
        await module.act_on_pages(slow, change)


async def test_all_acts_take_a_cause(ledger, acts):
    """What the census has grouped can be redriven or resolved as one; other causes stay."""
    mine = await dead(ledger, "a", "b", error="mailbox full")
    [other] = await dead(ledger, "c", error="no such user")
    await SqlCensus(ledger).take()
    task = await ledger.get(mine[0])
    cause = cause_of(task.last_error, kind=task.kind).id
    assert (await acts.resolve(Filter(cause=cause), State.CANCELLED, dry_run=True)).matched == 2
    assert sorted((await acts.resolve(Filter(cause=cause), State.CANCELLED)).changed) == mine
    assert await states(ledger, [other]) == ["dead"]
