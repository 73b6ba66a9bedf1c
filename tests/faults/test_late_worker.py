"""A worker that stands still past its lease and wakes up again."""

import asyncio
import random

import pytest

from redrive import Redrive

from .books import all_ended, read_books, until
from .processes import Ground, WorkerProcess, events
from .stall_proofs import stalled, stopped


@pytest.mark.long_on("postgres")
async def test_late_workers_settle_nothing(ground: Ground, rng: random.Random) -> None:
    """Workers stopped past their leases and continued settle nothing, say so, and go on working; two hundred by `python -m proof stalls`."""
    print(await stalled(ground, rng, workers=3, at_once=3))


@pytest.mark.long_on("sqlite")
async def test_a_short_stop_costs_nothing(ground: Ground) -> None:
    """A worker alone that stands still past its lease keeps its own claim when it wakes: no try is charged or repeated."""
    async with Redrive(ground.url) as app:
        await app.add("work", {"ms": 4000}, key="held")
        with WorkerProcess(ground, "alone", lease=1) as alone:
            await until(ground.starts, "it runs")
            with stopped(alone, ground.url):
                await asyncio.sleep(2)
            await all_ended(app)
            assert alone.stop() == 0
            assert events(alone.log, "settle_lost") == []
        books = await read_books(app, ground.evidence)
        assert books.faults() == []
        assert books.outcomes() == {"done": 1}
        assert books.run_count == 1
