"""Cancelling what runs: from any process, at the next await or when a thread looks; whoever ends first has the last word."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from redrive import Context, Fixed, Policy, Redrive, State, Task, hours, jitter, seconds
from redrive.core.outcome import Cancelled, Released
from redrive.core.stop import Stop
from redrive.core.task import Claim
from redrive.effects import Effect, NotHappened
from redrive.engine import stops as module
from redrive.engine.stops import Stops
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import LedgerAwayError, UsageError
from redrive.testing import VirtualClock, drain
from tests.breadth import WIDE
from tests.core.test_decide import claim_of

PATIENCE = 60
RACES = 1000 if WIDE else 300


@pytest.fixture
async def app(url: str) -> AsyncIterator[Redrive]:
    async with Redrive(url, durable=False) as made:
        yield made


@asynccontextmanager
async def working(app: Redrive) -> AsyncIterator[None]:
    """A worker that finds nothing by itself within a test, and stops at its end."""
    workers = app.workers(WorkerSettings(grace=seconds(0), poll=hours(1)))
    running = asyncio.create_task(workers.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    finally:
        workers.stop()
        await running


async def ended(app: Redrive, key: str) -> Task:
    """The task, once it has ended."""
    while (task := await app.tasks.get(key)) is None or task.state in (State.WAITING, State.CLAIMED):
        await asyncio.sleep(0.01)
    return task


async def test_an_async_handler_is_cancelled_at_its_next_await(url: str, app: Redrive) -> None:
    """Asked by another process: the task is cancelled by that person, with the reason, and the audit has it."""
    inside, seen = asyncio.Event(), list[str]()

    @app.handler(attempts=1)
    async def wait(_task: Task) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    added = await app.add("wait", key="a")
    async with working(app), Redrive(url, durable=False) as other:
        await inside.wait()
        acted = await other.tasks.cancel_running("a", actor="ada", reason="wrong customer")
        assert acted.changed == (added.id,)
        task = await ended(app, "a")
    assert (task.state, seen) == (State.CANCELLED, ["cancelled"])
    [attempt] = await app.tasks.attempts(task.id)
    assert attempt.duration, "it says how long it ran"
    assert (attempt.outcome, attempt.error) == ("cancelled", "cancelled while it ran by ada: wrong customer")
    [deed] = await app.tasks.deeds(task.id)
    assert (deed.act, deed.actor, deed.reason) == ("cancel running", "ada", "wrong customer")
    assert await (await app.tasks.ledger()).stops_asked() == []


async def test_a_thread_is_told_and_ends_as_cancelled(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at `context.cancelled`; whatever it returns then, the task is cancelled."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.05)
    inside = threading.Event()

    @app.handler(attempts=1)
    def crunch(_task: Task, context: Context) -> str:
        inside.set()
        while not context.cancelled:
            threading.Event().wait(0.01)
        return "half of it"

    await app.add("crunch", key="a")
    async with working(app):
        await asyncio.to_thread(inside.wait)
        await app.tasks.cancel_running(["a"], actor="ada", reason="too slow")
        assert (await ended(app, "a")).state is State.CANCELLED


async def test_a_thread_that_never_looks_ends_as_what_it_was(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not told, so it has not obeyed: done is done."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    inside, out = threading.Event(), threading.Event()

    @app.handler(attempts=1)
    def crunch(_task: Task) -> str:
        inside.set()
        out.wait(PATIENCE)
        return "all of it"

    await app.add("crunch", key="a")
    async with working(app):
        await asyncio.to_thread(inside.wait)
        await app.tasks.cancel_running(["a"], actor="ada", reason="too slow")
        out.set()
        assert (await ended(app, "a")).state is State.DONE
    assert await app.result("a") == "all of it"


async def test_what_does_not_run_is_refused(app: Redrive) -> None:
    """Each with its reason; who and why must be said."""
    await app.add("wait", key="a", delay=3600)
    acted = await app.tasks.cancel_running(["a", "nobody"], actor="ada", reason="x")
    assert acted.changed == ()
    assert "it does not run now" in acted.refused.values()
    assert len(acted.refused) == 2
    with pytest.raises(UsageError, match="say who and why"):
        await app.tasks.cancel_running("a", actor="ada", reason=" ")


async def test_a_run_that_was_lost_ends_as_cancelled(url: str, clock: VirtualClock) -> None:
    """Its worker is gone: the keeper does what the person asked for, instead of running it again."""
    async with Redrive(url, clock=clock, durable=False) as app:
        app.handler("wait", attempts=3)(_never)
        await app.add("wait", key="a")
        ledger = await app.tasks.ledger()
        await ledger.claim(1, seconds(30))
        await app.tasks.cancel_running("a", actor="ada", reason="wrong customer")
        clock.advance(seconds(31))
        await drain(app)
        task = await app.tasks.get("a")
        assert task is not None
        assert task.state is State.CANCELLED


async def _never(_task: Task) -> None:
    raise AssertionError("it must not run")


@pytest.mark.parametrize("store", ["sqlite"])
async def test_cancelled_inside_its_effect_it_is_asked_about_first(url: str, clock: VirtualClock) -> None:
    """It may have happened: cancelled only when the probe has said no."""
    inside, probes = asyncio.Event(), Policy(Fixed(seconds(0)), attempts=2, jitter=jitter.none)

    async def was_paid(_task: Task) -> Any:
        return NotHappened

    async with Redrive(url, durable=False) as app:

        @app.handler("pay", attempts=1, effect=Effect(was_paid, policy=probes))
        async def pay(_task: Task, context: Context) -> None:
            async with context.effect():
                inside.set()
                await asyncio.Event().wait()

        await app.add("pay", key="a")
        async with working(app):
            await inside.wait()
            await app.tasks.cancel_running("a", actor="ada", reason="wrong customer")
            task = await ended(app, "a")
        assert (task.state, task.last_error) == (State.CANCELLED, "cancelled while it ran by ada: wrong customer")
        assert [one.outcome for one in await app.tasks.attempts(task.id)] == ["released", "cancelled"]


@pytest.mark.parametrize("store", ["sqlite"])
async def test_hundreds_of_races_between_ending_and_cancelling(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is done with one done try or cancelled with one cancelled try, whoever was first; nothing else."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.001)
    gates: dict[str, asyncio.Event] = {}
    began = asyncio.Semaphore(0)

    @app.handler(attempts=1)
    async def race(task: Task) -> str:
        gates[task.key] = asyncio.Event()
        began.release()
        await gates[task.key].wait()
        return task.key

    keys = [f"race-{number}" for number in range(RACES)]
    for key in keys:
        await app.add("race", key=key)
    workers = app.workers(WorkerSettings(grace=seconds(0), poll=hours(1), concurrency=100))
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(300):
        for start in range(0, len(keys), 100):
            for _ in range(100):
                await began.acquire()
            batch = [key for key in keys if key in gates and not gates[key].is_set()]
            asking = asyncio.create_task(app.tasks.cancel_running(batch, actor="ada", reason="race"))
            for number, key in enumerate(batch):
                if number % 3:
                    gates[key].set()
                if number % 7 == start % 7:
                    await asyncio.sleep(0)
            await asking
            for key in batch:
                await ended(app, key)
    workers.stop()
    await running
    met = {State.DONE: 0, State.CANCELLED: 0}
    for key in keys:
        task = await app.tasks.get(key)
        assert task is not None
        met[task.state] += 1
        [attempt] = await app.tasks.attempts(task.id)
        assert (attempt.outcome, attempt.state) == (task.state.value, task.state)
        if task.state is State.DONE:
            assert await app.result(key) == key
        else:
            assert attempt.error == "cancelled while it ran by ada: race"
    assert min(met.values()) > 0, met


def test_a_run_that_nobody_asked_to_end_is_released() -> None:
    """And one that was forgotten too."""
    from datetime import UTC, datetime
    from uuid import uuid4

    claim = Claim(Task(1, "a", "mail", None, State.CLAIMED, 0), uuid4(), datetime(2030, 1, 1, tzinfo=UTC))
    stops = Stops()
    assert isinstance(stops.outcome(claim), Released)
    assert not stops.tell(claim)
    assert stops.note(Stop(1, claim.claim_id, "ada", ""))
    assert not stops.note(Stop(1, claim.claim_id, "ada", ""))
    assert not stops.obeyed(claim)
    assert stops.tell(claim)
    assert stops.obeyed(claim)
    assert stops.outcome(claim) == Cancelled("cancelled while it ran by ada")
    other = claim._replace(claim_id=uuid4())
    assert not stops.tell(other)
    assert not stops.obeyed(other), "another run of the same task, which nobody told anything"
    assert isinstance(stops.outcome(other), Released)
    stops.forget(claim)
    assert not stops.obeyed(claim)
    assert isinstance(stops.outcome(claim), Released)


class Asked:
    """A ledger that can only be asked who is to stop, and counts how often it was."""

    looks = 0

    async def stops_asked(self) -> list[Stop]:
        self.looks += 1
        return []


async def test_many_wake_ups_are_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each added task wakes a worker: a statement for each of them would cost as much as the claims."""
    monkeypatch.setattr(module, "WOKEN_EVERY_SECONDS", 3600)
    ledger, stops = Asked(), Stops()
    watching = asyncio.create_task(stops.watch(ledger, lambda: True, lambda _stop: None))  # type: ignore[arg-type]
    for _ in range(100):
        stops.soon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    watching.cancel()
    assert ledger.looks == 1


async def test_a_look_at_a_store_that_is_away_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs goes on meanwhile, and the wish is heard when the store is back."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.001)
    monkeypatch.setattr(module, "WOKEN_EVERY_SECONDS", 0.001)
    stop = Stop(1, UUID(int=1), "ada", "")
    answers: list[Any] = [LedgerAwayError("gone"), ValueError("odd"), [stop]]

    class Store:
        async def stops_asked(self) -> list[Stop]:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

    heard: asyncio.Queue[Stop] = asyncio.Queue()
    watching = asyncio.create_task(Stops().watch(Store(), lambda: True, heard.put_nowait))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE):
        assert await heard.get() is stop
    watching.cancel()
    await asyncio.wait([watching])


def test_a_run_that_nobody_asked_to_end_is_forgotten_beside_one_that_was() -> None:
    """The wish for the other stays."""
    one, claim, stops = claim_of(), claim_of(), Stops()
    other = claim._replace(task=claim.task._replace(id="other"))
    stops.note(Stop(other.task.id, other.claim_id, "ada", ""))
    stops.forget(one)
    assert stops.tell(other)
