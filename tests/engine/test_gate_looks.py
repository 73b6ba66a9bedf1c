"""When a worker sends the claim behind gates, and that it works gates off."""

import asyncio
from datetime import timedelta
from pathlib import Path

from redrive import Context, Redrive, Task, TransientError
from redrive.core.durations import seconds
from redrive.core.task import Claim
from redrive.engine.gate_looks import Discovery, GateLooks
from redrive.engine.worker_settings import WorkerSettings
from redrive.gates import Breaker
from tests.core.test_decide import claim_of


class Ticks:
    """A clock that the test moves."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


class Gates:
    """A ledger that has gates, or has none yet."""

    def __init__(self, *, in_use: bool) -> None:
        self.in_use = in_use

    async def uses_gates(self) -> bool:
        return self.in_use


async def looks(*, in_use: bool = True) -> tuple[GateLooks, Ticks, Gates]:
    clock, ledger = Ticks(), Gates(in_use=in_use)
    look = GateLooks(ledger, clock=clock)  # type: ignore[arg-type]
    await look.prepare()
    return look, clock, ledger


def gated() -> Claim:
    return claim_of(gate="bank:DE")


async def test_a_ledger_without_gates_is_not_asked() -> None:
    """Whatever happens, no second statement is sent; when there is a gate it is, with the next claim."""
    look, _, ledger = await looks(in_use=False)
    look.soon()
    look.told(seconds(0))
    assert not look.take(10)
    ledger.in_use = True
    await look.prepare()
    assert look.take(10)


async def test_an_empty_look_is_followed_by_the_next_after_half_a_second() -> None:
    """A claim behind gates that gave nothing is not repeated with the next claim, but twice a second."""
    look, clock, _ = await looks()
    assert look.take(10)
    look.answered([claim_of()])
    assert not look.take(10)
    look.answered([])  # it did not look, so it learned nothing
    clock.at += 0.49
    assert not look.take(10)
    clock.at += 0.02
    assert look.take(10)


async def test_claims_that_are_filled_by_what_has_no_gate_do_not_look_each_time() -> None:
    """What is behind gates goes first, so a claim that was full of others has looked: the next look is half a second later."""
    look, clock, _ = await looks()
    assert look.take(2)
    look.answered([claim_of(), claim_of()])
    assert not look.take(2)
    clock.at += 1
    assert look.take(2)


async def test_after_a_claim_that_was_mostly_gated_the_others_go_first_once() -> None:
    """Then a claim that was full of what has no gate says nothing of gates, and the next one looks."""
    look, _, _ = await looks()
    assert look.take(2)
    look.answered([gated(), gated()])
    assert look.take(2)
    look.answered([claim_of(), claim_of()])
    assert look.take(2)
    look.answered([claim_of(), claim_of()])
    assert not look.take(2)


async def test_after_a_claim_that_was_hardly_gated_an_empty_look_is_believed() -> None:
    """What has no gate did not go first in it, and left room: there is nothing behind gates now."""
    look, _, _ = await looks()
    assert look.take(10)
    assert look.answered([gated()])
    assert look.take(10)
    assert not look.answered([])
    assert not look.take(10)


async def test_what_gave_something_is_asked_again() -> None:
    """While claims behind gates give something each claim looks there, and the worker comes back quickly."""
    look, clock, _ = await looks()
    look.take(10)
    look.answered([gated()])
    assert look.take(10)
    assert look.lively
    clock.at += 1
    assert not look.lively


async def test_a_wake_up_and_a_known_instant_are_looked_at() -> None:
    """After a wake-up at once, and when the ledger said that something is due."""
    look, clock, _ = await looks()
    look.take(10)
    look.answered([])
    look.told(seconds(0.5))
    assert not look.take(10)
    clock.at += 0.5
    assert look.take(10)
    look.answered([])
    clock.at += 0.02
    look.soon()
    assert look.take(10)


async def test_wake_ups_that_come_thick_are_looked_at_together() -> None:
    """Most are for what has no gate: fifty looks a second are enough, but while gates give something each wake-up counts."""
    look, clock, _ = await looks()
    look.take(10)
    look.answered([])
    look.soon()
    assert not look.take(10)
    clock.at += 0.02
    assert look.take(10)
    look.answered([gated()])
    assert look.take(10)
    look.answered([])
    look.soon()
    assert look.take(10)


async def test_discovery_takes_a_fiftieth_of_the_time() -> None:
    """A scan that took a tenth of a second is not repeated for five; a quick one whenever somebody asks."""
    clock = Ticks()

    class Slow:
        scans = 0
        seconds = 0.1

        async def discover(self, *, lately: bool = False) -> int:
            if lately:
                return 0
            self.scans += 1
            clock.at += self.seconds
            return 1

    ledger = Slow()
    discovery = Discovery(ledger, clock=clock)  # type: ignore[arg-type]
    assert [await discovery.look(), await discovery.look()] == [1, 0]
    clock.at += 4.9
    assert await discovery.look() == 0
    clock.at += 0.2
    ledger.seconds = 0.001
    assert [await discovery.look(), await discovery.look()] == [1, 1]
    assert ledger.scans == 3
    ledger.seconds = 13.0
    await discovery.look()
    clock.at += 60
    assert await discovery.look() == 1, "however long one took"


async def test_workers_obey_a_gate(tmp_path: Path) -> None:
    """Two workers, twenty tasks, two at once: all are done, and never are more than two running. What has no gate goes on."""
    app = Redrive(f"sqlite:///{tmp_path / 'work.db'}", durable=False)
    app.gate("bank:*", concurrency=2)
    running = most = done = free = 0
    ended = asyncio.Event()

    @app.handler("transfer", gate=lambda payload: f"bank:{payload['country']}")
    async def transfer(task: object) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done += 1
        if done == 20:
            ended.set()

    @app.handler("mail")
    async def mail(task: object) -> None:
        nonlocal free
        free += 1

    async with app:
        for number in range(20):
            await app.add("transfer", {"country": "DE"}, key=f"t{number}")
        await app.add("mail", key="m")
        task = await app.tasks.get("t0")
        assert task is not None
        assert task.gate == "bank:DE"
        workers = [app.workers(WorkerSettings(concurrency=10)) for _ in range(2)]
        running_workers = [asyncio.create_task(one.run()) for one in workers]
        async with asyncio.timeout(150):
            await ended.wait()
        for one in workers:
            one.stop()
        await asyncio.gather(*running_workers)
    assert (most, done, free) == (2, 20, 1)


async def test_a_worker_probes_a_destination_that_is_down(tmp_path: Path) -> None:
    """The breaker trips, one probe at a time is made, and when the destination is back everything is done; few tries were charged."""
    app = Redrive(f"sqlite:///{tmp_path / 'work.db'}", durable=False)
    app.gate("bank", breaker=Breaker(failures=2, within=60, probe=0.05))
    tries = 0
    ended, done = asyncio.Event(), set()

    @app.handler("transfer", gate="bank", retries=20, wait=0.01)
    async def transfer(task: object) -> None:
        nonlocal tries
        tries += 1
        if tries <= 4:
            raise TransientError("down")
        done.add(task.key)  # type: ignore[attr-defined]
        if len(done) == 6:
            ended.set()

    async with app:
        await app.add("transfer", key="t0")
        await app.add("transfer", key="t1")
        workers = app.workers(WorkerSettings(concurrency=2))
        running = asyncio.create_task(workers.run())
        for number in range(2, 6):
            await app.add("transfer", key=f"t{number}")
        async with asyncio.timeout(150):
            await ended.wait()
        workers.stop()
        await running
        gate = await (await app.tasks.ledger()).gate("bank")
    assert gate is not None
    assert gate[0].held == 0
    assert tries == 10
    assert timedelta(0) < gate[1].probe


async def test_transactional_handlers_do_not_use_up_the_look(tmp_path: Path) -> None:
    """Kinds with and without a transaction are claimed in turn: both halves look behind gates, and what has one runs."""
    ran = asyncio.Event()
    async with Redrive(f"sqlite:///{tmp_path / 'a.db'}", durable=False) as app:

        @app.handler("pair", transactional=True)
        async def pair(_task: Task, _context: Context) -> None: ...

        @app.handler("work", gate="bank")
        async def work(_task: Task) -> None:
            ran.set()

        await app.add("work", key="a")
        workers = app.workers(WorkerSettings(concurrency=60))
        running = asyncio.create_task(workers.run())
        async with asyncio.timeout(60):
            await ran.wait()
        workers.stop()
        await running


async def test_an_answer_that_nobody_asked_for_says_nothing() -> None:
    """Before the first claim, and after one for something else, what comes was not looked for behind gates."""
    look, _, _ = await looks()
    assert not look.answered([gated()])
    assert not look.lively
    assert look.take(10)
    look.skip()
    assert not look.answered([gated()])
    look.again()
    assert look.take(10)
    assert look.answered([gated()])
