"""Keeping house: claims that were never settled, and tasks that ended long ago."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.decide import decide
from redrive.core.effect import Effect
from redrive.core.outcome import Cancelled, Done, Failed
from redrive.core.states import State
from redrive.engine import keeper as module
from redrive.engine.handlers import make_handler
from redrive.engine.keeper import Keeper
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import LedgerAwayError, NotHappened, PermanentError
from redrive.events import AttemptEnded, LedgerAway, LedgerBack, TasksPruned
from redrive.ports import Filter
from tests.engine.workbench import STEADY, Faulty, add, handlers_of, ignore

LEASE = timedelta(seconds=30)
EXPIRED = timedelta(seconds=31)

WEEK = dict.fromkeys((State.DONE, State.CANCELLED), timedelta(days=7))


def make_keeper(ledger, heard, retention=None, held=tuple, **functions):
    patience = Patience(ledger.name, heard.tell)
    settler = Settler(ledger, "keeper", patience, heard.tell, batch=100)
    handlers = handlers_of(**(functions or {"job": ignore}))
    return Keeper(ledger, handlers, settler, patience, heard.tell, held=held, lease=LEASE, retention=retention or {})


async def test_a_claim_lost_beside_others_charges_nothing(ledger, clock, heard):
    """A lost worker's task is due at once without a failure; its next claim says that it is a suspect."""
    [id_] = await add(ledger, "one")
    [claim] = await ledger.claim(1, LEASE)
    assert not claim.suspect
    clock.advance(EXPIRED)
    assert await make_keeper(ledger, heard).settle_expired() == 1
    task = await ledger.get(id_)
    assert (task.state, task.failures, task.due_at) == (State.WAITING, 0, clock.now())
    [attempt] = await ledger.attempts(id_)
    assert (attempt.outcome, attempt.claim_id, attempt.error_class) == ("lease_expired", claim.claim_id, "worker_lost")
    assert attempt.explanation["verdict"] == "suspect"
    [again] = await ledger.claim(1, LEASE)
    assert (again.suspect, again.number) == (True, 1)


async def test_a_claim_lost_alone_is_a_failure_with_backoff(ledger, clock, heard):
    """A task that ran alone waits for its backoff with one more failure, and its attempt names the worker that was lost."""
    [id_] = await add(ledger, "one")
    [claimed] = await ledger.claim(1, LEASE)
    claim = await ledger.run_alone(claimed)
    clock.advance(EXPIRED)
    assert await make_keeper(ledger, heard).settle_expired() == 1
    task = await ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 1)
    assert task.due_at == clock.now() + timedelta(seconds=10)
    [attempt] = await ledger.attempts(id_)
    assert (attempt.outcome, attempt.claim_id, attempt.error_class) == ("lease_expired", claim.claim_id, "worker_lost")
    assert [event.settlement.outcome for event in heard.of(AttemptEnded)] == ["lease_expired"]


async def test_held_claims_are_left_alone(ledger, clock, heard):
    """A lease that has not run out is nobody else's business."""
    await add(ledger, "one")
    await ledger.claim(1, LEASE)
    clock.advance(LEASE - timedelta(seconds=1))
    assert await make_keeper(ledger, heard).settle_expired() == 0
    assert (await ledger.get_by_key("one")).state is State.CLAIMED


async def test_what_its_own_worker_holds_is_not_lost(ledger, clock, heard):
    """A worker that stood still past its leases keeps what it still runs: only what others held is charged."""
    own_id, _ = await add(ledger, "own", "other")
    claims = await ledger.claim(2, LEASE)
    own = [claim for claim in claims if claim.task.id == own_id]
    clock.advance(EXPIRED)
    assert await make_keeper(ledger, heard, held=lambda: own).settle_expired() == 1
    assert (await ledger.get_by_key("other")).state is State.WAITING
    kept = await ledger.get(own_id)
    assert (kept.state, kept.failures, kept.lease_until) == (State.CLAIMED, 0, clock.now() + LEASE)
    assert await ledger.settle([decide(own[0], Done(), STEADY)], worker="w") == []


async def test_a_keeper_that_dies_leaves_no_trace(ledger, clock, heard):
    """If a keeper dies before it settles, the next one does so soon, and the lost claim still ends in its one attempt."""
    [id_] = await add(ledger, "one")
    [lost] = await ledger.claim(1, LEASE)
    clock.advance(EXPIRED)
    assert len(await ledger.reclaim(1, module.LEASE)) == 1
    clock.advance(module.LEASE)
    assert await make_keeper(ledger, heard).settle_expired() == 1
    [attempt] = await ledger.attempts(id_)
    assert (attempt.outcome, attempt.claim_id, attempt.started_at) == ("lease_expired", lost.claim_id, lost.claimed_at)


