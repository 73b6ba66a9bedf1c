"""Transactional handlers: their writes and the settlement commit together, or neither does."""

import asyncio
import contextvars
import threading
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from redrive.core.decide import decide
from redrive.core.outcome import Cancelled, Done, LeaseExpired, Snoozed
from redrive.core.states import State
from redrive.engine.handlers import make_handler
from redrive.engine.run import Runner
from redrive.errors import LedgerAwayError
from tests.engine.workbench import STEADY, Faulty, add

LEASE = timedelta(seconds=30)
WRITE = text("INSERT INTO effect VALUES ('written')")


@pytest.fixture
async def effects(ledger):
    """A table of the user's in the ledger's database; calling it gives what was committed."""
    await ledger.database.write(lambda connection: connection.execute(text("CREATE TABLE effect (name text)")))

    async def read():
        return await ledger.database.read(
            lambda connection: list(connection.execute(text("SELECT name FROM effect")).scalars())
        )

    return read


@pytest.fixture
async def claim(ledger):
    await add(ledger, "one")
    [claim] = await ledger.claim(1, LEASE)
    return claim


@pytest.fixture
def run(ledger, claim, threads):
    async def run(function, on=None):
        handler = make_handler("job", function, STEADY, transactional=True)
        return await Runner(on or ledger, "bench", threads).run(claim, handler)

    return run


async def write(task, context):
    await context.connection.execute(WRITE)


def write_sync(task, context):
    context.connection.execute(WRITE)


@pytest.mark.parametrize("function", [write, write_sync], ids=["async", "sync"])
async def test_writes_commit_with_the_settlement(ledger, claim, run, effects, function):
    """When the run comes back, the handler's row, the task's state and its attempt are all there."""
    ran = await run(function)
    assert (ran.written, ran.lost) == (True, False)
    assert await effects() == ["written"]
    assert (await ledger.get(claim.task.id)).state is State.DONE
    assert [attempt.outcome for attempt in await ledger.attempts(claim.task.id)] == ["done"]


async def test_a_plain_handler_does_not_stop_the_loop(ledger, claim, run, effects):
    """It runs in a thread, with its context variables; the loop goes round while it waits between two statements."""
    language = contextvars.ContextVar("language")
    language.set("fi")
    loop, came_round, seen = asyncio.get_running_loop(), threading.Event(), []

    def handle(task, context):
        write_sync(task, context)
        loop.call_soon_threadsafe(came_round.set)
        assert came_round.wait(150), "the loop stands still"
        seen.append((threading.current_thread() is threading.main_thread(), language.get()))
        found = context.connection.execute(text("SELECT name FROM effect")).scalars().all()
        assert found == ["written"]

    assert (await run(handle)).written
    assert seen == [(False, "fi")]
    assert await effects() == ["written"]


async def test_what_the_database_refuses_is_raised_in_the_handler(ledger, claim, run, effects):
    """An error of a statement comes up where the plain handler executed it, and it may go on from there."""
    seen = []

    def handle(task, context):
        try:
            with context.connection.begin_nested():
                context.connection.execute(text("INSERT INTO nowhere VALUES (1)"))
        except DBAPIError as error:
            seen.append(type(error).__name__)
        write_sync(task, context)

    assert (await run(handle)).written
    assert len(seen) == 1
    assert await effects() == ["written"]


async def test_a_cancelled_run_waits_for_its_thread(ledger, claim, run, effects):
    """A plain handler cannot be stopped: the worker that cancels it gets what it came to, and its transaction stays whole."""
    inside, out = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def handle(task, context):
        write_sync(task, context)
        loop.call_soon_threadsafe(inside.set)
        assert out.wait(150)

    running = asyncio.create_task(run(handle))
    await inside.wait()
    running.cancel()
    await asyncio.sleep(0)
    out.set()
    assert (await running).written
    assert await effects() == ["written"]


@pytest.mark.parametrize("answer", [Snoozed(timedelta(minutes=1)), Cancelled()], ids=["snoozed", "cancelled"])
async def test_snoozing_and_cancelling_commit_too(ledger, claim, run, effects, answer):
    """A handler that snoozes or cancels keeps what it has written."""

    async def handle(task, context):
        await write(task, context)
        return answer

    assert (await run(handle)).written
    assert await effects() == ["written"]
    assert (await ledger.get(claim.task.id)).state is not State.CLAIMED


@pytest.mark.parametrize("function", [write, write_sync], ids=["async", "sync"])
async def test_failure_rolls_back(ledger, claim, run, effects, function):
    """What a failing handler wrote is gone; its settlement is still to be written, by the worker."""

    async def handle(task, context):
        await write(task, context)
        raise ValueError("odd")

    def handle_sync(task, context):
        write_sync(task, context)
        raise ValueError("odd")

    ran = await run(handle if function is write else handle_sync)
    assert (ran.written, ran.lost, ran.settlement.outcome) == (False, False, "failed")
    assert await effects() == []
    assert (await ledger.get(claim.task.id)).state is State.CLAIMED


