"""A world of one seed: processes with the real worker, keeper, settler, gates and operations, people who act, and all that goes wrong."""

import asyncio
import contextvars
import copy
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any
from unittest.mock import patch

from proof.simulator.memory import ASKING, MemoryDatabase
from proof.simulator.model import Model
from proof.simulator.time import Clock, VirtualLoop, run, virtual
from redrive.core.backoff import Exponential
from redrive.core.gate_rules import read_rule
from redrive.core.operation import OperationAct, OperationState, read_ramp
from redrive.core.outcome import Cancelled, Done, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import TASKS
from redrive.core.task import Claim, ClaimLocked, NewTask
from redrive.engine import worker as engine
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import BusinessError, LedgerAwayError, RedriveError
from redrive.events import Event, SettleLost
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.times import EPOCH, MICROSECOND
from redrive.ledgers.sql.waiters import Waiters
from redrive.operator.carrier import Carrier
from redrive.operator.operations import NewOperation
from redrive.ports import Actor, Filter
from redrive.stores.sql import SqlStore

POLICY = Policy(Exponential(timedelta(seconds=0.1), timedelta(seconds=0.5)), retries=1)
SETTINGS = {"lease": timedelta(seconds=1), "poll": timedelta(seconds=1), "grace": timedelta(seconds=0.5)}
"""A world is short and small, so that there can be many: what goes wrong needs few tasks and a few leases of time."""
KINDS = ("job", "gated")
GATE = "bank"
ADA = Actor(name="ada", reason="a simulation")
LEARNS = 4
"""In so many worlds, some with gates and some with operations, it is learned which statements come again."""
ENDS_SECONDS = 200.0
"""How long a world that is well again takes at most until all has ended, in virtual time."""