async def test_a_task_that_kills_its_workers_ends_dead(ledger, clock, heard):
    """After one free run a handler that ends its process spends its budget and dies as worker_lost, with the evidence."""
    [id_] = await add(ledger, "killer")
    keeper = make_keeper(ledger, heard)
    for run in range(1 + STEADY.failures_max):
        clock.advance(timedelta(minutes=1))
        [claim] = await ledger.claim(1, LEASE)
        assert claim.suspect is (run > 0)
        if claim.suspect:
            await ledger.run_alone(claim)
        clock.advance(EXPIRED)
        assert await keeper.settle_expired() == 1
    task = await ledger.get(id_)
    assert (task.state, task.failures, task.due_at) == (State.DEAD, 3, None)
    attempts = await ledger.attempts(id_)
    assert [attempt.explanation["verdict"] for attempt in attempts] == ["suspect", "retry", "retry", "worker_lost"]
    assert attempts[-1].explanation["lost_alone"] == 3
    clock.advance(timedelta(days=1))
    assert await ledger.claim(1, LEASE) == []


async def test_a_claim_lost_inside_its_effect_is_a_question(ledger, clock, heard):
    """Nobody knows whether the effect happened, so its probe is asked first; what has entered none ends as ever."""
    assert ledger.effects is not None
    handlers = handlers_of(job=ignore)
    handlers.add(
        make_handler("pay", lambda task, context: None, STEADY, effect=Effect(lambda task: NotHappened, policy=STEADY))
    )
    ids = [*await add(ledger, "inside", "outside", kind="pay"), *await add(ledger, "plain")]
    claims = {claim.task.key: claim for claim in await ledger.claim(3, LEASE)}
    assert await ledger.effects.enter(claims["inside"]) is not None
    clock.advance(EXPIRED)
    patience = Patience(ledger.name, heard.tell)
    settler = Settler(ledger, "keeper", patience, heard.tell, batch=100)
    assert await Keeper(ledger, handlers, settler, patience, heard.tell, lease=LEASE, held=tuple).settle_expired() == 3
    verdicts = [(await ledger.attempts(id_))[0].explanation["verdict"] for id_ in ids]
    assert verdicts == ["unknown", "suspect", "suspect"]


async def test_unknown_kinds_are_left_for_who_knows_them(ledger, clock, heard):
    """A keeper without the policy of a kind does not settle its expired claims; one with it does."""
    await add(ledger, "mine")
    await add(ledger, "theirs", kind="other")
    await ledger.claim(2, LEASE)
    clock.advance(EXPIRED)
    assert await make_keeper(ledger, heard).settle_expired() == 1
    assert (await ledger.get_by_key("theirs")).state is State.CLAIMED
    assert await make_keeper(ledger, heard, other=ignore).settle_expired() == 1
    assert (await ledger.get_by_key("theirs")).state is State.WAITING


async def test_patterns_are_looked_up(ledger, clock, heard):
    """A handler with a star has its expired claims settled too."""
    await add(ledger, "one", kind="mail.sent")
    await ledger.claim(1, LEASE)
    clock.advance(EXPIRED)
    assert await make_keeper(ledger, heard, **{"mail.*": ignore}).settle_expired() == 1


@pytest.mark.every_store
async def test_more_than_one_page_of_expired_claims(ledger, clock, heard, monkeypatch):
    """However many leases ran out, one round settles them all."""
    monkeypatch.setattr(module, "RECLAIM_MAX", 3)
    await add(ledger, *(f"k{number}" for number in range(8)))
    await ledger.claim(8, LEASE)
    clock.advance(EXPIRED)
    assert await make_keeper(ledger, heard).settle_expired() == 8
    assert await make_keeper(ledger, heard).settle_expired() == 0


@pytest.mark.every_store
async def test_two_keepers_settle_a_claim_once(ledger, clock, heard):
    """Keepers of several workers run at once; each claim still ends in one attempt."""
    ids = await add(ledger, *(f"k{number}" for number in range(20)))
    await ledger.claim(20, LEASE)
    clock.advance(EXPIRED)
    keepers = [make_keeper(ledger, heard) for _ in range(4)]
    assert sum(await asyncio.gather(*(keeper.settle_expired() for keeper in keepers))) == 20
    assert [len(await ledger.attempts(id_)) for id_ in ids] == [1] * 20


