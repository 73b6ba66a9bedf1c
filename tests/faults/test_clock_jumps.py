"""The clock of the machine jumps while SQLite's workers run."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from redrive import Context, Fixed, Policy, Redrive, Task, TransientError, hours, jitter, seconds
from redrive.app import WorkerSettings
from redrive.core.durations import ZERO
from redrive.lane import make_task
from tests.breadth import WIDE

from .books import all_ended, read_books, until
from .processes import Ground

TASKS_PER_JUMP = 60
JUMPS = [hours(1), -hours(1), -hours(1), hours(1)] * (2 if WIDE else 1)
"""They add up to nothing, and go both ways from the right time."""


class JumpingClock:
    """The real time, and what somebody did to it."""

    def __init__(self) -> None:
        self.offset = ZERO

    def now(self) -> datetime:
        """The instant, in UTC."""
        return datetime.now(UTC) + self.offset

    def jump(self, span: timedelta) -> None:
        """Move it, in either direction."""
        self.offset += span


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_the_clock_jumps(ground: Ground, rng: random.Random) -> None:
    """The clock jumps an hour ahead and back under load: no task runs twice at once, no try is charged, none is lost.

    Leases that a jump has ended are kept by the worker that still runs them. New work goes on at once after each jump;
    retries wait for the time that was written down for them.
    """
    assert sum(JUMPS, ZERO) == ZERO
    clock = JumpingClock()
    now_running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    finished: set[str] = set()
    async with Redrive(ground.url, clock=clock) as app:

        @app.handler("work", policy=Policy(Fixed(seconds(0.05)), attempts=100, jitter=jitter.none))
        async def work(task: Task, context: Context) -> None:
            runs[task.key] += 1
            now_running[task.key] += 1
            most[task.key] = max(most[task.key], now_running[task.key])
            try:
                await asyncio.sleep(task.payload["seconds"])
                if context.attempt <= task.payload["fails"]:
                    raise TransientError("not yet")
                finished.add(task.key)
            finally:
                now_running[task.key] -= 1

        workers = app.workers(WorkerSettings(lease=seconds(1), concurrency=50))
        working = asyncio.create_task(workers.run())
        for number, span in enumerate(JUMPS):
            # Some run for longer than the lease, so that every jump finds claims that live by extension.
            fresh = [
                make_task("work", {"seconds": rng.choice([0, 0.01, 0.1, 1.5]), "fails": int(rng.random() < 0.2)}, key=f"{number}-{at}")
                for at in range(TASKS_PER_JUMP)
            ]  # fmt: skip
            await app.add_many(fresh)
            await until(lambda: len(now_running - Counter()) >= 10, "work is under way")
            await asyncio.sleep(rng.uniform(0, 0.3))
            clock.jump(span)
            await app.add("work", {"seconds": 0, "fails": 0}, key=f"after-{number}")
            await until(lambda key=f"after-{number}": key in finished, "new work goes on", timeout=150)
        clock.jump(hours(2))  # past all that was written down for retries
        await all_ended(app)
        workers.stop()
        await working
        books = await read_books(app, ground.evidence)
        outcomes = books.outcomes()
        print(f"{len(JUMPS)} jumps, {len(books.tasks)} tasks, {sum(runs.values())} runs, {dict(outcomes)}")
        assert {task.state for task in books.tasks.values()} == {"done"}
        assert len(books.tasks) == len(JUMPS) * (TASKS_PER_JUMP + 1)
        assert set(most.values()) == {1}
        assert set(outcomes) == {"done", "failed"}
        assert sum(runs.values()) == outcomes["done"] + outcomes["failed"]
