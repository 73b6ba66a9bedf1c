"""Workers that are killed at random, while thousands of tasks run."""

import asyncio
import os
import random
import time
from contextlib import ExitStack
from itertools import count

import pytest

from redrive import Redrive
from redrive.lane import NewTask, make_task

from .books import all_ended, create_effects, effects, read_books, until, watch_leases
from .processes import Ground, WorkerProcess

LEASE_SECONDS = 2.0
WORKERS = 3
TASKS_PER_KILL = 55
HANGING, HANGS_MS = "hanging", 3_600_000
ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 3)


def tasks_of(round_: int, rng: random.Random) -> list[NewTask]:
    """Some quick, some slower, some that fail once, some with an effect in the database."""
    return [
        make_task(
            rng.choices(["work", "pair"], [9, 1])[0],
            {"ms": rng.choice([0, 1, 5, 20, 80]), "fails": int(rng.random() < 0.2)},
            key=f"{round_}-{number}",
        )
        for number in range(TASKS_PER_KILL)
    ]


@pytest.mark.timeout(600 + ROUNDS)
async def test_none_is_lost_when_workers_are_killed(ground: Ground, rng: random.Random) -> None:
    """SIGKILL at any moment loses no task, leaves none held past lease + 5 s, and every extra run is on the books.

    Each run of a handler belongs to a claim of its own, each claim ends in exactly one attempt row, and a run that did
    not settle is explained by an attempt that says `lease_expired`. What a transactional handler wrote is there once.
    """
    started = time.monotonic()
    async with Redrive(ground.url) as app:
        await create_effects(app)
        with ExitStack() as stack:
            names = (f"worker-{number}" for number in count())

            def another() -> WorkerProcess:
                return stack.enter_context(WorkerProcess(ground, next(names), lease=LEASE_SECONDS, grace=5))

            watching = asyncio.create_task(watch_leases(app, LEASE_SECONDS))
            workers = [another() for _ in range(WORKERS)]
            for round_ in range(ROUNDS):
                await app.add_many(tasks_of(round_, rng))
                await asyncio.sleep(rng.uniform(0.08, 0.2))
                victim = rng.randrange(WORKERS)
                assert workers[victim].kill() == -9, "a worker ended by itself: see its log"
                workers[victim] = another()
            # The others hit by chance. This one hits for certain: the task runs until its worker is killed.
            await app.add("work", {"first_ms": HANGS_MS, "ms": 0}, key=HANGING)
            await until(lambda: ground.starts(HANGING), "it was begun")
            [held] = ground.starts(HANGING)
            [victim] = [number for number, worker in enumerate(workers) if worker.pid == held.pid]
            assert workers[victim].kill() == -9, "a worker ended by itself: see its log"
            workers[victim] = another()
            stormed = time.monotonic() - started
            ended = asyncio.create_task(all_ended(app))
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching
            await ended
            assert [worker.stop() for worker in workers] == [0] * WORKERS
        books = await read_books(app, ground.evidence)
        outcomes = books.outcomes()
        extra = books.run_count - outcomes["done"] - outcomes["failed"]
        print(
            f"{ROUNDS + 1} kills in {stormed:.1f} s, {len(books.tasks)} tasks, {books.run_count} runs, {extra} extra runs, "
            f"{dict(outcomes)}, all ended after {time.monotonic() - started:.1f} s"
        )
        assert len(books.tasks) == ROUNDS * TASKS_PER_KILL + 1
        assert books.faults() == []
        assert extra, "the kills hit nothing: this test shows nothing"
        pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
        assert await effects(app) == dict.fromkeys(pairs, 1)
