"""What operations promise, tried with real processes: small by `test_operations.py`, and at full size by `python -m proof`.

Each function asserts what must hold, and comes back with its figures.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import count

from sqlalchemy import func, insert, select

from redrive import Redrive, State
from redrive.ledgers.sql import schema
from redrive.operator.carrier import Carrier
from redrive.operator.operations import Operation
from redrive.ports import Filter
from tests import forks
from tests.forks import ROOT, Process

from . import evidence
from .books import until
from .operation_apps import TAKES, UP
from .processes import Ground, WorkerProcess

APP = "tests.faults.operation_apps:app"
CHUNK = 2000
WHO = {"actor": "ada", "reason": "a proof"}


async def make_dead(app: Redrive, tasks: int) -> None:
    """Dead tasks, as a worker would have left them, written in one go."""
    at = await app.store.present()
    row = {
        "kind": "pay", "payload": {}, "state": "dead", "failures": 1, "redrives": 0, "last_error": "the bank does not answer",
        "created_at": at, "updated_at": at, "ended_at": at,
    }  # fmt: skip
    for start in range(0, tasks, CHUNK):
        rows = [row | {"key": f"pay-{number}"} for number in range(start, min(tasks, start + CHUNK))]
        await app.database.write(lambda connection, rows=rows: connection.execute(insert(schema.task), rows))


async def ended(app: Redrive, id: str, timeout: float) -> Operation:
    """Wait until an operation has stopped, by itself or at its end."""
    found: list[Operation] = []

    async def stopped() -> bool:
        found[:] = [await app.tasks.operations.get(id)]
        return found[0].ended_at is not None or found[0].state == "halted"

    await until(stopped, f"the operation stops: {found}", timeout)
    return found[0]


async def not_mended(ground: Ground, tasks: int) -> str:
    """The bank is still down: at most six run again, then it halts and releases nothing more."""
    ground.environment[UP] = str(ground.folder / "up")
    async with Redrive(ground.url) as app:
        await make_dead(app, tasks)
        with WorkerProcess(ground, "worker", app=APP):
            started = await app.tasks.operations.start(Filter(), **WHO)
            operation = await ended(app, started.id, 300)
            await asyncio.sleep(1)
        runs = len(ground.starts())
        assert operation.halted_itself, operation
        assert runs <= 6, f"{runs} tasks ran again"
        return f"{runs} of {tasks:,} ran again: {operation.why}"


async def mended(ground: Ground, tasks: int, *, rate: int) -> str:
    """The bank is up again: all are done, and no second sees more releases than the rate and 5 %; what starts is a figure."""
    up = ground.folder / "up"
    up.touch()
    ground.environment[UP] = str(up)
    async with Redrive(ground.url) as app:
        await make_dead(app, tasks)
        with ExitStack() as stack:
            for number in range(2):
                stack.enter_context(WorkerProcess(ground, f"worker-{number}", app=APP))
            started = await app.tasks.operations.start(Filter(), **WHO, rate=f"{rate}/s")
            operation = await ended(app, started.id, 300 + 20 * tasks / rate)
        assert operation.tally.done == tasks, operation
        t = schema.operation_task
        found = select(t.c.released_at).where(t.c.operation == started.id).order_by(t.c.released_at)
        released = await app.database.read(lambda connection: list(connection.execute(found).scalars()))
        most = most_in_a_second([at.timestamp() for at in released])
        assert most <= rate * 1.05, f"{most} were released within a second"
        began = most_in_a_second(sorted(line.at for line in ground.starts()))
        took = (released[-1] - released[0]).total_seconds()
        return f"all {tasks:,} done in {took:.0f} s; at most {most} were released in any second, {began} started"


def most_in_a_second(instants: list[float]) -> int:
    """How many lie in the fullest second, whenever it begins."""
    most = start = 0
    for end, at in enumerate(instants):
        while at - instants[start] >= 1:
            start += 1
        most = max(most, end - start + 1)
    return most


async def killed(ground: Ground, rng: random.Random, *, tasks: int, kills: int, rate: int) -> str:
    """Workers and the service are killed while they run tasks: no task is released twice, and none is forgotten."""
    up = ground.folder / "up"
    up.touch()
    ground.environment |= {UP: str(up), TAKES: "0.4"}
    async with Redrive(ground.url) as app:
        await make_dead(app, tasks)
        with ExitStack() as stack:
            names = count()

            def worker() -> Process | WorkerProcess:
                return stack.enter_context(WorkerProcess(ground, f"worker-{next(names)}", app=APP))

            def service() -> Process | WorkerProcess:
                served = forks.run(
                    "serve", "--app", APP, "--port", "0", folder=ROOT,
                    log=ground.folder / f"service-{next(names)}.log", environment=ground.environment,
                )  # fmt: skip
                stack.callback(_end, served)
                return served

            made = [worker, worker, service]
            running = [make() for make in made]
            # What a kill leaves behind is a try that failed: that is not what the brake is for here.
            started = await app.tasks.operations.start(Filter(), **WHO, steps="1,5", rate=f"{rate}/s", halt="100%")
            hits: Counter[int] = Counter()
            for _ in range(kills):
                await until(lambda: _at_work(ground, running), "somebody runs a task", 300)
                await asyncio.sleep(rng.uniform(0, 0.3))
                at_work = _at_work(ground, running) or range(len(running))
                victim = min(at_work, key=lambda one: (hits[one], rng.random()))  # each of them gets its share
                hits[victim] += 1
                running[victim].kill()
                running[victim] = made[victim]()
            at_last = (await app.tasks.operations.get(started.id)).tally
            operation = await ended(app, started.id, 600 + 20 * tasks / rate)

            async def all_done() -> bool:
                return (await app.tasks.counts())[State.DONE] == tasks

            await until(all_done, "every task is done", 300)
        tally = operation.tally
        assert at_last.left > 0, "all kills must fall into the operation"
        assert (tally.total, tally.released, tally.left) == (tasks, tasks, 0), operation
        redriven, tries = await _redriven(app), await _tries(app)
        assert redriven == {1: tasks}, f"how often tasks were released: {redriven}"
        assert tries["done"] == tasks, f"how tries ended: {tries}"
        cut_off, hit = tries["lease_expired"], len(_cut_off(ground))
        assert cut_off and hit, f"no kill hit a running task: {tries}"
        return (
            f"{tasks:,} released once each and done once each; kills of the workers ({hits[0] + hits[1]}) and the service ({hits[2]}) "
            f"cut off {hit:,} running handlers, and {cut_off:,} claims ended by their lease"
        )


def _at_work(ground: Ground, running: Sequence[Process | WorkerProcess]) -> list[int]:
    """Which of the processes run a task now."""
    pids = {line.pid for line in _cut_off(ground)}
    return [number for number, one in enumerate(running) if one.pid in pids]


def _cut_off(ground: Ground) -> list[evidence.Line]:
    """The runs that have begun and not ended."""
    lines = evidence.read(ground.evidence)
    over = {line.claim for line in lines if line.what != "start"}
    return [line for line in lines if line.what == "start" and line.claim not in over]


async def _redriven(app: Redrive) -> dict[int, int]:
    """How many tasks were redriven how often, by their rows."""
    t = schema.task
    counted = select(t.c.redrives, func.count()).group_by(t.c.redrives)
    rows = await app.database.read(lambda connection: connection.execute(counted).all())
    return dict(rows)


async def _tries(app: Redrive) -> Counter[str]:
    """How many tries ended in which way, by the history."""
    a = schema.attempt
    counted = select(a.c.outcome, func.count()).group_by(a.c.outcome)
    rows = await app.database.read(lambda connection: connection.execute(counted).all())
    return Counter(dict(rows))


def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
        process.wait(60)


async def million(ground: Ground, tasks: int) -> str:
    """A start answers at once, however many tasks match; the set is stored in the background, and says how far it is."""
    async with Redrive(ground.url) as app:
        await make_dead(app, tasks)
        began = time.perf_counter()
        started = await app.tasks.operations.start(Filter(), **WHO)
        answered = time.perf_counter() - began
        assert answered < 1, f"the start took {answered:.2f} s"
        carrier = Carrier(app.store.operations, lambda: app.lanes, "proof")
        began, seen = time.perf_counter(), set()
        operation = started
        while operation.frozen_at is None:
            await carrier.round()
            operation = await app.tasks.operations.get(started.id)
            seen.add(operation.tally.total)
        stored = timedelta(seconds=round(time.perf_counter() - began))
        assert operation.tally.total == tasks, operation
        return (
            f"answered in {answered * 1000:.0f} ms; {tasks:,} tasks stored in {stored}, {len(seen):,} steps of progress"
        )