class Process:
    """A process: its way to the database, and whether it runs, stands still or is gone."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.waiters = Waiters()
        self.alive, self.frozen_until = True, 0.0
        self.entered: dict[str, Any] = {}
        self.paused: Sequence[str] = ()
        self.worker: Worker | None = None
        self.loops: list[asyncio.Task[None]] = []
        self._context = contextvars.copy_context()
        self._context.run(ASKING.set, self)

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        return self.world.loop.create_task(work, context=self._context)

    async def awake(self) -> None:
        """Come back when the process runs; never if it is gone."""
        while (left := self.frozen_until - self.world.loop.time()) > 0:
            await asyncio.sleep(left)
        if self.world.over:
            raise asyncio.CancelledError
        if not self.alive:
            self.world.gone.append(future := self.world.loop.create_future())
            await future

    async def reach(self, *, writes: bool) -> bool:
        """See `Asking.reach`."""
        await self.awake()
        world = self.world
        await asyncio.sleep(world.latency())
        await self.awake()
        if world.loop.time() < world.away_until:
            raise LedgerAwayError("the database is away")
        if not world.chaos:
            return False
        drawn = world.random.random()
        if drawn < 0.02:
            raise LedgerAwayError("cut before it was done" if drawn < 0.015 else "deadlock detected")
        if drawn < 0.023 and writes:
            raise RuntimeError("the database refuses, for reasons of its own")
        return drawn > 0.97

    async def answer(self, *, lost: bool) -> None:
        """See `Asking.answer`."""
        await asyncio.sleep(self.world.latency())
        await self.awake()
        if lost:
            self.world.model.met["an answer that was lost"] += 1
            raise LedgerAwayError("cut after it was done")

    # --- what an engine sees -------------------------------------------------------------------------------------------

    def observe(self, events: Sequence[Event]) -> None:
        self.world.model.met["a late settlement"] += sum(isinstance(one, SettleLost) for one in events)

    @contextmanager
    def around(self, kind: str, claim: Claim) -> Iterator[None]:  # noqa: ARG002
        if self.alive:
            self.world.model.started(self.name, claim.task.id, claim.claim_id)
            self.entered[claim.task.key] = claim.claim_id
        yield


class SimulatedLedger(SqlLedger):
    """The real ledger; at times rows are locked, and what a worker was told of pauses is remembered."""

    async def settle(self, settlements: Any, **how: Any) -> Any:
        world = _here().world
        locked = [one for one in settlements if world.chaos and world.random.random() < 0.03]
        rest = [one for one in settlements if one not in locked] if locked else settlements
        world.model.met["a locked row"] += len(locked)
        unwritten = await super().settle(rest, **how) if rest else []
        return [*unwritten, *(ClaimLocked(one.claim) for one in locked)]

    async def paused_kinds(self) -> Any:
        process = _here()
        process.paused = await super().paused_kinds()
        return process.paused

    async def claim(self, limit: int, lease: timedelta, **how: Any) -> Any:
        kinds, paused = how.get("kinds") or (), _here().paused
        assert not {f"kind:{kind}" for kind in kinds} & {*paused}, f"{kinds} were claimed, and {paused} are paused"
        assert not (kinds and "kind:*" in paused), "all is paused, and something was claimed"
        return await super().claim(limit, lease, **how)


class _Lane:
    """What a carrier asks of a lane."""

    def __init__(self, store: SqlStore, ledger: SimulatedLedger) -> None:
        self._store, self._ledger = store, ledger

    async def ledger(self) -> SimulatedLedger:
        return self._ledger

    async def pages(self, *, limited: bool = True) -> Any:
        return self._store.pages(self._ledger, limited=limited)

    def tell(self, events: list[Event]) -> None: ...


class Ground:
    """What worlds share, because it takes long to make: the tables, and the statements of the ledger."""

    def __init__(self, ledger: type[SimulatedLedger] = SimulatedLedger) -> None:
        self.database = MemoryDatabase()
        self.store = SqlStore(self.database)  # type: ignore[arg-type]
        self._ledger = ledger(self.database, TASKS, schema.task)  # type: ignore[arg-type]
        # Statements are made when they are first asked for: once here, and not in each process.
        for one in {
            name for kind in ledger.__mro__ for name, it in vars(kind).items() if isinstance(it, cached_property)
        }:
            getattr(self._ledger, one)
        for seed in range(LEARNS):  # what is made at the first use is made now: the first world is like all others
            simulate(self, seed)
        self.database.learned()

    def ledger(self, drawn: random.Random) -> SimulatedLedger:
        """A ledger as a new process has it: it has seen nothing yet."""
        ledger = copy.copy(self._ledger)
        for remembers in ("_adds", "_stacks"):  # not a statement: what it has seen, or whom it calls
            del ledger.__dict__[remembers]
        ledger.draw = random.Random(drawn.random())
        return ledger


class World:
    """One seed."""

    def __init__(self, ground: Ground, loop: VirtualLoop, seed: int) -> None:
        self.ground, self.loop = ground, loop
        self.random = random.Random(f"world {seed}")
        self.clock = Clock(loop)
        self.model = Model(ground.database.driver, POLICY.failures_max)
        self.processes: list[Process] = []
        self.chaos, self.over, self.away_until = True, False, 0.0
        self.acts: list[str] = []
        self.story = hashlib.sha256()
        """All that was committed, by whom and when: the same seed has the same story."""
        self.gone: list[asyncio.Future[None]] = []
        """What processes that are gone wait for."""
        self.commits = 0
        self._made = 0
        self._slow = self.random.choice([0.0, 0.02, 0.06])
        # Keeping gates and looking for operations is half of what idle workers do: not every world has both.
        self._kinds = KINDS if self.random.random() < 0.6 else KINDS[:1]
        self._operates = self.random.random() < 0.6
        self.person = Process(self, "person")
        self.person_ledger = ground.ledger(self.random)
        ground.database.begin(self.clock.now, self._committed, self._failed)
        self.model.begin()
        self._broken: BaseException | None = None

    def latency(self) -> float:
        """How long a way takes: mostly no time, at times longer than a lease."""
        drawn = self.random.random()
        if not self.chaos or drawn >= self._slow:
            return drawn * 0.004
        return self.random.choice([0.05, 0.15, 0.5, 1.25])

    def _committed(self) -> None:
        process = _here()
        if self._broken is not None:
            return
        self.commits += 1
        self.story.update(f"{self.loop.time():.6f} {process.name} ".encode())
        try:
            self.model.look(process.name, (self.clock.now() - EPOCH) // MICROSECOND)
        except AssertionError as error:
            self._broken = error
            raise
        for other in self.processes:
            if other is not process and other.alive and self.random.random() < 0.9:
                self.loop.call_later(0.025, other.waiters.wake_all)

    def _failed(self, error: BaseException) -> None:
        """Whoever asked will say that the database is away, and try again: nobody else would notice."""
        if self._broken is None:
            self._broken = AssertionError(f"{_here().name} asked for what failed: {error!r:.200}")
            self._broken.__cause__ = error

    # --- what can happen ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Chaos for a while, then peace, in which all must come to its end."""
        self.person.spawn(self._watch())
        await self.person.spawn(self._add(self.random.randint(2, 6)))
        for _ in range(self.random.randint(1, 2)):
            self._start()
        events = [self._crash, self._freeze, self._retire, self._away, self._jump, self._act, self._add_some]
        for _ in range(self.random.randint(4, 14)):
            await asyncio.sleep(self.random.expovariate(4.0))
            self._check()
            event = self.random.choices(events, weights=[3, 3, 2, 1, 1, 12, 3])[0]
            self.acts.append(f"{self.loop.time():.2f} {event.__name__.strip('_')}")
            event()
        await self._peace()

    async def _watch(self) -> None:
        """A worker whose loop broke is a fault, as long as the world stands."""
        while not self.over:
            await asyncio.sleep(1)
            self._check()

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken
        for one in self.processes:
            for loop in one.loops if one.alive else ():
                if loop.done() and not loop.cancelled() and (error := loop.exception()) is not None:
                    raise AssertionError(f"a loop of {one.name} broke, and nobody heard of it") from error

    def _start(self) -> None:
        self._made += 1
        process = Process(self, f"w{self._made}")
        self.processes.append(process)
        ledger = self.ground.ledger(self.random)
        settings = WorkerSettings(concurrency=self.random.randint(1, 4), **SETTINGS)  # type: ignore[arg-type]
        process.worker = process._context.run(  # noqa: SLF001
            lambda: Worker(
                ledger, _handlers(process), settings, name=process.name, observers=[process], around=process.around
            )
        )
        lane = _Lane(self.ground.store, ledger)
        lanes: Mapping[str, Any] = {ledger.name: lane}
        carrier = Carrier(self.ground.store.operations, lambda: lanes, process.name)
        process.loops = [process.spawn(process.worker.run())]
        if self._operates:
            process.loops.append(process.spawn(carrier.run()))

    def _alive(self) -> list[Process]:
        return [one for one in self.processes if one.alive]

    def _one(self) -> Process | None:
        return self.random.choice(self._alive()) if self._alive() else None

    def kill(self, process: Process) -> None:
        """As kill -9 does; somebody starts another one."""
        process.alive = False
        self.model.died(process.name)
        self.model.met["a killed process"] += 1
        if self.chaos:
            self.loop.call_later(self.random.uniform(0.05, 1.5), self._start_again)

    def _start_again(self) -> None:
        if not self.over and len(self._alive()) < 3:
            self.person.spawn(self._starting())

    async def _starting(self) -> None:
        self._start()

    def _crash(self) -> None:
        if (process := self._one()) is not None:
            self.kill(process)

    def _freeze(self) -> None:
        if (process := self._one()) is not None:
            process.frozen_until = self.loop.time() + self.random.choice([0.25, 1.25, 3.0])
            self.model.met["a frozen process"] += 1

    def _retire(self) -> None:
        """A worker stops gracefully, and another one takes its place."""
        if (process := self._one()) is not None and process.worker is not None:
            process.worker.stop()
            self.loop.call_later(self.random.uniform(0.05, 1.5), self._start_again)

    def _away(self) -> None:
        self.away_until = self.loop.time() + self.random.choice([0.1, 0.5, 2.0])
        self.model.met["an outage"] += 1

    def _jump(self) -> None:
        self.clock.offset += self.random.choice([-1.5, -0.25, 0.5, 1.5, 15.0])

    def _add_some(self) -> None:
        self.person.spawn(self._add(self.random.randint(1, 2)))

    async def _add(self, amount: int) -> None:
        """Add until it is acknowledged; what is asked for twice is there once."""
        tasks = []
        for _ in range(amount):
            self._made += 1
            kind = self.random.choice(self._kinds)
            tasks.append(NewTask(kind=kind, key=f"k{self._made}", gate=GATE if kind == "gated" else None))
        while True:
            try:
                await self.person_ledger.add(tasks)
            except (RedriveError, RuntimeError):
                await asyncio.sleep(0.15)
                continue
            self.model.acknowledged |= {one.key for one in tasks}
            return

    def _act(self) -> None:
        self.person.spawn(self._act_once())

    async def _act_once(self) -> None:
        acts = [
            self._redrive, self._cancel, self._resolve, self._stop_one, self._pause, self._resume, self._limit,
            self._operate, self._steer,
        ]  # fmt: skip
        operates = [3, 2] if self._operates else [0, 0]
        act = self.random.choices(acts, weights=[2, 1, 1, 1, 1, 2, len(self._kinds) - 1, *operates])[0]
        self.acts.append(act.__name__.strip("_"))
        try:
            await act()
        except AssertionError:
            raise
        except (RedriveError, RuntimeError):
            pass  # the database was away, or somebody was quicker

    def _some(self, state: State) -> list[int]:
        ids = [row.id for row in self.model.seen.values() if row.state == state]
        return self.random.sample(ids, min(len(ids), self.random.randint(1, 3)))

    async def _redrive(self) -> None:
        await self.person_ledger.redrive(self._some(State.DEAD), ADA)

    async def _cancel(self) -> None:
        await self.person_ledger.cancel(self._some(State.WAITING)[:1], ADA)

    async def _resolve(self) -> None:
        state = self.random.choice([State.DONE, State.CANCELLED])
        await self.person_ledger.resolve(self._some(State.DEAD)[:1], state, ADA)

    async def _stop_one(self) -> None:
        await self.person_ledger.ask_to_stop(self._some(State.CLAIMED)[:1], ADA)

    async def _pause(self) -> None:
        await self.person_ledger.pause_gate(self._gate(), ADA, span=self.random.choice([None, timedelta(seconds=1)]))

    async def _resume(self) -> None:
        await self.person_ledger.resume_gate(self._gate(), ADA)

    def _gate(self) -> str:
        return self.random.choice(
            [*(f"kind:{kind}" for kind in self._kinds), "kind:*", *([GATE] if len(self._kinds) > 1 else [])]
        )

    async def _limit(self) -> None:
        rule = self.random.choice([None, read_rule(concurrency=1), read_rule(concurrency=2)])
        await self.person_ledger.set_rule(GATE, rule, ADA)

    async def _operate(self) -> None:
        steps, halt = self.random.choice([("1", "100%"), ("1,2", "10%"), (None, None)])
        new = NewOperation(
            ledger=self.person_ledger.name, asked=Filter(state=State.DEAD), ramp=read_ramp(steps, "20/s", halt),
            actor="ada", reason="a simulation", edit=None, approval_over=None,
        )  # fmt: skip
        await self.ground.store.operations.start(new)
        self.model.met["an operation"] += 1

    async def _steer(self) -> None:
        for operation in (await self.ground.store.operations.open())[:1]:
            act = self.random.choice(
                [OperationAct.PAUSE, OperationAct.RESUME, OperationAct.HALT, OperationAct.GIVE_BACK]
            )
            await self.ground.store.operations.act(operation.id, act, ADA)

    # --- the end --------------------------------------------------------------------------------------------------------

    async def _peace(self) -> None:
        """All is well, and a new worker is there: everything comes to its end."""
        self.chaos, self.away_until = False, 0.0
        self.acts.append(f"{self.loop.time():.2f} peace")
        frozen = max([one.frozen_until for one in self._alive()], default=0.0)
        await asyncio.sleep(max(1.5, frozen - self.loop.time()))  # whoever was slow or frozen is back
        await self.person.spawn(self._settle_down())
        self._start()
        ends = self.loop.time() + ENDS_SECONDS
        while self.loop.time() < ends:
            await asyncio.sleep(0.5)
            self._check()
            if not self.model.unfinished() and not await self.person.spawn(self._busy()):
                break
        for one in self._alive():
            if one.worker is not None:
                one.worker.stop()
        await asyncio.sleep(1.5)
        self._check()
        assert not await self.person.spawn(self._busy()), "an operation never came to its end"
        self.model.finish()
        self.over = True

    async def _settle_down(self) -> None:
        for name in (GATE, "kind:job", "kind:gated", "kind:*"):
            await self.person_ledger.resume_gate(name, ADA)
        for operation in await self.ground.store.operations.open():
            if operation.state in (OperationState.PAUSED, OperationState.HALTED):
                await self.ground.store.operations.act(operation.id, OperationAct.GIVE_BACK, ADA)

    async def _busy(self) -> bool:
        asleep = (OperationState.HALTED, OperationState.PAUSED)
        return any(one.state not in asleep for one in await self.ground.store.operations.open())


