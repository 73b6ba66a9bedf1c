"""A worker that stops, or breaks: what runs may end, the rest goes back."""

import asyncio
import threading

import pytest

from redrive.core.durations import ZERO
from redrive.core.states import State
from redrive.engine import worker as module
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError
from redrive.events import (
    LedgerAway,
    ThreadsLeft,
)
from tests.engine.workbench import (
    SECOND,
    Faulty,
    add,
    handlers_of,
    ignore,
    working,
)


async def test_stop_waits_for_running_handlers(real_ledger, heard, gate):
    """Within the grace handlers end by themselves and are settled; nothing new is claimed."""
    running, waiting = (await add(real_ledger, "running", "waiting"))[:2]
    async with working(real_ledger, handlers_of(job=gate), heard=heard, concurrency=1) as worker:
        await gate.until_started(1)
        worker.stop()
        await asyncio.sleep(0.05)
        gate.let_out()
    assert len(gate.started) == 1
    by_key = {key: (await real_ledger.get_by_key(key)).state for key in ("running", "waiting")}
    assert by_key[gate.started[0]] is State.DONE
    assert sorted(by_key.values()) == [State.DONE, State.WAITING]
    assert not gate.cancelled
    assert {running, waiting} == {(await real_ledger.get_by_key(key)).id for key in by_key}


async def test_stop_releases_the_rest_uncharged(real_ledger, heard, gate):
    """What is not finished after the grace goes back: due at once, no failure, its attempt says released."""
    ids = await add(real_ledger, "a", "b", "c")
    async with working(real_ledger, handlers_of(job=gate), heard=heard, grace=ZERO) as worker:
        await gate.until_started(3)
        worker.stop()
    assert sorted(gate.cancelled) == ["a", "b", "c"]
    for id_ in ids:
        task = await real_ledger.get(id_)
        assert (task.state, task.failures) == (State.WAITING, 0)
        assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["released"]
    assert len(await real_ledger.claim(3, SECOND)) == 3


async def test_stuck_handlers_are_released_all_the_same(real_ledger, heard, monkeypatch):
    """A handler that ignores its cancellation does not keep the worker from ending, nor its task from going back."""
    monkeypatch.setattr(module, "CANCEL_PATIENCE_SECONDS", 0.5)
    out = asyncio.Event()
    inside = asyncio.Event()

    async def stuck(task):
        inside.set()
        while not out.is_set():
            try:
                await out.wait()
            except asyncio.CancelledError:
                continue

    [id_] = await add(real_ledger, "stuck")
    async with working(real_ledger, handlers_of(job=stuck), heard=heard, grace=ZERO) as worker:
        await inside.wait()
        worker.stop()
    out.set()
    await asyncio.sleep(0)
    task = await real_ledger.get(id_)
    assert (task.state, task.failures) == (State.WAITING, 0)


class ThreadGate:
    """A plain handler that stays in its thread until it is let out."""

    def __init__(self):
        self.out = threading.Event()
        self.started = []
        self._loop = asyncio.get_running_loop()
        self._inside = asyncio.Event()

    def __call__(self, task):
        self.started.append(task.key)
        self._loop.call_soon_threadsafe(self._inside.set)
        assert self.out.wait(60)

    async def until_inside(self):
        async with asyncio.timeout(60):
            await self._inside.wait()


async def test_a_thread_that_outlives_the_grace_keeps_its_claim(real_ledger, heard):
    """It is not released but extended until the thread ends, and settled as it ended: nobody can run it a second time."""
    gate = ThreadGate()
    [id_] = await add(real_ledger, "one")
    worker = Worker(real_ledger, handlers_of(job=gate), WorkerSettings(grace=ZERO, lease=SECOND), observers=[heard])
    running = asyncio.create_task(worker.run())
    await gate.until_inside()
    worker.stop()
    [left] = await heard.amount(ThreadsLeft, 1)
    assert (left.kinds, left.amount) == (("job",), 1)
    first = (await real_ledger.get(id_)).lease_until
    async with asyncio.timeout(60):
        # Held for more than a lease: only time itself can show that it is extended.
        while (held := await real_ledger.get(id_)).lease_until - first <= SECOND:
            assert held.state is State.CLAIMED
            await asyncio.sleep(0.05)
    assert not running.done()
    gate.out.set()
    await running
    assert gate.started == ["one"]
    assert (await real_ledger.get(id_)).state is State.DONE
    assert [attempt.outcome for attempt in await real_ledger.attempts(id_)] == ["done"]


async def test_a_process_that_exits_does_not_wait_for_threads(real_ledger, heard):
    """With `then_exit` the worker ends after the grace; the claim is kept, and comes back by its lease."""
    gate = ThreadGate()
    [id_] = await add(real_ledger, "one")
    worker = Worker(real_ledger, handlers_of(job=gate), WorkerSettings(grace=ZERO), observers=[heard])
    running = asyncio.create_task(worker.run(then_exit=True))
    await gate.until_inside()
    worker.stop()
    async with asyncio.timeout(60):
        await running
    assert len(heard.of(ThreadsLeft)) == 1
    assert (await real_ledger.get(id_)).state is State.CLAIMED
    gate.out.set()


async def test_stop_before_the_start(real_ledger):
    """A worker that was stopped before it ran comes back and claims nothing to keep."""
    [id_] = await add(real_ledger, "one")
    worker = Worker(real_ledger, handlers_of(job=ignore))
    worker.stop()
    async with asyncio.timeout(60):
        await worker.run()
    assert (await real_ledger.get(id_)).state is not State.CLAIMED


async def test_a_broken_loop_does_not_pass_in_silence(real_ledger, gate):
    """If the worker itself has a fault, it releases what runs and raises, instead of idling for ever."""
    faulty = Faulty(real_ledger)

    async def claim(*args, **options):
        if gate.started:
            raise MemoryBroken
        return await real_ledger.claim(*args, **options)

    class MemoryBroken(BaseException):
        pass

    faulty.claim = claim
    [id_] = await add(real_ledger, "one")
    worker = Worker(faulty, handlers_of(job=gate), WorkerSettings(grace=ZERO))
    with pytest.raises(MemoryBroken):
        async with asyncio.timeout(60):
            await worker.run()
    assert (await real_ledger.get(id_)).state is State.WAITING


async def test_a_worker_ends_though_nothing_can_be_written(real_ledger, heard, monkeypatch):
    """A ledger that stays away holds up no worker that stops: the lease brings back what was not written. Its threads end too."""
    monkeypatch.setattr(module, "CANCEL_PATIENCE_SECONDS", 0.05)
    faulty = Faulty(real_ledger)

    async def settle(*_arguments, **_options):
        raise LedgerAwayError("gone")

    faulty.settle = settle
    [id_] = await add(real_ledger, "one")
    async with working(faulty, handlers_of(job=ignore), heard=heard, grace=ZERO) as worker:
        await heard.amount(LedgerAway, 1)
    assert (await real_ledger.get(id_)).state is State.CLAIMED
    with pytest.raises(RuntimeError, match="shutdown"):
        worker._threads.submit(ignore, None)