async def test_lost_claim_rolls_back(ledger, claim, run, effects, clock):
    """A worker whose claim was settled by another commits nothing of its own."""

    async def lose(task, context):
        await write(task, context)

    clock.advance(LEASE)
    [taken_over] = await ledger.reclaim(1, LEASE)
    await ledger.settle([decide(taken_over, LeaseExpired(), STEADY)], worker="keeper")
    ran = await run(lose)
    assert (ran.written, ran.lost, ran.settlement.claim) == (False, True, claim)
    assert await effects() == []
    assert [attempt.outcome for attempt in await ledger.attempts(claim.task.id)] == ["lease_expired"]


async def test_commit_error_is_a_failure(ledger, claim, run, effects):
    """If the commit fails, nothing is written, and the try has failed."""
    faulty = Faulty(ledger)

    @asynccontextmanager
    async def transaction():
        async with ledger.transaction() as opened:
            yield opened
            raise LedgerAwayError("the commit was not answered")

    faulty.transaction = transaction
    ran = await run(write, on=faulty)
    assert (ran.written, ran.lost, ran.settlement.outcome) == (False, False, "failed")
    assert ran.perhaps is not None
    assert await effects() == []
    assert await ledger.settle([ran.settlement], worker="bench") == []


async def test_commit_whose_answer_was_lost_is_not_charged(ledger, claim, run, effects):
    """If the commit did happen though its answer was lost, the failure is refused by the fence: done stays done."""
    faulty = Faulty(ledger)

    @asynccontextmanager
    async def transaction():
        async with ledger.transaction() as opened:
            yield opened
        raise LedgerAwayError("the answer was lost")

    faulty.transaction = transaction
    ran = await run(write, on=faulty)
    assert ran.settlement.outcome == "failed"
    assert ran.perhaps is not None
    assert ran.perhaps.outcome == "done"
    assert len(await ledger.settle([ran.settlement], worker="bench")) == 1
    assert await effects() == ["written"]
    assert (await ledger.get(claim.task.id)).state is State.DONE


async def test_ledger_away_before_the_call_charges_nothing(ledger, claim, run):
    """If no transaction can be opened because the ledger is away, the handler is not called and no try is charged."""
    faulty = Faulty(ledger)
    called = []

    @asynccontextmanager
    async def transaction():
        raise LedgerAwayError("no connection")
        yield

    faulty.transaction = transaction
    ran = await run(lambda task, context: called.append(task), on=faulty)
    assert called == []
    assert (ran.settlement.outcome, ran.settlement.state, ran.settlement.failures) == ("released", State.WAITING, 0)


async def test_cancelled_run_rolls_back(ledger, claim, run, effects):
    """A run that the worker cancels leaves nothing behind, not even a lock."""
    wrote = asyncio.Event()

    async def handle(task, context):
        await write(task, context)
        wrote.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(run(handle))
    await wrote.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await effects() == []
    async with asyncio.timeout(60):
        assert await ledger.settle([decide(claim, Done(), STEADY)], worker="bench") == []


async def test_an_error_before_the_call_that_is_not_the_ledgers_is_charged(ledger, claim, run):
    """A transaction that cannot be opened for any other reason would be tried for ever if nobody charged it."""
    faulty = Faulty(ledger)

    @asynccontextmanager
    async def transaction():
        raise ValueError("odd")
        yield

    faulty.transaction = transaction
    ran = await run(write, on=faulty)
    assert (ran.settlement.outcome, ran.settlement.failures, ran.settlement.error) == ("failed", 1, "ValueError: odd")
    assert ran.perhaps is None


@pytest.mark.parametrize("fails", [False, True])
async def test_a_transactional_run_says_how_long_it_took(ledger, claim, run, effects, fails):
    """Whether it was written with its transaction or is still to be written."""

    async def handle(task, context):
        await asyncio.sleep(0.02)
        if fails:
            raise ValueError("odd")

    ran = await run(handle)
    assert ran.settlement.elapsed >= timedelta(milliseconds=15)
    assert ran.written is not fails


async def test_a_cancellation_before_the_call_charges_nothing(ledger, claim, threads):
    """Something cancels the run while its transaction is opened, and it is not the worker: nothing was tried."""
    faulty = Faulty(ledger)

    @asynccontextmanager
    async def transaction():
        raise asyncio.CancelledError
        yield

    faulty.transaction = transaction
    handler = make_handler("job", write, STEADY, transactional=True)
    ran = await Runner(faulty, "bench", threads).run(claim, handler, lambda: False)
    assert (ran.settlement.outcome, ran.settlement.failures) == ("released", 0)
    with pytest.raises(asyncio.CancelledError):
        await Runner(faulty, "bench", threads).run(claim, handler, lambda: True)


async def test_what_encloses_a_call_takes_no_transaction_away(ledger, claim, threads, effects):
    """With a span around it the handler has its connection as ever."""
    handler = make_handler("job", write, STEADY, transactional=True)
    ran = await Runner(ledger, "bench", threads, lambda *_: nullcontext()).run(claim, handler)
    assert ran.written
    assert await effects() == ["written"]
