"""A seeded simulation: workers that claim, run, settle, extend, crash and come back too late, in every order.

Time is virtual and the order is drawn from a seed that is part of the test's name, so that a failure can be replayed:
`pytest tests/engine/test_simulation.py -k seed7`. `REDRIVE_SIMULATION_SEEDS=1000` looks further.
"""

import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import select

from redrive.core.backoff import Exponential
from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import TRANSITIONS, State
from redrive.core.task import Claim, is_alone
from redrive.engine.keeper import Keeper
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import BusinessError
from redrive.events import AttemptEnded
from redrive.ledgers.sql import schema
from redrive.ports import Actor, Filter
from tests.engine.workbench import add, handlers_of, ignore

SEEDS = int(os.environ.get("REDRIVE_SIMULATION_SEEDS", "6"))
STEPS = 150
TASKS = 12
WORKERS = 4
LEASE = timedelta(seconds=30)
POLICY = Policy(Exponential(timedelta(seconds=5), timedelta(minutes=2)), retries=3)
ALLOWED = {pair for pairs in TRANSITIONS.values() for pair in pairs}


@dataclass
class SimulatedWorker:
    """What a worker believes that it holds. After a crash it may still wake up and settle: that is what fences are for."""

    name: str
    held: list[Claim] = field(default_factory=list)
    line: list[Claim] = field(default_factory=list)
    """Suspects that it holds and has not started yet: a crash is not theirs."""


class Simulation:
    """The world: a real ledger, a virtual clock, workers, a keeper, and a book of what must be true."""

    def __init__(self, ledger, clock, seed):
        self.ledger, self.clock = ledger, clock
        self.random = random.Random(seed)
        self.workers = [SimulatedWorker(f"w{number}") for number in range(WORKERS)]
        self.zombies: list[Claim] = []
        self.claims: dict[str, set] = defaultdict(set)
        self.states: dict[str, State] = {}
        self.suspects: set[str] = set()
        self.acts: list[str] = []
        self.lost = 0
        patience = Patience(ledger.name, self._heard)
        settler = Settler(ledger, "keeper", patience, self._heard, batch=100)
        self.keeper = Keeper(ledger, handlers_of(policy=POLICY, job=ignore), settler, patience, self._heard)

    def _heard(self, events):
        for event in events:
            if isinstance(event, AttemptEnded):
                settled = event.settlement
                assert settled.claim.abandoned is not None, "the keeper settles abandoned claims only"
                charged = settled.failures - settled.claim.task.failures
                assert charged == is_alone(settled.claim.claim_id), "only a run alone is charged for its worker"
                self.suspects.add(settled.claim.task.key)

    # --- what can happen ----------------------------------------------------------------------------------------------

    async def step(self):
        worker = self.random.choice(self.workers)
        act = self.random.choices(
            [
                self.claim,
                self.run_alone,
                self.settle,
                self.extend,
                self.crash,
                self.late,
                self.keep,
                self.wait,
                self.redrive,
            ],
            weights=[30, 15, 30, 8, 6, 8, 8, 20, 2],
        )[0]
        self.acts.append(f"{act.__name__} {worker.name}")
        await act(worker)
        await self.check()

    async def claim(self, worker):
        for claim in await self.ledger.claim(self.random.randint(1, 4), LEASE, kinds=["job"]):
            assert claim.claim_id not in self.claims[claim.task.key], "every claim has a fence of its own"
            assert claim.suspect == (claim.task.key in self.suspects), f"{claim.task.key}: suspect {claim.suspect}"
            self.claims[claim.task.key].add(claim.claim_id)
            (worker.line if claim.suspect else worker.held).append(claim)

    async def run_alone(self, worker):
        """Start the first suspect of the line: its claim gets another fence, and is still one claim."""
        for claim in worker.line[:1]:
            worker.line.remove(claim)
            alone = await self.ledger.run_alone(claim)
            if alone is not None:
                fences = self.claims[claim.task.key]
                fences.discard(claim.claim_id)
                fences.add(alone.claim_id)
                worker.held.append(alone)

    async def settle(self, worker):
        amount = self.random.randint(0, len(worker.held))
        group, worker.held = worker.held[:amount], worker.held[amount:]
        await self._settle(worker.name, group)

    async def _settle(self, name, group):
        outcomes = [
            Done(),
            Failed(ValueError("odd")),
            Failed(ValueError("odd")),
            Failed(BusinessError("refused")),
            Snoozed(timedelta(seconds=7)),
            Released(),
        ]
        drawn = self.random.choices(outcomes, weights=[5, 6, 6, 1, 1, 1], k=len(group))
        settlements = [decide(claim, outcome, POLICY) for claim, outcome in zip(group, drawn, strict=True)]
        lost = await self.ledger.settle(settlements, worker=name)
        self.lost += len(lost)
        refused = {(one.claim.task.key, one.claim.claim_id) for one in lost}
        for one in settlements:
            if one.outcome != "released" and (one.claim.task.key, one.claim.claim_id) not in refused:
                self.suspects.discard(one.claim.task.key)

    async def extend(self, worker):
        gone = {one.claim.claim_id: one.claim for one in await self.ledger.extend(worker.held, LEASE)}
        worker.held = [claim for claim in worker.held if claim.claim_id not in gone or gone[claim.claim_id] != claim]

    async def crash(self, worker):
        """Its claims are never settled, unless it was only frozen and comes back later."""
        self.zombies += worker.held + worker.line
        worker.held, worker.line = [], []

    async def late(self, worker):
        self.random.shuffle(self.zombies)
        group, self.zombies = self.zombies[:2], self.zombies[2:]
        await self._settle(worker.name, group)

    async def keep(self, worker):
        await self.keeper.settle_expired()

    async def wait(self, worker):
        self.clock.advance(timedelta(seconds=self.random.choice([0, 1, 5, 20, 45, 130])))

    async def redrive(self, worker):
        page = await self.ledger.find(Filter(state=State.DEAD), limit=1)
        await self.ledger.redrive([task.id for task in page.items], Actor(name="operator"))

    # --- what must be true --------------------------------------------------------------------------------------------

    async def check(self):
        tasks = (await self.ledger.find(Filter(), limit=1000)).items
        assert len(tasks) == TASKS, "nothing is lost and nothing is doubled"
        ended = await self.ended()
        for task in tasks:
            before = self.states.get(task.key, State.WAITING)
            assert task.state is before or (before, task.state) in ALLOWED, f"{task.key}: {before} → {task.state}"
            self.states[task.key] = task.state
            assert task.failures <= POLICY.failures_max, f"{task.key} has spent more than its budget"
            assert (task.lease_until is not None) == (task.state is State.CLAIMED)
            if task.state in (State.DONE, State.DEAD):
                assert task.due_at is None
            fences = ended[str(task.id)]
            assert len(set(fences)) == len(fences), f"{task.key}: a claim ended twice"
            assert set(fences) <= self.claims[task.key], f"{task.key}: an attempt without a claim"
            open_claims = len(self.claims[task.key]) - len(fences)
            assert open_claims == (task.state is State.CLAIMED), f"{task.key}: {open_claims} claims have not ended"

    async def ended(self):
        """The claims of each task that have ended: all of the history at one look, of which there are forty thousand otherwise."""
        history = select(schema.attempt.c.task_id, schema.attempt.c.claim_id)
        found = defaultdict(list)
        for id_, fence in await self.ledger.database.read(lambda connection: connection.execute(history).all()):
            found[id_].append(fence)
        return found

    async def finish(self):
        """All workers crash; one honest worker and the keeper end every task."""
        for worker in self.workers:
            await self.crash(worker)
        for _ in range(100):
            worker = self.workers[0]
            for act in (self.keep, self.claim, *[self.run_alone] * TASKS):
                await act(worker)
                await self.check()
            group, worker.held = worker.held, []
            await self._settle(worker.name, group)
            await self.check()
            if set(self.states.values()) <= {State.DONE, State.DEAD}:
                return
            self.clock.advance(timedelta(seconds=40))
        raise AssertionError(f"some tasks never end: {self.states}")


