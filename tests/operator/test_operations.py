"""Bringing dead tasks back step by step: a frozen set, a brake, and rounds that any process may carry on."""

from dataclasses import replace
from datetime import timedelta

import pytest

from redrive.core.decide import decide
from redrive.core.operation import Fate, OperationState
from redrive.core.outcome import Done, Failed
from redrive.core.states import State
from redrive.errors import PermanentError, TransitionError, UsageError
from redrive.events import OperationChanged, TasksChanged
from redrive.operator.carrier import Carrier
from redrive.operator.operating import LaneOperations
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.operations import HOLD, SqlOperations
from redrive.operator.sql.pages import SqlTaskPages
from redrive.ports import Actor, Filter
from tests.engine.workbench import STEADY, add

LEASE = timedelta(seconds=30)
WHO = {"actor": "ada", "reason": "the bank is back"}
BEN = {"actor": "ben", "reason": "I looked at it"}


class Bench:
    """A lane as far as operations need one, somebody who carries them on, and a worker that does as it is told."""

    refused_edit = None

    def __init__(self, ledger, heard, clock):
        self._ledger, self.tell, self.clock = ledger, heard.tell, clock
        self.name, self.table = ledger.name, ledger.table
        self.kept = SqlOperations(ledger.database)
        self.operations = LaneOperations(self, self.kept)
        self.carrier = self.another("one")

    def another(self, name):
        return Carrier(self.kept, lambda: {self.name: self}, name)

    async def ledger(self):
        return self._ledger

    async def pages(self, *, limited=True):
        return SqlTaskPages(self._ledger, limited=limited)

    def to_come(self, task):
        return []

    async def dead(self, *keys, **options):
        ids = await add(self._ledger, *keys, **options)
        await self.work(works=lambda task: False)
        return ids

    async def work(self, works=lambda task: True, error=PermanentError):
        """Run all that is due; how many there were."""
        amount = 0
        while claims := await self._ledger.claim(500, LEASE):
            outcomes = [Done() if works(claim.task) else Failed(error("no")) for claim in claims]
            settled = [decide(claim, one, STEADY) for claim, one in zip(claims, outcomes, strict=True)]
            await self._ledger.settle(settled, worker="tester")
            amount += len(claims)
        return amount

    async def carry(self, id, *, works=None, until=lambda one: one.ended_at is not None or one.state == "halted"):
        """Carry on, and work meanwhile if told how; the operation when it has come so far."""
        for _ in range(3000):
            wait = await self.carrier.round()
            if works is not None:
                await self.work(works)
            operation = await self.kept.get(id)
            if until(operation):
                return operation
            self.clock.advance(wait)
        raise AssertionError(f"it stands still: {operation}")


@pytest.fixture
def bench(ledger, heard, clock):
    return Bench(ledger, heard, clock)


async def frozen(bench, which=Filter(), **how):
    """An operation whose set is stored."""
    started = await bench.operations.start(which, **WHO | how)
    return await bench.carry(started.id, until=lambda one: one.state != "gathering")


async def state_of(bench, id):
    return (await bench._ledger.get(id)).state.value


async def test_all_come_back_step_by_step(bench, heard, clock):
    """A mended cause: one, five, twenty-five, then the rest; each step after the one before, and all end done."""
    clock.advance(timedelta(days=1))
    await bench.dead(*(f"k{number}" for number in range(60)))
    clock.advance(timedelta(minutes=1))
    operation = await frozen(bench, steps="1,5,25", rate="1000/s")
    assert (operation.state, operation.tally.total) == (OperationState.RUNNING, 60)
    operation = await bench.carry(operation.id, works=lambda task: True)
    assert (operation.state, operation.tally.done) == (OperationState.DONE, 60)
    assert operation.why == "all 60 are through: 60 done"
    steps = await bench.operations.steps(operation.id)
    assert [(step.number, step.released) for step in steps] == [(1, 1), (2, 5), (3, 25), (4, 29)]
    assert heard.of(OperationChanged)[-1].state is OperationState.DONE
    assert sum(len(event.ids) for event in heard.of(TasksChanged)) == 60
    assert await bench.kept.open() == []


