"""What gates promise, tried with real processes: small by `test_gates.py`, and at full size by `python -m proof`.

Each function asserts what must hold, and comes back with its figures. What depends on the speed of the machine is a figure alone here.
"""

import asyncio
import random
import time
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import count, pairwise

from sqlalchemy import Connection, text

from redrive import Redrive, State
from redrive.gates import Breaker
from redrive.lane import make_task

from .books import until
from .gate_apps import BEGUN, SPEED, UP, FastClock
from .processes import Ground, WorkerProcess

APP = "tests.faults.gate_apps:app"
BANK = "bank:DE"
PROBE = timedelta(seconds=30)
PAGE = 1000
PROCESSES = 4


# --- a destination that is down -------------------------------------------------------------------------------------------


async def outage(
    ground: Ground, tasks: int, *, rate: int, burst: int, most: int, speed: int, processes: int = PROCESSES
) -> str:
    """Down for ten (faster) minutes: one try for each probe, none dead of three tries; then no second sees more than the rate, and all are done."""
    begun, up = time.time(), ground.folder / "up"
    ground.environment |= {SPEED: str(speed), BEGUN: str(begun), UP: str(up), "WORKER_POLL": "50ms"}
    clock = FastClock(speed, begun)
    async with Redrive(ground.url, clock=clock) as app:
        # A span in which ten tries end however busy the machine is: a minute here is less than a second on the wall.
        breaker = Breaker(failures=10, within=timedelta(minutes=20), probe=PROBE)
        app.gate("bank:*", concurrency=most, rate=f"{rate}/s", burst=burst, breaker=breaker)
        await app.tasks.ledger()
        with ExitStack() as stack:
            workers = [
                stack.enter_context(WorkerProcess(ground, f"w{n}", lease=7200, concurrency=50, app=APP))
                for n in range(processes)
            ]
            for start in range(0, tasks, PAGE):
                few = range(start, min(tasks, start + PAGE))
                await app.add_many(make_task("transfer", key=f"t{n}", gate=BANK) for n in few)
            await until(lambda: _has_started(app), "the first tries")
            back_at = clock.now() + timedelta(minutes=10)
            up.write_text(back_at.isoformat())
            await _all_ended(app, timeout=300 + tasks / 20)
            took = time.time() - begun
            assert [worker.stop() for worker in workers] == [0] * processes
        tries, charged = await app.database.read(_tries)
        done = await app.database.read(_amount_done)
    assert done == tasks, "none died of the outage"
    in_vain = sorted(started for started, outcome in tries if outcome == "failed")
    before = [started for started in in_vain if started < back_at]
    probes = before[10 + most :]
    gaps = [(later - one).total_seconds() for one, later in pairwise(probes)]
    assert len(before) <= 10 + most + 10 * 60 / PROBE.total_seconds() + 1
    assert min(gaps, default=60) >= PROBE.total_seconds() - 0.001
    assert charged <= 10 + most, "probes charge nothing"
    busiest = _most_in_a_second(sorted(started for started, _ in tries if started >= back_at))
    assert busiest <= rate
    return (
        f"{done:,} done, {len(before)} tries in vain before it was back, {charged} of them charged, then one every "
        f"{min(gaps, default=0):.1f} s or more; at most {busiest} started in any second ({rate} allowed); {took:.0f} s"
    )


async def _has_started(app: Redrive) -> bool:
    return bool(
        await app.database.read(lambda connection: connection.execute(text("SELECT 1 FROM redrive_attempt")).first())
    )


async def _all_ended(app: Redrive, timeout: float, every: float = 0.2) -> None:
    """Wait until nothing waits or is held; to count all of it again and again would slow down what is tried."""
    ends = time.monotonic() + timeout
    while True:
        some = await app.tasks.counts(counted_max=1)
        if not some[State.WAITING] and not some[State.CLAIMED]:
            return
        assert time.monotonic() < ends, f"not within {timeout} s: {await app.tasks.counts()}"
        await asyncio.sleep(every)