def _here() -> Process:
    process = ASKING.get()
    assert isinstance(process, Process)
    return process


def _handlers(process: Process) -> Handlers:
    async def handle(task: Any) -> Any:
        world, fence = process.world, process.entered.pop(task.key, None)
        try:
            await asyncio.sleep(world.random.choice([0.0, 0.01, 0.15, 0.5, 1.5]))
            await process.awake()
            drawn = world.random.random()
            if world.chaos and drawn < 0.04:
                world.model.met["a handler that kills its process"] += 1
                world.kill(process)
                await process.awake()
        except asyncio.CancelledError:
            if process.alive:
                world.model.ended(process.name, task.id, fence, None)
            raise
        outcome = "done" if drawn < 0.45 else "snoozed" if drawn < 0.53 else "cancelled" if drawn < 0.55 else "failed"
        world.model.ended(process.name, task.id, fence, outcome)
        if outcome == "failed":
            raise BusinessError("refused") if drawn > 0.95 else ValueError("odd")
        return {"done": Done(), "snoozed": Snoozed(timedelta(seconds=0.15)), "cancelled": Cancelled("no")}[outcome]

    handlers = Handlers()
    for kind in KINDS:
        handlers.add(make_handler(kind, handle, POLICY))
    return handlers


class _NoWatchdog:
    """Virtual time never stands still, and threads have none."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def simulate(ground: Ground, seed: int) -> World:
    """Live through one seed; raises what went wrong, with the seed and the last events as a note."""
    with virtual(seed) as loop, patch.object(engine, "Watchdog", _NoWatchdog):
        world = World(ground, loop, seed)
        try:
            run(loop, _live(world))
        except BaseException as error:
            error.add_note(f"seed {seed}; the last events: {', '.join(world.acts[-12:])}")
            raise
        return world


async def _live(world: World) -> None:
    try:
        await world.live()
    finally:
        world.over = True
