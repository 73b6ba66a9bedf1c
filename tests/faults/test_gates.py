"""Gates against processes that are killed, destinations that are down, and tenants that hang."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from redrive import Breaker, Redrive, State, Task, seconds
from redrive.app import WorkerSettings
from redrive.core.outcome import Done, Failed
from redrive.errors import TransientError
from redrive.lane import make_task
from redrive.ports import Actor
from redrive.testing import VirtualClock
from tests.ledgers.homes import settlement

from .books import all_ended, until
from .gate_apps import BEGUN, SPEED, UP, FastClock
from .processes import Ground, WorkerProcess

TASKS = int(os.environ.get("REDRIVE_TEST_GATE_TASKS") or 400)
"""20,000 for the whole proof of an outage."""
CLAIMS = int(os.environ.get("REDRIVE_TEST_GATE_CLAIMS") or 400)
"""A million for the whole proof of `concurrency`."""
KILLS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 6)
BANK = "bank:DE"
ADA = Actor(name="ada", reason="a test")
LEASE = timedelta(seconds=30)
PROBE = timedelta(seconds=30)
GATES = 10


# --- a destination that is down -------------------------------------------------------------------------------------------


@pytest.mark.timeout(600 + TASKS)
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_an_outage_of_ten_minutes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes, ten (faster) minutes: one try for each probe, none dead of three tries; then no second sees more than the rate, and all are done."""
    rate, most, speed = (20, 8, 20) if TASKS > 1000 else (5, 8, 100)
    begun, up = time.time(), ground.folder / "up"
    told = {SPEED: str(speed), BEGUN: str(begun), UP: str(up), "WORKER_POLL": "50ms"}
    ground.environment |= told
    clock = FastClock(speed, begun)
    async with Redrive(ground.url, clock=clock) as app:
        # A span in which ten tries end however busy the machine is: a minute here is less than a second on the wall.
        breaker = Breaker(failures=10, within=timedelta(minutes=20), probe=PROBE)
        app.gate("bank:*", concurrency=most, rate=f"{rate}/s", breaker=breaker)
        await app.tasks.ledger()
        with ExitStack() as stack:
            workers = [
                stack.enter_context(
                    WorkerProcess(ground, f"w{n}", lease=7200, concurrency=50, app="tests.faults.gate_apps:app")
                )
                for n in range(4)
            ]
            for start in range(0, TASKS, 500):
                amount = min(500, TASKS - start)
                await app.add_many(make_task("transfer", key=f"t{start + n}", gate=BANK) for n in range(amount))
            await until(lambda: _has_started(app), "the first tries")
            back_at = clock.now() + timedelta(minutes=10)
            up.write_text(back_at.isoformat())
            await all_ended(app, timeout=300 + TASKS / 20)
            assert [worker.stop() for worker in workers] == [0] * 4
        tries, charged = await app.database.read(_tries)
        counts = await app.tasks.counts()
    assert counts[State.DONE] == TASKS, "none died of the outage"
    in_vain = sorted(started for started, outcome in tries if outcome == "failed")
    before = [started for started in in_vain if started < back_at]
    probes = before[10 + most :]
    gaps = [(later - one).total_seconds() for one, later in pairwise(probes)]
    print(
        f"{len(tries)} tries, {len(in_vain)} in vain, {len(probes)} of them probes; the shortest gap {min(gaps, default=0)} s"
    )
    assert len(before) <= 10 + most + 10 * 60 / PROBE.total_seconds() + 1
    assert min(gaps, default=60) >= PROBE.total_seconds() - 0.001
    assert charged <= 10 + most, "probes charge nothing"
    after = sorted(started for started, _ in tries if started >= back_at)
    assert _most_in_a_second(after) <= rate


async def _has_started(app: Redrive) -> bool:
    return bool(
        await app.database.read(lambda connection: connection.execute(text("SELECT 1 FROM redrive_attempt")).first())
    )


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

FORBID = {
    "postgres": ["ALTER TABLE redrive_gate ADD CONSTRAINT too_many_held CHECK (held <= 5)"],
    "sqlite": [
        "CREATE TRIGGER too_many_held BEFORE UPDATE ON redrive_gate WHEN NEW.held > 5 "
        "BEGIN SELECT RAISE(ABORT, 'too_many_held'); END"
    ],
}
HOLDS = text(
    "SELECT g.name, g.held, (SELECT count(*) FROM redrive_task t WHERE t.gate = g.name AND t.state = 'claimed') AS claimed"
    " FROM redrive_gate g"
)
"""What each gate says that it holds, and what it holds, at one instant."""