async def settled(ledger, outcome, *keys):
    await add(ledger, *keys)
    claims = await ledger.claim(len(keys), LEASE)
    await ledger.settle([decide(claim, outcome, STEADY) for claim in claims], worker="tester")


async def test_retention_deletes_done_and_cancelled_only(ledger, clock, heard):
    """Old done and cancelled tasks go with their history; dead, waiting, held and young ones stay."""
    await settled(ledger, Done(), "done")
    await settled(ledger, Cancelled(), "cancelled")
    await settled(ledger, Failed(PermanentError("no")), "dead")
    await settled(ledger, Failed(ValueError("odd")), "retrying")
    done_id = (await ledger.get_by_key("done")).id
    clock.advance(timedelta(days=30))
    await settled(ledger, Done(), "retrying")
    await add(ledger, "waiting", delay=timedelta(days=1))
    await add(ledger, "held")
    await ledger.claim(1, LEASE)
    keeper = make_keeper(ledger, heard, retention=WEEK)
    assert await keeper.prune() == 2
    left = (await ledger.find(Filter())).items
    assert sorted(task.key for task in left) == ["dead", "held", "retrying", "waiting"]
    assert await ledger.attempts(done_id) == []
    assert heard.of(TasksPruned) == [TasksPruned("redrive_task", 1)] * 2


@pytest.mark.every_store
async def test_retention_goes_in_batches(ledger, clock, heard, monkeypatch):
    """One statement deletes a few; the round goes on until nothing old is left."""
    monkeypatch.setattr(module, "PRUNE_MAX", 4)
    await settled(ledger, Done(), *(f"k{number}" for number in range(10)))
    clock.advance(timedelta(days=8))
    assert await make_keeper(ledger, heard, retention=WEEK).prune() == 10
    assert [event.amount for event in heard.of(TasksPruned)] == [4, 4, 2]


@pytest.mark.parametrize("store", ["sqlite"])
async def test_the_loop_goes_on_after_an_outage(ledger, clock, heard, monkeypatch):
    """An error of one round is announced, and the next round does its work and announces that the ledger is back."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    await add(ledger, "one")
    await ledger.claim(1, LEASE)
    clock.advance(EXPIRED)
    faulty = Faulty(ledger)
    broken = [LedgerAwayError("gone"), LedgerAwayError("gone")]

    async def reclaim(*args, **options):
        if broken:
            raise broken.pop()
        return await ledger.reclaim(*args, **options)

    faulty.reclaim = reclaim
    keeping = asyncio.create_task(make_keeper(faulty, heard).run())
    await heard.amount(AttemptEnded, 1)
    await heard.amount(LedgerBack, 1)
    keeping.cancel()
    await asyncio.wait([keeping])
    [away], [_] = heard.of(LedgerAway), heard.of(LedgerBack)
    assert "gone" in away.error


@pytest.mark.parametrize("store", ["sqlite"])
async def test_the_loop_prunes_by_itself(ledger, clock, heard):
    """With a retention the first round prunes; without one nothing is ever deleted."""
    await settled(ledger, Done(), "old")
    clock.advance(timedelta(days=8))
    keeping = asyncio.create_task(make_keeper(ledger, heard, retention=WEEK).run())
    await heard.amount(TasksPruned, 1)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert await ledger.get_by_key("old") is None


async def test_a_keeper_ends_though_its_cancellation_became_another_error(ledger, heard, monkeypatch):
    """A driver may make an error of its own of a cancellation: whoever stops the worker must not wait for ever."""
    looking = asyncio.Event()

    async def prune(*_arguments, **_options):
        looking.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("the connection is in the middle of something") from None

    monkeypatch.setattr(ledger, "prune", prune)
    keeping = asyncio.create_task(make_keeper(ledger, heard, retention=WEEK).run())
    await looking.wait()
    keeping.cancel()
    await asyncio.wait([keeping], timeout=60)
    assert keeping.cancelled()


@pytest.mark.every_store
async def test_the_history_is_kept_up_once_an_hour(ledger, heard, monkeypatch):
    """Partitions are made ahead by whoever keeps house: at the start and then every hour, not every second."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    asked, rounds = [], []

    async def keep_history():
        asked.append(len(rounds))
        return 0

    async def uses_gates():
        rounds.append(1)
        if len(rounds) == 5:
            raise asyncio.CancelledError
        return False

    monkeypatch.setattr(ledger, "keep_history", keep_history)
    monkeypatch.setattr(ledger, "uses_gates", uses_gates)
    with pytest.raises(asyncio.CancelledError):
        await make_keeper(ledger, heard).run()
    assert asked == [1]
    monkeypatch.undo()
    assert await ledger.keep_history() == 0


