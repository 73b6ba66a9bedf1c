"""One, two and four worker processes on the same tasks, in turns. `python -m bench.processes`.

Two processes must not be slower than one: claims of several workers that wanted the same head of the queue would be. Each counts what it
has run, so that it is seen whether they share the work; and what the server spent on a task, which hardly swings.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.synchronize import Event, Semaphore
from typing import Any

import uvloop
from rich.console import Console
from sqlalchemy import Connection, func, select, text

from bench import spent
from bench.frame import Limit, conclude, fresh, parser, prepare
from bench.servers import servers
from redrive import Fixed, Policy, Redrive, Task, TransientError, jitter, seconds
from redrive.app import WorkerSettings
from redrive.lane import make_task
from redrive.ledgers.sql import schema
from redrive.running import tuned_runner

AMOUNTS = (1, 2, 4)
POLICY = Policy(Fixed(seconds(0)), retries=2, jitter=jitter.none)
LIMIT_SECONDS = 300
TWO_BOUND = 1.0
"""How long two processes may take, as a part of what one does."""


def worker(url: str, ready: Semaphore, go: Event, stop: Event, ran: Any) -> None:
    """One process: it says when it is ready, works from `go` to `stop`, and says how often its handler was called."""

    async def run() -> int:
        calls = 0
        async with Redrive(url) as app:

            @app.handler("tick", policy=POLICY)
            async def tick(task: Task) -> None:
                nonlocal calls
                calls += 1
                if task.failures == 0:
                    raise TransientError("not yet")

            workers = app.workers(WorkerSettings(concurrency=1000))
            ready.release()
            await asyncio.to_thread(go.wait)
            running = asyncio.create_task(workers.run())
            await asyncio.to_thread(stop.wait)
            workers.stop()
            await running
        return calls

    with tuned_runner() as runner:  # as `redrive worker` runs
        ran.put(runner.run(run()))


async def fill(url: str, tasks: int) -> None:
    await prepare(url)
    async with Redrive(url) as app:
        for first in range(0, tasks, 1000):
            few = range(first, min(first + 1000, tasks))
            await app.add_many(make_task("tick", n, key=f"task-{n}") for n in few)
        if app.database.dialect.name != "sqlite":
            await app.database.statement(lambda connection: connection.execute(text("VACUUM ANALYZE redrive_task")))


async def until_done(url: str, tasks: int) -> None:
    done = select(func.coalesce(func.sum(schema.minute.c.done), 0))

    def ended(connection: Connection) -> int:
        return int(connection.execute(done).scalar_one())

    deadline = time.monotonic() + LIMIT_SECONDS
    async with Redrive(url) as app:
        while await app.database.read(ended) < tasks:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all of {tasks:,} tasks were done in {LIMIT_SECONDS} s")
            await asyncio.sleep(0.01)


def timed(url: str, amount: int, tasks: int, server: int | None) -> tuple[float, float, list[int]]:
    """Seconds for all of the tasks, µs of the server for each, and how many tries each process has run."""
    uvloop.run(fill(url, tasks))
    context = get_context("spawn")
    ready, go, stop, ran = context.Semaphore(0), context.Event(), context.Event(), context.Queue()
    children = [context.Process(target=worker, args=(url, ready, go, stop, ran)) for _ in range(amount)]
    for child in children:
        child.start()
    try:
        for _ in children:  # what it takes to start a process is not what its work takes
            if not ready.acquire(timeout=LIMIT_SECONDS):
                raise RuntimeError(f"not all of {amount} processes were ready in {LIMIT_SECONDS} s")
        before, began = spent.of_server(server), time.perf_counter()
        go.set()
        uvloop.run(until_done(url, tasks))
        took, cost = time.perf_counter() - began, spent.of_server(server) - before
        stop.set()
        calls = [ran.get(timeout=60) for _ in children]
        if sum(calls) != 2 * tasks:
            raise RuntimeError(f"{sum(calls):,} tries of {tasks:,} tasks that fail once")
        return took, 1e6 * cost / tasks, calls
    finally:
        for child in children:
            child.join(10)
            child.kill()


def main(argv: Sequence[str]) -> int:
    arguments = parser("processes", __doc__)
    arguments.add_argument("--tasks", type=int, default=40_000, help="each fails once")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["postgres", "sqlite"])
    options = arguments.parse_args(argv)
    console, limits = Console(), list[Limit]()
    for store in options.stores:
        with ExitStack() as stack:
            running = stack.enter_context(servers(options.folder, postgres=store == "postgres", rabbitmq=False))
            postgres, found = running.postgres, dict[int, list[tuple[float, float]]]()
            for number in range(options.rounds):
                for amount in AMOUNTS:
                    name = f"processes_{amount}_{number}"
                    url = fresh(running, store, name, ready=False)
                    took, cost, calls = timed(url, amount, options.tasks, None if postgres is None else postgres.pid)
                    found.setdefault(amount, []).append((took, cost))
                    shares = " + ".join(f"{each:,}" for each in calls)
                    rate = options.tasks / took
                    console.print(
                        f"{store}, {amount}: {rate:,.0f} tasks/s, {shares} tries, {cost:.1f} µs of the server",
                        highlight=False,
                    )
                    if postgres is not None:
                        postgres.drop(name)
        seconds_of = {amount: statistics.median(took for took, _ in each) for amount, each in found.items()}
        for amount in AMOUNTS[1:]:
            ratio = round(seconds_of[amount] / seconds_of[1], 2)
            rate = options.tasks / seconds_of[amount]
            bound = TWO_BOUND if amount == 2 else float("inf")
            limits.append(Limit(f"time of {amount} processes / of one ({rate:,.0f} tasks/s)", store, ratio, "×", bound))
    return conclude(limits, options.output, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
