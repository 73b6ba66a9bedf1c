"""Many processes on one SQLite file."""

import time
from collections import Counter
from contextlib import ExitStack

import pytest

from redrive import Redrive
from redrive.lane import make_task
from tests.breadth import WIDE

from .books import all_ended, create_effects, effects, read_books, until
from .processes import Ground, WorkerProcess, events

PROCESSES = 8 if WIDE else 4
SEEDS = 4 * PROCESSES
TASKS_PER_SEED = 10
PATIENCE_SECONDS = 400


def seeding(ground: Ground) -> set[int]:
    """The processes that have added some."""
    return {line.pid for line in ground.starts() if "-" not in line.key}


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_many_processes_share_one_file(empty_url: str, tmp_path) -> None:
    """Four processes (eight in the wide run) create, fill and work off one file at once: nobody ever hears that it is locked, each task runs once.

    Adding, working, and transactional handlers that hold the file's one write lock, all at the same time.
    """
    ground = Ground(empty_url, tmp_path)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(WorkerProcess(ground, f"worker-{number}", lease=30, concurrency=4, grace=5))
            for number in range(PROCESSES)
        ]
        await until(
            lambda: sum("working on" in log for log in ground.logs().values()) == PROCESSES, "all have opened the file"
        )
        async with Redrive(ground.url) as app:
            await create_effects(app)
            waves = 0
            ends = time.monotonic() + PATIENCE_SECONDS
            while seeding(ground) != {
                worker.pid for worker in workers
            }:  # on a busy machine some may sleep through a wave
                assert time.monotonic() < ends, "some processes do nothing"
                seeds = [make_task("seed", {"amount": TASKS_PER_SEED}, key=f"s{waves}x{n}") for n in range(SEEDS)]
                await app.add_many(seeds)
                await all_ended(app)
                waves += 1
            assert [worker.stop() for worker in workers] == [0] * PROCESSES
            books = await read_books(app, ground.evidence)
            assert len(books.tasks) == waves * SEEDS * (1 + TASKS_PER_SEED)
            assert books.faults() == []
            assert books.outcomes() == {"done": len(books.tasks)}
            assert books.run_count == len(books.tasks)
            pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
            assert await effects(app) == dict.fromkeys(pairs, 1)
    by_process = Counter(line.pid for line in ground.starts())
    print(f"{len(books.tasks)} tasks in {waves} waves, by process {sorted(by_process.values())}")
    for name, log in ground.logs().items():
        for bad in ("locked", "busy", "Traceback"):
            assert bad not in log, f"{bad!r} in {name}"
        for event in ("ledger_away", "settle_lost", "settle_failed"):
            assert events(log, event) == [], name