async def test_a_cause_that_is_not_mended_stops_it(bench):
    """At most six of a thousand run again; it says why, and releases nothing more until a person lets it."""
    await bench.dead(*(f"k{number}" for number in range(1000)))
    operation = await frozen(bench)
    operation = await bench.carry(operation.id, works=lambda task: False)
    assert operation.state is OperationState.HALTED
    assert operation.halted_itself
    assert operation.tally.released <= 6
    assert operation.why.startswith("it stopped by itself")
    for _ in range(5):
        await bench.carrier.round()
    assert await bench.work() == 0
    await bench.operations.resume(operation.id, **BEN)
    operation = await bench.carry(operation.id, works=lambda task: True, until=lambda one: one.tally.done >= 5)
    assert (operation.tally.failed, operation.state) == (1, OperationState.RUNNING)


async def test_those_that_failed_again_tell_of_what(bench, clock):
    """Of the same cause as before, or of a new one; and at which pace tasks end, as long as enough have."""
    await bench.dead(*(f"k{number}" for number in range(6)))
    clock.advance(timedelta(minutes=1))
    operation = await frozen(bench, steps="6", rate="1000/s", halt=1.0)
    await bench.carrier.round()
    assert await bench.operations.pace(operation.id) is None
    await bench.work(works=lambda task: task.key != "k1", error=lambda _: PermanentError("quite another one"))
    await bench.carry(operation.id)
    [new] = await bench.operations.failed_again(operation.id)
    assert (new.same, new.step, new.error) == (False, 1, "PermanentError: quite another one")
    assert await bench.operations.pace(operation.id) == 6
    again = await frozen(bench, steps="1", halt=1.0)
    await bench.carrier.round()
    await bench.work(works=lambda _: False, error=lambda _: PermanentError("quite another one"))
    await bench.carry(again.id)
    assert [one.same for one in await bench.operations.failed_again(again.id)] == [True]


async def test_a_gate_that_is_shut_holds_it_back(bench, clock):
    """What is parked has not failed: the step waits, the brake counts nothing, and it goes on when the gate lets through."""
    await bench.dead(*(f"k{number}" for number in range(6)), gate="bank")
    clock.advance(timedelta(minutes=1))
    assert await bench._ledger.pause_gate("bank", Actor(name="ada", reason="they call us"))
    operation = await frozen(bench, steps="1", rate="1000/s")
    for _ in range(5):
        await bench.carrier.round()
        assert await bench.work() == 0
        clock.advance(timedelta(hours=1))
    held = await bench.kept.get(operation.id)
    assert (held.state, held.tally.released, held.tally.failed) == (OperationState.RUNNING, 1, 0)
    assert held.says(clock.now()) == "waits for the last 1 of step 1"
    assert await bench._ledger.resume_gate("bank", Actor(name="ada", reason="go on"))
    through = await bench.carry(operation.id, works=lambda task: True)
    assert (through.state, through.tally.done) == (OperationState.DONE, 6)


async def test_one_is_tried_and_the_others_stay_dead(bench, clock):
    """The oldest of those that match. It failed again, and that is all: there is nothing that a brake could hold back."""
    ids = await bench.dead("a", "b", "c")
    clock.advance(timedelta(minutes=1))
    operation = await frozen(bench, Filter(kind="job"), at_most=1)
    assert (operation.tally.total, operation.asked) == (1, {"kind": "job", "ids": [str(ids[0])]})
    operation = await bench.carry(operation.id, works=lambda task: False)
    assert (operation.state, operation.why) == (OperationState.DONE, "the one task is through: 1 failed again")
    assert [await state_of(bench, id_) for id_ in ids] == ["dead"] * 3
    plan = await bench.operations.plan(Filter(kind="job"), at_most=2)
    assert plan.dead.amount == 2
    with pytest.raises(UsageError, match="at_most must be from 1 to 10,000, not 0"):
        await bench.operations.start(Filter(), at_most=0, **WHO)


async def test_waiting_for_a_second_try_ends_a_step(bench):
    """A task that fails and has tries left has failed again: the brake does not wait until it is dead."""
    await bench.dead("a", "b")
    operation = await frozen(bench)
    await bench.carrier.round()
    await bench.work(works=lambda task: False, error=OSError)
    operation = await bench.carry(operation.id)
    assert (operation.state, operation.tally.failed) == (OperationState.HALTED, 1)
    [task] = (await bench.operations.tasks(operation.id, fate="failed")).items
    assert await state_of(bench, int(task.task_id)) == "waiting"


