"""What must hold whatever the peers do: drift, claims that stay flat, memory that stays bounded. `python -m bench.limits`.

Each is measured on both stores beside its own bound; a bound that does not hold fails the run.
"""

import argparse
import asyncio
import gc
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import track
from sqlalchemy import Connection, text

from bench.frame import FLAT_BOUND, Limit, conclude, fresh, parser
from bench.servers import servers
from redrive import Redrive, Task, seconds
from redrive.app import WorkerSettings
from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.lane import make_task

DRIFT_PER_SECOND = 1_000
DRIFT_BOUNDS_MS = {"sqlite": 50.0, "postgres": 20.0}
PARKED_FEW, PARKED_MANY = 1_000, 1_000_000
CLAIMS = 200
MEMORY_TASKS = 100_000
MEMORY_BOUND_MB = 30.0


async def drift(url: str, span_seconds: float, parked: int) -> float:
    """p99 in ms from due to started, at a steady rate while many wait; half of the tasks are due at once, half one to three seconds later."""
    late_ms: list[float] = []
    async with Redrive(url) as app, Redrive(url) as adder:

        @app.handler("tick")
        async def tick(task: Task) -> None:
            assert task.due_at is not None
            late_ms.append((time.time() - task.due_at.timestamp()) * 1000)

        await park(app, 0, parked)
        workers = app.workers()
        running = asyncio.create_task(workers.run())
        await workers.ready.wait()
        total = int(DRIFT_PER_SECOND * span_seconds)
        began = time.monotonic()
        adding: set[asyncio.Task[Any]] = set()
        for number in range(total):
            await asyncio.sleep(max(0.0, began + number / DRIFT_PER_SECOND - time.monotonic()))
            delay = seconds(0) if number % 2 else seconds(1 + number % 20 / 10)
            one = asyncio.create_task(adder.add("tick", number, delay=delay))
            adding.add(one)
            one.add_done_callback(adding.discard)
        await asyncio.gather(*adding)
        while len(late_ms) < total and time.monotonic() < began + span_seconds + 30:
            await asyncio.sleep(0.05)
        workers.stop()
        await running
    if len(late_ms) != total:
        raise RuntimeError(f"{total - len(late_ms)} of {total} tasks did not run")
    return statistics.quantiles(late_ms, n=100)[98]


PARK = {
    "sqlite": """
        WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :last)
        INSERT INTO redrive_task (key, kind, payload, due_at, created_at, updated_at)
        SELECT 'parked-' || n, 'tick', '{}', 4000000000000000 + n, 0, 0 FROM numbers""",
    "postgresql": """
        INSERT INTO redrive_task (key, kind, payload, due_at, created_at, updated_at)
        SELECT 'parked-' || n, 'tick', '{}', now() + interval '1 year' + n * interval '1 ms', now(), now()
          FROM generate_series(:first, :last - 1) AS n""",
}


async def park(app: Redrive, first: int, last: int) -> None:
    """Store tasks that are due in a year."""

    def insert(connection: Connection) -> None:
        connection.execute(text(PARK[connection.dialect.name]), {"first": first, "last": last})

    await app.database.rebuild(insert)  # which may take as long as it takes
    if app.database.dialect.name == "postgresql":
        await app.database.statement(lambda connection: connection.execute(text("VACUUM ANALYZE redrive_task")))


async def claim_ms(url: str, parked: Sequence[int]) -> list[float]:
    """The median time of a claim of 100 due tasks, with each number of parked tasks in the table."""
    medians = []
    async with Redrive(url) as app:
        ledger = await app.tasks.ledger()
        before = 0
        for amount in parked:
            await park(app, before, amount)
            before = amount
            times = []
            for number in range(CLAIMS):
                await app.add_many(make_task("tick", n, key=f"{amount}-{number}-{n}") for n in range(100))
                began = time.perf_counter()
                claims = await ledger.claim(100, seconds(30), kinds=["tick"])
                times.append((time.perf_counter() - began) * 1000)
                assert len(claims) == 100
                await ledger.settle([decide(claim, Done(), Policy()) for claim in claims], worker="bench")
            medians.append(statistics.median(times[10:]))
    return medians


def resident_mb() -> float:
    """What this process holds now; its peak would still show what was measured before."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def memory_growth_mb(url: str) -> float:
    """How much larger a worker is after ten times as many tasks, each with a payload of 1 kB."""
    done = 0
    async with Redrive(url) as app:

        @app.handler("tick")
        async def tick(_task: Task) -> None:
            nonlocal done
            done += 1

        workers = app.workers(WorkerSettings(concurrency=500))
        running = asyncio.create_task(workers.run())
        sizes = []
        for target in (MEMORY_TASKS // 10, MEMORY_TASKS):
            while done < target:
                if (await app.tasks.counts(counted_max=5_000))["waiting"] < 2_000:  # type: ignore[index]
                    await app.add_many(make_task("tick", "x" * 1000) for _ in range(2_000))
                await asyncio.sleep(0.02)
            gc.collect()
            sizes.append(resident_mb())
        workers.stop()
        await running
    return sizes[1] - sizes[0]


def in_a_loop(url: str) -> float:
    return uvloop.run(memory_growth_mb(url))


def measure(options: argparse.Namespace, console: Console) -> list[Limit]:
    limits: list[Limit] = []
    with servers(options.folder, postgres=True, rabbitmq=False) as running:
        steps = [(store, what) for store in ("sqlite", "postgres") for what in ("drift", "claim", "memory")]
        for store, what in track(steps, "measuring limits", console=console):
            url = fresh(running, store, f"limit_{what}")
            if what == "drift":
                p99 = uvloop.run(drift(url, options.seconds, options.parked))
                name = f"drift p99 at {DRIFT_PER_SECOND:,} tasks/s while {options.parked:,} wait"
                limits.append(Limit(name, store, round(p99, 1), "ms", DRIFT_BOUNDS_MS[store]))
            elif what == "claim":
                few, many = uvloop.run(claim_ms(url, (PARKED_FEW, options.parked)))
                name = f"claim with {options.parked:,} parked tasks / with {PARKED_FEW:,} ({few:.2f} ms)"
                limits.append(Limit(name, store, round(many / few, 2), "×", FLAT_BOUND))
            else:
                # In a process of its own: one that has grown before hides what this one needs.
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                    grown = alone.submit(in_a_loop, url).result()
                name = f"memory grown from {MEMORY_TASKS // 10:,} to {MEMORY_TASKS:,} tasks"
                limits.append(Limit(name, store, round(grown, 1), "MB", MEMORY_BOUND_MB))
    return limits


def main(argv: Sequence[str]) -> int:
    arguments = parser("limits", __doc__)
    arguments.add_argument("--seconds", type=float, default=20.0, help="how long the steady rate is kept (default 20)")
    arguments.add_argument("--parked", type=int, default=PARKED_MANY, help="parked tasks (default 1,000,000)")
    options = arguments.parse_args(argv)
    console = Console()
    limits = measure(options, console)
    return conclude(limits, options.output, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
