"""A worker that naps is awake in time."""

import asyncio
import time
from datetime import timedelta

import pytest

from redrive.core.backoff import Fixed
from redrive.core.jitter import none
from redrive.core.policy import Policy
from redrive.engine.nap import Nap
from redrive.events import (
    AttemptEnded,
)
from tests.engine.workbench import (
    NEVER,
    add,
    handlers_of,
    working,
)


@pytest.mark.every_store
async def test_the_next_due_time_needs_no_poll(real_ledger, heard):
    """A task that is due in 300 ms starts when it is due, and not at the poll, for which nobody here would wait."""
    started = []
    async with working(
        real_ledger,
        handlers_of(job=lambda task: started.append(time.monotonic())),
        heard=heard,
        poll=NEVER,
    ):
        added = time.monotonic()
        await add(real_ledger, "soon", delay=timedelta(milliseconds=300))
        await heard.amount(AttemptEnded, 1)
    assert started[0] - added >= 0.29
    [ended] = heard.of(AttemptEnded)
    claim = ended.settlement.claim
    assert claim.claimed_at >= claim.task.due_at


@pytest.mark.parametrize("seconds", [0, 0.2], ids=["fails at once", "fails later"])
async def test_a_retry_needs_no_poll(real_ledger, heard, seconds):
    """The second try follows its delay and not the poll, also where the worker was idle before the first one failed."""
    policy = Policy(Fixed(timedelta(milliseconds=200)), retries=1, jitter=none)

    async def handle(task, context):
        if context.attempt == 1:
            await asyncio.sleep(seconds)
            raise ValueError("odd")

    await add(real_ledger, "one")
    async with working(real_ledger, handlers_of(policy=policy, job=handle), heard=heard, poll=NEVER):
        _, second = await heard.amount(AttemptEnded, 2)
    claim = second.settlement.claim
    assert claim.claimed_at >= claim.task.due_at


class Asleep:
    """A waiter that nobody wakes, unless it is woken at once."""

    def __init__(self, *, woken=False):
        self.woken = woken

    async def wait(self, timeout):
        await asyncio.sleep(0 if self.woken else timeout.total_seconds())
        return True


async def test_a_nap_ends_when_the_next_retry_is_due():
    """What is planned before or during a nap ends it; a later retry changes nothing, and what a look has found is forgotten."""
    nap = Nap()
    nap.end_in(timedelta(milliseconds=10))
    nap.end_in(NEVER)
    async with asyncio.timeout(60):
        assert await nap.take(Asleep(), NEVER) is False
        nap.begin()
        napping = asyncio.create_task(nap.take(Asleep(), NEVER))
        await asyncio.sleep(0.05)
        assert not napping.done()
        nap.end_in(timedelta(milliseconds=10))
        assert await napping is False
        nap.begin()
        assert await nap.take(Asleep(woken=True), NEVER) is True


async def test_a_nap_is_as_long_as_it_was_planned():
    """The earliest of what was planned before and during it ends it, and its own span where nothing is."""
    nap, loop = Nap(), asyncio.get_running_loop()

    async def ends_in(plan):
        napping = asyncio.create_task(nap.take(Asleep(), NEVER))
        await asyncio.sleep(0)
        for seconds in plan:
            nap.end_in(timedelta(seconds=seconds))
        left = nap._taken.when() - loop.time()
        napping.cancel()
        await asyncio.wait([napping])
        assert nap._taken is None
        return round(left / 100)

    assert await ends_in([]) == 36
    assert await ends_in([1000, 2000]) == 10
    assert await ends_in([]) == 10, "planned before the nap"
    nap.end_in(timedelta(seconds=2000))
    assert await ends_in([3000]) == 10
    nap.begin()
    assert await ends_in([9000]) == 36, "it has an end of its own"


async def test_a_plan_that_comes_too_late_is_for_the_next_nap():
    """A nap that is just ending cannot be told to end, and whoever plans is not told of it."""
    nap = Nap()

    class Planning:
        async def wait(self, timeout):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                nap.end_in(timedelta(0))
                raise

    async with asyncio.timeout(60):
        assert await nap.take(Planning(), timedelta(milliseconds=10)) is False
        assert await nap.take(Asleep(), NEVER) is False
