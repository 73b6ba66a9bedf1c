"""Running one claim: what a handler does becomes an outcome, and nothing it does stops the worker."""

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from redrive.core.effect import Effect
from redrive.core.outcome import Cancelled, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Task
from redrive.engine.handlers import make_handler
from redrive.engine.run import Runner
from redrive.errors import BusinessError, PermanentError, RateLimitedError, TransientError
from tests.engine.workbench import STEADY, add

LEASE = timedelta(seconds=30)
pytestmark = pytest.mark.parametrize("store", ["sqlite"])


class Bench:
    """One claimed task at a time, and a runner for it."""

    def __init__(self, ledger, threads):
        self.ledger = ledger
        self.threads = threads
        self.runner = Runner(ledger, "bench", threads)

    async def claim(self, key="one", **options):
        await add(self.ledger, key, **options)
        [claim] = await self.ledger.claim(1, LEASE)
        return claim

    async def run(self, function, *, claim=None, policy=STEADY, **options):
        handler = make_handler("job", function, policy, **options)
        return await self.runner.run(claim or await self.claim(), handler)


@pytest.fixture
def bench(ledger, threads):
    return Bench(ledger, threads)


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [None, 7, {"any": "thing"}, False])
async def test_returning_anything_is_done(bench, returned):
    """A handler that comes back has done it, whatever it returns, and that is the result."""

    async def handle(task):
        return returned

    ran = await bench.run(handle)
    assert (ran.settlement.outcome, ran.settlement.state) == ("done", State.DONE)
    assert ran.settlement.result is returned
    assert not ran.written
    assert not ran.lost


async def test_snoozed_is_due_later_and_charges_nothing(bench):
    """A handler that returns `Snoozed` is called again after the delay without a failure."""
    ran = await bench.run(lambda task: Snoozed(timedelta(minutes=5), "not yet"))
    settled = ran.settlement
    assert (settled.outcome, settled.state, settled.failures) == ("snoozed", State.WAITING, 0)
    assert settled.delay == timedelta(minutes=5)


async def test_cancelled_ends_without_a_failure(bench):
    """A handler that returns `Cancelled` ends the task."""
    settled = (await bench.run(lambda task: Cancelled("customer left"))).settlement
    assert (settled.state, settled.failures, settled.error) == (State.CANCELLED, 0, "customer left")