@pytest.mark.every_store
async def test_what_dies_later_is_not_taken_and_what_a_person_redrove_is_skipped(bench, clock):
    """Also a task of the set that a person brought back and that died again belongs to the person."""
    a, b, c, d = await bench.dead("a", "b", "c", "d")
    clock.advance(timedelta(seconds=1))
    operation = await frozen(bench, rate="1000/s", steps="")
    clock.advance(timedelta(seconds=1))
    [late] = await bench.dead("late")
    await bench._ledger.redrive([b, c], Actor(name="ben"))
    await bench.work(works=lambda task: task.key != "c")
    clock.advance(timedelta(seconds=1))
    operation = await bench.carry(operation.id, works=lambda task: True)
    assert (operation.tally.done, operation.tally.skipped, operation.state) == (2, 2, OperationState.DONE)
    assert [await state_of(bench, id_) for id_ in (a, b, c, d, late)] == ["done", "done", "dead", "done", "dead"]
    skipped = (await bench.operations.tasks(operation.id, fate="skipped")).items
    assert {one.why for one in skipped} == {"it has changed since the set was frozen"}
    assert await bench.operations.skipped(operation) == {"it has changed since the set was frozen": 2}


@pytest.mark.every_store
async def test_a_holder_that_dies_is_followed_by_another(bench, clock):
    """One at a time carries an operation on; when it gives no sign any more, the next one does."""
    await bench.dead("a", "b", "c")
    operation = await frozen(bench, rate="1000/s", steps="1")
    await bench.carrier.round()
    other = bench.another("two")
    wait = await other.round()
    assert timedelta(0) < wait <= HOLD
    assert (await bench.kept.get(operation.id)).tally.released == 1
    await bench.work()
    clock.advance(HOLD)
    bench.carrier = other
    operation = await bench.carry(operation.id, works=lambda task: True)
    assert operation.tally.done == 3


@pytest.mark.every_store
async def test_a_round_that_is_lost_before_its_commit_leaves_nothing(bench, monkeypatch):
    """Killed at the last line, nothing is redriven and nothing is marked; the next round does it once."""
    [id_] = await bench.dead("a")
    operation = await frozen(bench)
    from redrive.operator.sql import operations as module

    real = module.write_row

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_row", killed)
    with pytest.raises(KeyboardInterrupt):
        await bench.carrier.round()
    monkeypatch.setattr(module, "write_row", real)
    assert await state_of(bench, id_) == "dead"
    operation = await bench.carry(operation.id, works=lambda task: True)
    assert operation.tally.done == 1
    assert (await bench._ledger.get(id_)).redrives == 1


async def test_pause_and_give_back(bench):
    """A pause releases nothing; what is given back stays dead as it was, and nothing leaves that end."""
    ids = await bench.dead("a", "b", "c")
    operation = await frozen(bench, steps="1")
    await bench.carrier.round()
    await bench.work()
    paused = await bench.operations.pause(operation.id, **BEN)
    for _ in range(3):
        await bench.carrier.round()
    assert await bench.work() == 0
    assert paused.says(bench.clock.now()) == "paused by ben: I looked at it"
    back = await bench.operations.give_back(operation.id, **BEN)
    assert (back.state, back.tally.left) == (OperationState.GIVEN_BACK, 2)
    assert sorted([await state_of(bench, id_) for id_ in ids]) == ["dead", "dead", "done"]
    with pytest.raises(TransitionError, match="the operation is given back"):
        await bench.operations.resume(operation.id, **BEN)


async def test_what_is_out_is_still_followed_after_the_end(bench):
    """Who gives the rest back wants to know what became of those that were out."""
    await bench.dead("a", "b")
    operation = await frozen(bench)
    await bench.carrier.round()
    await bench.operations.give_back(operation.id, **BEN)
    await bench.work()
    operation = await bench.carry(operation.id, until=lambda one: one.tally.done == 1)
    assert operation.state is OperationState.GIVEN_BACK
    assert await bench.kept.open() == []


