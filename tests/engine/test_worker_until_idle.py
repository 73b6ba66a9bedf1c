"""A run that ends by itself when nothing is due, as cron starts it."""

import asyncio
from datetime import timedelta

import pytest

from redrive.core.backoff import Fixed
from redrive.core.gate_rules import read_rule
from redrive.core.jitter import none
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import NewTask
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.ports import Actor
from tests.engine.workbench import STEADY, add, handlers_of

SOON = timedelta(seconds=60)


async def run_to_idle(ledger, handlers, **settings):
    async with asyncio.timeout(SOON.total_seconds()):
        await Worker(ledger, handlers, WorkerSettings(poll=timedelta(hours=1), **settings)).run(until_idle=True)


async def test_ends_when_nothing_is_due(ledger):
    """All that is due is run, however many claims that takes; what is due later stays waiting."""
    ids = await add(ledger, *(f"k{n}" for n in range(25)))
    [later] = await ledger.add([NewTask(kind="job", key="later", delay=timedelta(minutes=5))])

    async def slow(task):
        await asyncio.sleep(0.01)

    await run_to_idle(ledger, handlers_of(job=slow), batch=4, concurrency=4)
    assert [(await ledger.get(id_)).state for id_ in ids] == [State.DONE] * 25
    assert (await ledger.get(later.id)).state is State.WAITING


async def test_an_empty_ledger_is_left_at_once(ledger):
    """There is nothing to wait for."""
    await run_to_idle(ledger, handlers_of(job=lambda task: None))


async def test_retries_that_fall_due_meanwhile_are_run(ledger):
    """A failure that may be tried again at once is tried again in the same run."""
    policy = Policy(Fixed(timedelta(0)), retries=2, jitter=none)
    [id_] = await add(ledger, "a")

    def fail(task):
        raise ConnectionError("down")

    await run_to_idle(ledger, handlers_of(policy=policy, job=fail))
    assert len(await ledger.attempts(id_)) == 3
    assert (await ledger.get(id_)).state is State.DEAD


@pytest.mark.every_store
async def test_claims_of_a_killed_run_are_run_again(ledger, clock):
    """What a run that was killed still holds is settled as lost before anything else, and runs again uncharged."""
    [id_] = await add(ledger, "a")
    await ledger.claim(1, timedelta(seconds=30))
    clock.advance(timedelta(seconds=31))
    await run_to_idle(ledger, handlers_of(policy=STEADY, job=lambda task: None))
    task = await ledger.get(id_)
    assert (task.state, task.failures) == (State.DONE, 0)
    assert [attempt.outcome for attempt in await ledger.attempts(id_)] == ["lease_expired", "done"]


async def test_old_tasks_are_pruned(ledger, clock):
    """Where nothing but such runs keeps house, they delete what is older than its retention."""
    [id_] = await add(ledger, "a")
    handlers = handlers_of(job=lambda task: None)
    await run_to_idle(ledger, handlers)
    clock.advance(timedelta(days=2))
    await run_to_idle(ledger, handlers, retention={State.DONE: timedelta(days=1)})
    assert await ledger.get(id_) is None


async def test_what_is_behind_a_gate_is_run_too(ledger):
    """One at a time, as its gate says, and the run is over when none is left."""
    added = await ledger.add([NewTask(kind="job", key=f"k{number}", gate="bank:DE") for number in range(3)])
    await ledger.set_rule("bank:DE", read_rule(concurrency=1), Actor(name="ada", reason="narrow"))
    inside, most = 0, 0

    async def handle(task):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await run_to_idle(ledger, handlers_of(job=handle))
    assert [(await ledger.get(one.id)).state for one in added] == [State.DONE] * 3
    assert most == 1
