"""Gates against processes that are killed, destinations that are down, and tenants that hang."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive, State, Task, seconds
from redrive.app import WorkerSettings
from redrive.core.outcome import Done, Failed
from redrive.errors import TransientError
from redrive.gates import Breaker
from redrive.lane import make_task
from redrive.ports import Actor
from redrive.testing import VirtualClock
from tests.ledgers.homes import settlement

from .books import until
from .gate_proofs import BANK, PROBE, held_at_most, outage
from .processes import Ground, WorkerProcess

ADA = Actor(name="ada", reason="a test")
LEASE = timedelta(seconds=30)


# --- small here, and at full size by `python -m proof` ----------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_an_outage_of_ten_minutes(ground: Ground) -> None:
    """Two processes, ten (faster) minutes: one try for each probe, none dead of three tries; then no second sees more than the rate, and all are done."""
    print(await outage(ground, 150, rate=5, burst=1, most=8, speed=100, processes=2))


@pytest.mark.long_on("postgres")
@pytest.mark.timeout(600)
async def test_concurrency_is_never_exceeded(ground: Ground, store: str, rng: random.Random) -> None:
    """Three processes, kill -9 again and again: no gate ever holds more than five, its count is what it holds, and all tasks get done."""
    print(await held_at_most(ground, store, rng, claims=200, kills=3, gates=10, slots=60))


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
@pytest.mark.parametrize(
    ("store", "lost"),
    [
        ("sqlite", "answer"),  # who dies before a call leaves what the call before has left
        *(
            pytest.param(store, lost, marks=pytest.mark.wide)
            for store, lost in (("postgres", "answer"), ("sqlite", "call"))
        ),
    ],
    indirect=["store"],
)
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


@pytest.mark.long_on("postgres")
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
    from redrive.core.gate_rules import read_rule

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