@pytest.mark.parametrize(
    ("error", "state", "verdict"),
    [
        (ValueError("odd"), State.WAITING, "retry"),
        (TransientError("later"), State.WAITING, "retry"),
        (RateLimitedError("slow down", retry_after=timedelta(minutes=1)), State.WAITING, "retry"),
        (PermanentError("never"), State.DEAD, "permanent"),
        (BusinessError("refused"), State.DEAD, "business"),
        (SystemExit(3), State.WAITING, "retry"),
        (BaseExceptionGroup("two", [SystemExit(1), ValueError("x")]), State.WAITING, "retry"),
        (type("Outlandish", (BaseException,), {})("not an Exception"), State.WAITING, "retry"),
        (asyncio.CancelledError("a child of the handler's"), State.WAITING, "retry"),
        (TimeoutError("of the handler's own"), State.WAITING, "retry"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_raising_is_a_failure(bench, error, state, verdict, is_async):
    """Whatever a handler raises is a failure by the policy's classes; the runner itself raises nothing."""

    async def raise_async(task):
        raise error

    def raise_sync(task):
        raise error

    settled = (await bench.run(raise_async if is_async else raise_sync)).settlement
    assert (settled.outcome, settled.state, settled.failures) == ("failed", state, 1)
    assert settled.explanation.verdict == verdict


async def test_a_failure_goes_with_its_settlement(bench):
    """What a handler raised, and what its frames held, is not kept until the collector comes round."""

    class Large:
        pass

    seen = []

    async def handle(task):
        large = Large()
        seen.append(weakref.ref(large))
        raise ValueError("bad")

    gc.disable()
    try:
        await bench.run(handle)
        assert seen[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("transactional", [False, True])
async def test_stop_iteration_of_a_plain_function_is_a_failure(bench, transactional):
    """`next()` on an empty iterator in a thread is a failure like any other; a future alone would never end."""
    async with asyncio.timeout(60):
        ran = await bench.run(lambda task: next(iter([])), transactional=transactional)
    assert ran.settlement.outcome == "failed"
    assert ran.settlement.error == "RuntimeError: the handler raised StopIteration"


async def test_async_function_behind_a_plain_one_is_awaited(bench):
    """A lambda that returns a coroutine is not done before the coroutine is."""

    async def send(task):
        raise ValueError("raised inside the coroutine")

    settled = (await bench.run(lambda task: send(task))).settlement
    assert (settled.outcome, settled.error) == ("failed", "ValueError: raised inside the coroutine")


async def test_inner_cancellation_is_a_failure(bench):
    """A handler whose child was cancelled has failed; the worker does not mistake it for its own stop."""

    async def handle(task):
        child = asyncio.create_task(asyncio.sleep(60))
        child.cancel()
        await child

    assert (await bench.run(handle)).settlement.outcome == "failed"


def cancel_own_task():
    asyncio.current_task().cancel()


def raise_cancelled():
    raise asyncio.CancelledError


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("cancel", [cancel_own_task, raise_cancelled])
async def test_a_handler_that_cancels_itself_has_failed(bench, cancel, transactional):
    """Only whoever runs a claim can stop it: a cancellation of the handler's own making is a failure that is charged."""

    async def handle(task):
        cancel()
        await asyncio.sleep(0)

    handler = make_handler("job", handle, STEADY, transactional=transactional)
    running = asyncio.create_task(bench.runner.run(await bench.claim(), handler, lambda: False))
    ran = await running
    assert (ran.settlement.outcome, ran.settlement.failures) == ("failed", 1)
    assert ran.settlement.error.startswith("CancelledError")


async def test_a_transaction_is_not_committed_under_a_cancellation(bench):
    """A transactional handler that cancels its task on its way out has failed, and its transaction is rolled back."""

    async def handle(task):
        cancel_own_task()

    handler = make_handler("job", handle, STEADY, transactional=True)
    claim = await bench.claim()
    ran = await asyncio.create_task(bench.runner.run(claim, handler, lambda: False))
    assert (ran.written, ran.settlement.outcome) == (False, "failed")
    assert (await bench.ledger.get(claim.task.id)).state is State.CLAIMED


async def test_outer_cancellation_passes_through(bench):
    """A cancelled run ends as cancelled: what to write is the worker's business."""
    started = asyncio.Event()

    async def handle(task):
        started.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(bench.run(handle))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_timeout_is_a_failure_that_says_so(bench):
    """An async handler that takes longer than its timeout is stopped, and its error names the timeout."""
    stopped = []

    async def handle(task):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    settled = (await bench.run(handle, timeout=timedelta(milliseconds=20))).settlement
    assert settled.outcome == "failed"
    assert settled.error == "TimeoutError: the handler took longer than its timeout of 20ms"
    assert stopped == [True]


async def test_own_timeout_error_is_not_ours(bench):
    """A TimeoutError that the handler raises itself keeps its text although the handler has a timeout."""

    async def handle(task):
        raise TimeoutError("the mail server")

    settled = (await bench.run(handle, timeout=timedelta(seconds=60))).settlement
    assert settled.error == "TimeoutError: the mail server"


@pytest.mark.parametrize("how", ["task", "policy"])
async def test_not_called_after_the_deadline(bench, clock, how):
    """A task that is claimed when its deadline has passed is dead without being tried."""
    called = []
    await add(bench.ledger, "one", deadline=timedelta(hours=1) if how == "task" else None)
    clock.advance(timedelta(hours=1))
    [claim] = await bench.ledger.claim(1, LEASE)
    policy = STEADY if how == "task" else Policy(deadline=timedelta(hours=1))
    settled = (await bench.run(called.append, claim=claim, policy=policy)).settlement
    assert called == []
    assert settled.state is State.DEAD
    assert settled.error == "PermanentError: the deadline has passed, so it was not tried any more"


async def test_called_just_before_the_deadline(bench, clock):
    """One instant before the deadline it is still tried."""
    called = []
    await add(bench.ledger, "one", deadline=timedelta(hours=1))
    clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
    [claim] = await bench.ledger.claim(1, LEASE)
    await bench.run(called.append, claim=claim)
    assert len(called) == 1


async def test_elapsed_is_how_long_it_ran(bench):
    """The settlement carries the time that the handler took."""

    async def handle(task):
        await asyncio.sleep(0.05)

    began = time.monotonic()
    elapsed = (await bench.run(handle)).settlement.elapsed
    assert timedelta(milliseconds=45) < elapsed <= timedelta(seconds=time.monotonic() - began)


async def probe(task):
    """Nothing happened."""


@pytest.mark.parametrize("effect", [None, Effect(probe=probe)], ids=["plain", "with an effect"])
@pytest.mark.parametrize("why", ["unreadable", "too late"])
async def test_what_cannot_be_tried_is_not_tried(bench, clock, effect, why):
    """A payload that cannot be read, or a deadline that has passed, is a failure for good, and no handler is called."""
    called = []

    async def handle(task, context):
        called.append(task)

    await add(bench.ledger, "one", deadline=timedelta(hours=1))
    clock.advance(timedelta(hours=1))
    [claim] = await bench.ledger.claim(1, LEASE)
    if why == "unreadable":
        claim = claim._replace(unreadable="the payload is no JSON")
    settled = (await bench.run(handle, claim=claim, effect=effect)).settlement
    assert (called, settled.state, settled.outcome) == ([], State.DEAD, "failed")
    said = "the payload is no JSON" if why == "unreadable" else "the deadline has passed, so it was not tried any more"
    assert settled.error == f"PermanentError: {said}"


async def test_a_handler_with_an_effect_is_called_just_before_the_deadline(bench, clock):
    """One instant before the deadline it is still tried, and its settlement says how long that took."""
    called = []

    async def handle(task, context):
        called.append(task.key)
        await asyncio.sleep(0.02)

    await add(bench.ledger, "one", deadline=timedelta(hours=1))
    clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
    [claim] = await bench.ledger.claim(1, LEASE)
    settled = (await bench.run(handle, claim=claim, effect=Effect(probe=probe))).settlement
    assert (called, settled.outcome) == (["one"], "done")
    assert settled.elapsed >= timedelta(milliseconds=15)


@dataclass
class Invoice:
    number: int


async def test_a_payload_of_a_type_is_read_for_the_handler(bench):
    """The handler gets the type that it asked for; what does not fit is a failure for good, which says why."""
    seen = []

    async def handle(task: Task[Invoice]):
        seen.append(task.payload)

    assert (await bench.run(handle, claim=await bench.claim(payload={"number": 7}))).settlement.outcome == "done"
    assert seen == [Invoice(7)]
    settled = (await bench.run(handle, claim=await bench.claim("two", payload={"number": "x"}))).settlement
    assert (len(seen), settled.state) == (1, State.DEAD)
    assert settled.error.startswith("PermanentError: ")
    assert "number" in settled.error


async def test_a_plain_run_that_has_not_begun_is_cancelled(bench):
    """A thread cannot be stopped, but what still waits for one can, and is never called."""
    out, called = threading.Event(), []
    busy = [bench.threads.submit(out.wait, 60) for _ in range(4)]
    running = asyncio.create_task(bench.run(called.append, claim=await bench.claim()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    out.set()
    assert [one.result() for one in busy] == [True] * 4
    assert called == []


async def test_the_rest_of_a_plain_run_is_cancelled(bench):
    """A plain function that returns a coroutine has ended with it: what it would do after a cancellation is not begun."""
    inside, out, called = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    async def rest():
        called.append("rest")

    def handle(task):
        loop.call_soon_threadsafe(inside.set)
        assert out.wait(60)
        return rest()

    running = asyncio.create_task(bench.run(handle))
    await inside.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    out.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert called == []


# --- what a handler gets ----------------------------------------------------------------------------------------------


async def test_context_tells_the_try(bench):
    """The second parameter says which try it is, of how many, and holds the claim."""
    seen = []

    async def handle(task, context):
        seen.append((task.key, context.attempt, context.attempts_max, context.connection, context.claim.task is task))

    await bench.run(handle, claim=await bench.claim(failures_max=7))
    assert seen == [("one", 1, 7, None, True)]


async def test_plain_functions_run_beside_the_loop(bench):
    """A sync handler runs in a thread of its own with the caller's context variables."""
    language = contextvars.ContextVar("language")
    language.set("fi")
    seen = []
    await bench.run(lambda task: seen.append((threading.current_thread() is threading.main_thread(), language.get())))
    assert seen == [(False, "fi")]


async def test_around_encloses_the_call(bench):
    """What is put around a run sees the ledger, the claim and the handler's error."""
    seen = []

    @contextmanager
    def around(ledger, claim):
        seen.append((ledger, claim.task.key))
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise

    def handle(task):
        seen.append("called")
        raise ValueError("odd")

    bench.runner = Runner(bench.ledger, "bench", bench.threads, around)
    ran = await bench.run(handle)
    assert seen == [("redrive_task", "one"), "called", "odd"]
    assert ran.settlement.outcome == "failed"