@pytest.mark.timeout(600 + KILLS * 10 + CLAIMS // 50)
async def test_concurrency_is_never_exceeded(ground: Ground, store: str, rng: random.Random) -> None:
    """Three processes, kill -9 again and again: no gate ever holds more than five, its count is what it holds, and all tasks get done."""
    async with Redrive(ground.url) as app:
        app.gate("bank:*", concurrency=5)
        await app.tasks.ledger()
        await app.database.write(_run_all, FORBID[store])
        with ExitStack() as stack:
            names = (f"worker-{number}" for number in count())

            def another() -> WorkerProcess:
                return stack.enter_context(WorkerProcess(ground, next(names), lease=2, concurrency=60, grace=5))

            workers = [another() for _ in range(3)]
            seen = 0
            for round_ in range(KILLS):
                amount = CLAIMS // KILLS
                for start in range(0, amount, 1000):
                    await app.add_many(
                        make_task("work", {"ms": rng.choice([0, 0, 1, 5])}, key=f"{round_}-{start + n}",
                                  gate=f"bank:{rng.randrange(GATES)}")
                        for n in range(min(1000, amount - start))
                    )  # fmt: skip
                await asyncio.sleep(rng.uniform(0.1, 0.5))
                victim = rng.randrange(3)
                assert workers[victim].kill() == -9
                workers[victim] = another()
                seen += await _look_at_gates(app)
            waiting = asyncio.create_task(all_ended(app, timeout=600 + CLAIMS / 50))
            while not waiting.done():
                seen += await _look_at_gates(app)
                await asyncio.wait({waiting}, timeout=0.2)
            await waiting
            assert [worker.stop() for worker in workers] == [0] * 3
        outcomes = await app.database.read(_outcomes)
        print(f"{KILLS} kills, {dict(outcomes)}, {seen} looks at gates that held something")
        assert outcomes["done"] == CLAIMS // KILLS * KILLS
        assert not any("too_many_held" in log for log in ground.logs().values())
        assert {row.held for row in await app.database.read(lambda c: c.execute(HOLDS).all())} == {0}


def _run_all(connection: Connection, statements: list[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


async def _look_at_gates(app: Redrive) -> int:
    rows = await app.database.read(lambda connection: connection.execute(HOLDS).all())
    for row in rows:
        assert row.held == row.claimed <= 5, row
    return sum(row.held > 0 for row in rows)


def _outcomes(connection: Connection) -> Counter[str]:
    return Counter(
        dict(connection.execute(text("SELECT outcome, count(*) FROM redrive_attempt GROUP BY outcome")).all())  # type: ignore[arg-type]
    )


# --- a kill at every step --------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    """The process is gone."""


class _Cut:
    """Lets so many calls to a database through; the next is lost, or its answer is, and nothing comes after it."""

    def __init__(self, app: Redrive, calls: int, *, answer: bool) -> None:
        self.calls = 0
        for name in ("read", "write", "statement"):
            monkey: Any = getattr(app.database, name)
            setattr(app.database, name, self._wrapped(monkey, calls, answer=answer))

    def _wrapped(self, call: Callable[..., Any], most: int, *, answer: bool) -> Callable[..., Any]:
        async def cut(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls > most and not (answer and self.calls == most + 1):
                raise _Killed
            answered = await call(*given, **named)
            if self.calls > most:
                raise _Killed
            return answered

        return cut


async def _live(app: Redrive, clock: VirtualClock, bank: str) -> None:
    """Opening, probing, closing, pausing and resuming: all that happens to a gate, call by call."""
    ledger: Any = await app.tasks.ledger()
    await ledger.add([make_task("transfer", key=f"{bank}-{n}", gate=bank) for n in range(8)])
    claims = list[Any]()
    while len(claims) < 3:  # gates of the steps before have a share of each claim until they were looked at
        claims += await ledger.claim(3 - len(claims), LEASE)
    await ledger.settle([settlement(claim, _failed()) for claim in claims], worker="w")  # tripped
    clock.advance(PROBE)
    [probe] = await ledger.claim(3, LEASE)
    await ledger.settle([settlement(probe, _failed())], worker="w")  # still tripped
    clock.advance(PROBE)
    [probe] = await ledger.claim(3, LEASE)
    await ledger.settle([settlement(probe, Done())], worker="w")  # returning
    clock.advance(seconds(1))
    await ledger.settle([settlement(claim, Done()) for claim in await ledger.claim(3, LEASE)], worker="w")
    await ledger.pause_gate(bank, ADA)
    assert await ledger.claim(3, LEASE) == []
    await ledger.resume_gate(bank, ADA)
    clock.advance(timedelta(minutes=1))
    await ledger.settle([settlement(claim, Done()) for claim in await ledger.claim(2, LEASE)], worker="w")
    await ledger.discover()
    await ledger.keep_gates(recount=True)


def _failed() -> Failed:
    return Failed(TransientError("the bank is down"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("store", "lost"), [("sqlite", "call"), ("postgres", "answer")], indirect=["store"])
async def test_a_kill_at_every_step_leaves_no_gate_stuck(migrated: Any, lost: str) -> None:
    """Whichever call was the last of a process, the next one gets all of its tasks done, and the gate lets through and holds nothing at the end."""
    url, clock = await migrated([]), VirtualClock()
    calls, whole = 0, False
    async with Redrive(url, clock=clock, durable=False) as following:
        following.gate("bank:*", breaker=Breaker(failures=3, within=60, probe=PROBE))
        await following.tasks.ledger()
        while not whole:
            bank = f"bank:{calls}"
            async with Redrive(url, clock=clock, durable=False) as app:
                await app.tasks.ledger()
                _Cut(app, calls, answer=lost == "answer")
                try:
                    await _live(app, clock, bank)
                    whole = True
                except _Killed:
                    pass
            await _finish(following, clock, bank)
            calls += 1
    assert calls > 15


async def _finish(app: Redrive, clock: VirtualClock, bank: str) -> None:
    """The next process, of which nobody dies."""
    ledger: Any = await app.tasks.ledger()
    await ledger.resume_gate(bank, ADA)  # where its person was killed before they could
    for _ in range(60):
        clock.advance(timedelta(seconds=31))
        lost = await ledger.reclaim(10, LEASE)
        claims = [*lost, *await ledger.claim(10, LEASE)]
        settled = [settlement(claim, Done()) for claim in claims if claim.abandoned is None]
        settled += [settlement(claim, _lost()) for claim in lost]
        assert await ledger.settle(settled, worker="next") == []
        await ledger.discover()
        counts = await ledger.counts()
        if not counts[State.WAITING] and not counts[State.CLAIMED]:
            break
    else:
        raise AssertionError(f"tasks are left: {counts}, {await ledger.gate(bank)}")
    found = await ledger.gate(bank)
    assert counts[State.DEAD] == 0
    assert found is None or (found[0].held, found[0].paused_at) == (0, None)
    await ledger.add([make_task("transfer", key=f"{bank}-another", gate=bank)])
    clock.advance(timedelta(minutes=2))
    [claim] = await ledger.claim(10, LEASE)
    assert await ledger.settle([settlement(claim)], worker="next") == []


def _lost() -> Any:
    from redrive.core.outcome import LeaseExpired

    return LeaseExpired()


# --- who sees what, and when ----------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
async def test_all_processes_see_a_change_of_limits(ground: Ground) -> None:
    """A limit that is raised in one process is obeyed by two others, and so are a pause and a resume; nobody tells them."""
    async with Redrive(ground.url) as app:
        app.gate("bank:*", concurrency=1)
        ledger: Any = await app.tasks.ledger()
        await app.add_many(make_task("work", {"ms": 60_000}, key=f"t{n}", gate=BANK) for n in range(4))

        async def running(amount: int) -> bool:
            return len(ground.starts()) == amount

        with ExitStack() as stack:
            for number in range(2):
                stack.enter_context(WorkerProcess(ground, f"w{number}", lease=30, grace=0))
            await until(lambda: running(1), "the first runs alone")
            await ledger.set_rule("bank:*", _rule(3), ADA)
            changed = time.monotonic()
            await until(lambda: running(3), "three run")
            print(f"seen after {time.monotonic() - changed:.2f} s")
            assert await ledger.pause_gate(BANK, ADA)
            await ledger.set_rule("bank:*", None, ADA)
            await app.add("work", {"ms": 0}, key="ungated")
            await until(lambda: running(4), "what has no gate runs while the bank is paused")
            assert {line.key for line in ground.starts()} == {*(f"t{n}" for n in range(3)), "ungated"}
            assert await ledger.resume_gate(BANK, ADA)
            await until(lambda: running(5), "the last runs when it is resumed")


def _rule(most: int) -> Any:
    from redrive.core.gates import read_rule

    return read_rule(concurrency=most)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_tenant_that_hangs_costs_nobody_else(url: str, tmp_path: Path) -> None:
    """One tenant fills every slot with tasks that never end; another's starts all the same."""
    started, ended = asyncio.Event(), asyncio.Event()
    hanging = 0
    async with Redrive(url) as app:

        @app.handler("deliver")
        async def deliver(task: Task) -> None:
            nonlocal hanging
            if task.tenant == "hog":
                hanging += 1
                await ended.wait()
            else:
                started.set()

        await app.add_many(
            make_task("deliver", key=f"h{n}", gate=f"endpoint:{n % 50}", tenant="hog") for n in range(400)
        )
        workers = app.workers(WorkerSettings(concurrency=20))
        running = asyncio.create_task(workers.run())
        await until(lambda: hanging >= 20, "all slots hang")
        await app.add("deliver", key="other", gate="endpoint:other", tenant="other")
        async with asyncio.timeout(120):
            await started.wait()
        assert not ended.is_set()
        ended.set()
        workers.stop()
        await running