async def test_another_person_approves(bench):
    """More tasks than agreed wait for a second pair of eyes; who asked and who approved are on record."""
    await bench.dead("a", "b", "c")
    operation = await frozen(bench, approval_over=2)
    assert operation.state is OperationState.UNAPPROVED
    for _ in range(3):
        await bench.carrier.round()
    assert await bench.work() == 0
    with pytest.raises(UsageError, match="somebody else must approve"):
        await bench.operations.approve(operation.id, **WHO)
    approved = await bench.operations.approve(operation.id, **BEN)
    assert (approved.started_by, approved.approved_by, approved.state) == ("ada", "ben", "running")
    few = await frozen(bench, approval_over=3)
    assert few.state is OperationState.RUNNING


async def test_who_did_what_is_in_the_audit_log(bench):
    """Also what it did by itself, and each task knows the operation that brought it back."""
    id_, _ = await bench.dead("a", "b")
    operation = await frozen(bench)
    await bench.carry(operation.id, works=lambda task: False)
    deeds = await bench._ledger.deeds(f"operation:{operation.id}")
    assert [(deed.act, deed.actor) for deed in deeds] == [("operation started", "ada"), ("operation halted", "redrive")]
    assert (await bench._ledger.deeds(id_))[-1].reason == f"operation {operation.id}: the bank is back"


async def test_a_rate_is_changed_while_it_runs(bench):
    """From the next round on."""
    await bench.dead("a", "b")
    operation = await frozen(bench)
    changed = await bench.operations.change(operation.id, **BEN, rate="5/m", halt="50%")
    assert (changed.course.ramp.rate_words, changed.course.ramp.halt) == ("5 a minute", 0.5)
    with pytest.raises(UsageError, match="say what is to be changed"):
        await bench.operations.change(operation.id, **BEN)


@pytest.mark.every_store
async def test_an_edit_keeps_the_old_payload_and_lists_what_it_does_not_fit(bench):
    """Every original and its difference can be read; a task that the patch does not fit stays dead as it was."""
    good = await bench.dead("g", payload={"country": "GB", "amount": 5})
    bad = await bench.dead("b", payload={"amount": 7})
    patch = [{"op": "replace", "path": "/country", "value": "DE"}]
    plan = await bench.operations.plan(Filter(), patch=patch)
    assert [(change.path, change.before, change.after) for one in plan.sampled for change in one.changes] == [
        ("/country", "GB", "DE")
    ]
    assert [one.why is None for one in plan.sampled] == [True, False]
    operation = await frozen(bench, steps="", rate="1000/s", patch=patch)
    operation = await bench.carry(operation.id, works=lambda task: task.payload["country"] == "DE")
    assert (operation.tally.done, operation.tally.unfit) == (1, 1)
    [edited] = await bench.operations.edits(good[0])
    assert (edited.before, edited.after) == ({"country": "GB", "amount": 5}, {"country": "DE", "amount": 5})
    assert (edited.actor, edited.reason, edited.operation) == ("ada", "the bank is back", operation.id)
    assert [(one.path, one.before) for one in edited.changes] == [("/country", "GB")]
    [unfit] = (await bench.operations.tasks(operation.id, fate=Fate.UNFIT)).items
    assert unfit.task_id == str(bad[0])
    assert "cannot be applied" in unfit.why
    left = await bench._ledger.get(bad[0])
    assert (left.state, left.payload) == (State.DEAD, {"amount": 7})


async def test_a_table_that_must_not_be_edited_says_so(bench):
    """One sentence, before anything is stored."""
    await bench.dead("a")
    bench.refused_edit = "a message goes out as it came in"
    with pytest.raises(UsageError, match="as it came in"):
        await bench.operations.start(Filter(), **WHO, payload={})
    bench.refused_edit, bench.table = None, replace(bench.table, payload=None)
    with pytest.raises(UsageError, match="no column for the payload"):
        await bench.operations.start(Filter(), **WHO, payload={})
    with pytest.raises(UsageError, match="either a patch or a payload"):
        await bench.operations.start(Filter(), **WHO, payload={}, patch=[])
    assert (await bench.operations.list()).items == []


async def test_a_plan_says_what_would_be_taken_and_changes_nothing(bench, clock):
    """How many, which kinds, the oldest and the newest."""
    await bench.dead("a", "b", kind="mail")
    clock.advance(timedelta(minutes=5))
    await bench.dead("c", kind="bill")
    plan = await bench.operations.plan(Filter())
    assert plan.dead.amount == 3
    assert plan.dead.kinds == [("mail", 2), ("bill", 1)]
    assert plan.dead.newest - plan.dead.oldest == timedelta(minutes=5)
    assert not plan.needs_approval
    assert (await bench.operations.plan(Filter(kind="mail"), approval_over=1)).needs_approval
    assert await bench.work() == 0