class Rounds:
    """A ledger of which the keeper is told nothing but whether there are gates; it keeps what was asked, and ends the loop after some rounds."""

    name = "tasks"
    effects = None

    def __init__(self, *, gates, rounds=1):
        self.asked = []
        self._gates = gates
        self._rounds = rounds

    async def reclaim(self, *_arguments, **_options):
        if not self._rounds:
            raise asyncio.CancelledError
        self._rounds -= 1
        return []

    async def uses_gates(self, *, anew=False):
        self.asked += ["gates anew"] * anew
        return self._gates

    async def discover(self, *, lately=False):
        self.asked.append("discover")
        return 0

    async def keep_gates(self, *, recount):
        self.asked.append("recount" if recount else "keep")

    async def keep_history(self):
        self.asked.append("history")

    async def prune(self, states, span, *, limit):
        self.asked.append(f"prune {states[0]}")
        return 0


async def kept(ledger, heard, **options):
    with pytest.raises(asyncio.CancelledError):
        await make_keeper(ledger, heard, **options).run()
    assert heard.events == [], "no round failed"
    return ledger.asked


@pytest.mark.parametrize(
    ("gates", "every_seconds", "asked"),
    [
        (False, 60.0, ["history"]),
        (True, 60.0, ["discover", "recount", "history", "discover", "keep", "discover", "keep"]),
        (True, 0.0, ["discover", "recount", "history", "discover", "recount", "discover", "recount"]),
    ],
    ids=["no gates", "once a minute", "each time"],
)
async def test_what_gates_hold_is_counted_now_and_then(heard, monkeypatch, gates, every_seconds, asked):
    """Each round looks for gates and keeps them; the long count is made at the start and then once a minute. Without gates nothing of it."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "RECOUNT_EVERY_SECONDS", every_seconds)
    assert await kept(Rounds(gates=gates, rounds=3), heard) == asked


async def test_keepers_do_not_walk_in_step(heard, monkeypatch):
    """Each comes round about every second, and never at the same distance: many that started at once would ask at once. The long count is
    made once a minute."""
    now, pauses = [0.0], []

    async def sleep(seconds):
        pauses.append(seconds)
        now[0] += 25

    ledger = Rounds(gates=True, rounds=40)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, current_task=asyncio.current_task))
    asked = await kept(ledger, heard)
    assert all(0.8 <= pause <= 1.2 for pause in pauses)
    assert len(set(pauses)) > 30
    assert [at for at, one in enumerate(one for one in asked if one in ("recount", "keep")) if one == "recount"] == [
        *range(0, 40, 3)
    ]


async def test_the_loop_prunes_now_and_then(heard, monkeypatch):
    """The first round prunes, and the others leave it until its time has come."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    asked = await kept(Rounds(gates=False, rounds=3), heard, retention=WEEK)
    assert asked == ["prune done", "prune cancelled", "history"]


@pytest.mark.parametrize("gates", [True, False])
async def test_a_run_that_is_over_soon_keeps_house_once(heard, gates):
    """Whoever runs until nothing is due finds gates, counts what they hold, keeps the history and prunes, without a loop."""
    ledger = Rounds(gates=gates)
    await make_keeper(ledger, heard, retention=WEEK).keep_once()
    found = ["discover", "recount"] if gates else []
    assert ledger.asked == ["gates anew", *found, "history", "prune done", "prune cancelled"]


async def test_what_cannot_be_pruned_is_said_once(heard, caplog):
    """A state whose tasks the database does not let go is named with the reason, and again when the reason changes; the others are pruned."""
    ledger, errors = Rounds(gates=False), ["odd", "odd", "odder"]

    async def prune(states, span, *, limit):
        if states == [State.DONE]:
            raise ValueError(errors.pop(0))
        return 3

    ledger.prune = prune
    keeper = make_keeper(ledger, heard, retention=WEEK)
    assert [await keeper.prune() for _ in range(3)] == [3, 3, 3]
    said = "tasks: tasks that are done are not pruned: ValueError: %s (tried every 1h)"
    assert [record.getMessage() for record in caplog.records] == [said % "odd", said % "odder"]


async def test_a_ledger_that_is_away_ends_the_pruning(heard):
    """It is no state's own fault: the round ends, and the next one tries again."""
    ledger = Rounds(gates=False)

    async def prune(states, span, *, limit):
        raise LedgerAwayError("gone")

    ledger.prune = prune
    with pytest.raises(LedgerAwayError):
        await make_keeper(ledger, heard, retention=WEEK).prune()