@pytest.mark.parametrize("store", ["sqlite"])
@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
async def test_invariants_hold_in_any_order(ledger, clock, seed):
    """One holder per task, one attempt per claim, no budget overspent, no step off the state machine, nothing lost."""
    keys = [f"k{number}" for number in range(TASKS)]
    await add(ledger, *keys)
    simulation = Simulation(ledger, clock, seed)
    try:
        for _ in range(STEPS):
            await simulation.step()
        await simulation.finish()
    except AssertionError as error:
        error.add_note(f"seed {seed}, the last steps: {', '.join(simulation.acts[-20:])}")
        raise
    assert Counter(simulation.states.values()).total() == TASKS
    # A late settlement of a claim that ended long ago is always refused.
    for zombie in simulation.zombies:
        assert len(await ledger.settle([decide(zombie, Done(), POLICY)], worker="late")) == 1
    await simulation.check()
    ended = await simulation.ended()
    for task in (await ledger.find(Filter(), limit=1000)).items:
        assert {attempt.claim_id for attempt in await ledger.attempts(task.id)} == set(ended[str(task.id)])


@pytest.mark.parametrize("store", ["sqlite"])
async def test_the_simulation_meets_what_it_is_for(ledger, clock):
    """Seed 2 loses claims beside others and alone, and meets every outcome: else the invariants would prove nothing."""
    await add(ledger, *(f"k{number}" for number in range(TASKS)))
    simulation = Simulation(ledger, clock, 2)
    for _ in range(STEPS):
        await simulation.step()
    attempts = [
        (attempt.outcome, is_alone(attempt.claim_id))
        for task in (await ledger.find(Filter(), limit=1000)).items
        for attempt in await ledger.attempts(task.id)
    ]
    assert simulation.lost > 0
    assert {outcome for outcome, _ in attempts} >= {"done", "failed", "lease_expired", "snoozed", "released"}
    assert {alone for outcome, alone in attempts if outcome == "lease_expired"} == {False, True}