async def test_named_tasks_are_a_set_too(bench):
    """By id or by key; a name that means no task is a mistake."""
    [a, _] = await bench.dead("a", "b")
    operation = await frozen(bench, ["a"], all_now=True)
    operation = await bench.carry(operation.id, works=lambda task: True)
    assert (operation.tally.total, await state_of(bench, a)) == (1, "done")
    with pytest.raises(UsageError, match="no task with the id or key"):
        await bench.operations.start(["nobody"], **WHO)


@pytest.mark.every_store
async def test_a_set_is_stored_page_by_page(bench, monkeypatch):
    """With progress, and once, however many carriers store it."""
    monkeypatch.setattr("redrive.operator.carrier.GATHERED_AT_ONCE", 2)
    await bench.dead(*"abcde")
    started = await bench.operations.start(Filter(), **WHO)
    other, seen = bench.another("two"), []
    for carrier in (bench.carrier, other, bench.carrier):
        seen.append((await bench.kept.get(started.id)).tally.total)
        await carrier.round()
    assert seen == [0, 2, 4]
    operation = await bench.kept.get(started.id)
    assert (operation.state, operation.tally.total) == (OperationState.RUNNING, 5)
    assert len({one.task_id for one in (await bench.operations.tasks(started.id)).items}) == 5
    stale = await bench.kept.gather(started.id, await (await bench.pages()).ids(Filter(state=State.DEAD)), after=None)
    assert stale.tally.total == 5


async def test_nothing_to_bring_back_is_an_end(bench):
    """And says so."""
    operation = await frozen(bench, Filter(kind="nobody"))
    assert (operation.state, operation.why) == (OperationState.DONE, "no task matched")


@pytest.mark.every_store
async def test_operations_are_listed_newest_first(bench, clock):
    """Page by page."""
    started = []
    for _ in range(3):
        clock.advance(timedelta(seconds=1))
        started.insert(0, (await bench.operations.start(Filter(), **WHO)).id)
    first = await bench.operations.list(limit=2)
    rest = await bench.operations.list(limit=2, cursor=first.cursor)
    assert [one.id for one in (*first.items, *rest.items)] == started
    assert rest.cursor is None


@pytest.mark.every_store
async def test_what_ended_long_ago_is_forgotten(bench, clock):
    """With its set; what is younger stays."""
    await bench.dead("a")
    old = await bench.carry((await frozen(bench)).id, works=lambda task: True)
    clock.advance(timedelta(days=91))
    new = await frozen(bench, Filter(kind="nobody"))
    assert await bench.kept.forget() == 2
    assert await bench.kept.forget() == 0
    assert await bench.kept.get(old.id) is None
    assert await bench.kept.get(new.id) is not None


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (Filter(state=State.WAITING), "brings dead tasks back"),
        (Filter(text="x"), "searched for in the background"),
        (Filter(ids=range(10_001)), "at most 10,000"),
    ],
)
async def test_what_no_operation_takes_is_refused(bench, which, said):
    """With a sentence."""
    with pytest.raises(UsageError, match=said):
        await bench.operations.start(which, **WHO)


async def test_everybody_says_who_and_why(bench):
    """Without a name or a reason nothing is stored."""
    with pytest.raises(UsageError, match="give the actor a name"):
        await bench.operations.start(Filter(), actor=" ", reason="x")
    with pytest.raises(UsageError, match="say why"):
        await bench.operations.start(Filter(), actor="ada", reason="")
    with pytest.raises(UsageError, match="there is no operation"):
        await bench.operations.pause("nothing", **WHO)


async def test_a_dry_run_names_a_real_error(bench):
    """What tasks died of is said with the words of one of them, never with placeholders alone."""
    await add(bench._ledger, "a")
    await bench.work(
        works=lambda task: False, error=lambda _: PermanentError("'None' has no attribute 'body', order 4711")
    )
    await SqlCensus(bench._ledger).take()
    [(_, said, amount)] = (await bench.operations.plan(Filter())).dead.causes
    assert (said, amount) == ("PermanentError: 'None' has no attribute 'body', order 4711", 1)
