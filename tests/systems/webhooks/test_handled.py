"""Which types have a handler: here, and in the processes that say so."""

import asyncio
from typing import Any

from sqlalchemy import text

from redrive import Task, seconds
from redrive.errors import LedgerAwayError
from redrive.systems.webhooks.handled import ALIVE_FOR
from redrive.testing import VirtualClock

from .conftest import Make


async def nothing(task: Task) -> None:
    pass


async def test_types_of_other_processes_are_known(make: Make, clock: VirtualClock):
    """By name and by pattern, for as long as a worker says so."""
    (app, here), (_, worker) = make(clock=clock), make(clock=clock)
    here.handler("mine")(nothing)
    for kind in ("order.*", "a.b", "*[x"):
        worker.handler(kind)(nothing)
    asked = {"mine", "order.paid", "order", "a.b", "aXb", "y[x", "y[xz"}

    async def handled() -> set[str]:
        await app.open()
        return await app.database.read(here._handled.among, asked)

    assert await handled() == {"mine"}
    await worker._handled.say()
    await worker._handled.say()
    assert await handled() == {"mine", "order.paid", "a.b", "y[x"}
    clock.advance(ALIVE_FOR - seconds(1))
    assert len(await handled()) == 4
    clock.advance(seconds(1))
    assert await handled() == {"mine"}


async def test_a_worker_says_it_again_and_survives_outages(make: Make, monkeypatch: Any):
    """It is said at the start and from time to time, whatever happens in between, until it is told to stop."""
    monkeypatch.setattr("redrive.systems.webhooks.handled.SAY_EVERY", seconds(0.001))
    app, webhooks = make()
    webhooks.handler("a")(nothing)
    await app.open()
    said, real = [0], webhooks._handled.say
    enough, stopped = asyncio.Event(), asyncio.Event()

    async def say() -> None:
        said[0] += 1
        if said[0] > 4:
            enough.set()
        elif said[0] > 1:
            raise (LedgerAwayError("away") if said[0] == 2 else ValueError("odd"))
        await real()

    monkeypatch.setattr(webhooks._handled, "say", say)
    running = asyncio.create_task(webhooks.run(stopped))
    await asyncio.wait_for(enough.wait(), 60)
    stopped.set()
    await asyncio.wait_for(running, 60)
    found = await app.database.read(
        lambda connection: connection.execute(text("SELECT event_type FROM webhook_handlers")).scalars().all()
    )
    assert found == ["a"]