def _amount_done(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM redrive_task WHERE state = 'done'")).scalar_one())


def _tries(connection: Connection) -> tuple[list[tuple[datetime, str]], int]:
    """When each try began and what came of it; and how many of them were charged."""
    found = connection.execute(text("SELECT started_at, outcome FROM redrive_attempt")).all()
    charged = connection.execute(text("SELECT sum(failures) FROM redrive_task")).scalar_one()
    return [(row.started_at, row.outcome) for row in found], int(charged)


def _most_in_a_second(starts: list[datetime]) -> int:
    most = first = 0
    for last, start in enumerate(starts):
        while start - starts[first] >= timedelta(seconds=1):
            first += 1
        most = max(most, last - first + 1)
    return most


# --- concurrency, with kills -----------------------------------------------------------------------------------------------

HELD_MAX = 5
FORBID = {
    "postgres": [f"ALTER TABLE redrive_gate ADD CONSTRAINT too_many_held CHECK (held <= {HELD_MAX})"],
    "sqlite": [
        f"CREATE TRIGGER too_many_held BEFORE UPDATE ON redrive_gate WHEN NEW.held > {HELD_MAX} "
        "BEGIN SELECT RAISE(ABORT, 'too_many_held'); END"
    ],
}
"""Each version of each gate's row is looked at, when it is written."""
HOLDS = text(
    "SELECT g.name, g.held, coalesce(t.claimed, 0) AS claimed FROM redrive_gate g LEFT JOIN"
    " (SELECT gate, count(*) AS claimed FROM redrive_task WHERE lease_until IS NOT NULL GROUP BY gate) t ON t.gate = g.name"
)
"""What each gate says that it holds, and what it holds, at one instant.

By its lease, which the table has for a task that is claimed and for no other, and which has an index: to count by the state reads the
whole table, and a million tasks were slower to look at than to claim."""


async def held_at_most(
    ground: Ground, store: str, rng: random.Random, *, claims: int, kills: int, gates: int, slots: int, lease: float = 2
) -> str:
    """Three processes, kill -9 again and again: no gate ever holds more than five, its count is what it holds, and all tasks get done.

    With leases of two seconds a tenth of all claims ended by their lease on a machine with thirty processes that wanted to run, many more than
    the kills explain: so at full size leases are longer.
    """
    ground.environment |= {"LOG_LEVEL": "error"}
    begun, amount = time.monotonic(), claims // kills
    async with Redrive(ground.url) as app:
        app.gate("bank:*", concurrency=HELD_MAX)
        await app.tasks.ledger()
        await app.database.write(_run_all, FORBID[store])
        with ExitStack() as stack:
            names = (f"worker-{number}" for number in count())

            def another() -> WorkerProcess:
                return stack.enter_context(WorkerProcess(ground, next(names), lease=lease, concurrency=slots, grace=5))

            workers = [another() for _ in range(3)]
            seen = 0
            for round_ in range(kills):
                for start in range(0, amount, PAGE):
                    await app.add_many(
                        make_task("quick", {"ms": rng.choice([0, 0, 0, 1, 5])}, key=f"{round_}-{start + n}",
                                  gate=f"bank:{rng.randrange(gates)}")
                        for n in range(min(PAGE, amount - start))
                    )  # fmt: skip
                while (await app.tasks.counts(counted_max=amount + 1))[State.WAITING] > amount:  # one round behind
                    await asyncio.sleep(0.2)
                await asyncio.sleep(rng.uniform(0.1, 0.5))
                victim = rng.randrange(len(workers))
                assert workers[victim].kill() == -9
                workers[victim] = another()
                seen += await _look_at_gates(app)
                if round_ % 10 == 9:
                    print(f"{round_ + 1} kills, {time.monotonic() - begun:.0f} s", flush=True)
            waiting = asyncio.create_task(_all_ended(app, timeout=600 + claims / 50))
            while not waiting.done():
                seen += await _look_at_gates(app)
                await asyncio.wait({waiting}, timeout=0.2)
            await waiting
            assert [worker.stop() for worker in workers] == [0] * len(workers)
        outcomes = await app.database.read(_outcomes)
        assert outcomes["done"] == amount * kills
        assert not any("too_many_held" in log for log in ground.logs().values())
        assert {row.held for row in await app.database.read(lambda c: c.execute(HOLDS).all())} == {0}
    told = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(outcomes.items()))
    return (
        f"{sum(outcomes.values()):,} claims ({told}) and {kills} kill -9: never more than {HELD_MAX} held, and in {seen:,} looks "
        f"at gates the count was what was claimed; {time.monotonic() - begun:.0f} s"
    )


def _run_all(connection: Connection, statements: list[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


async def _look_at_gates(app: Redrive) -> int:
    rows = await app.database.read(lambda connection: connection.execute(HOLDS).all())
    for row in rows:
        assert row.held == row.claimed <= HELD_MAX, row
    return sum(row.held > 0 for row in rows)


def _outcomes(connection: Connection) -> Counter[str]:
    return Counter(
        dict(connection.execute(text("SELECT outcome, count(*) FROM redrive_attempt GROUP BY outcome")).all())  # type: ignore[arg-type]
    )
