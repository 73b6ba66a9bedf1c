"""What must stay as it is while work grows. `python -m bench.growth`.

- claim, settle and add with millions parked, done and dead in the table, beside a table with few;
- table and indexes of PostgreSQL after millions of updates, as autovacuum keeps them, by what each half of the updates left;
- the memory of a worker over a million tasks;
- claims of a worker with a thousand handlers, beside one with a single one.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import psycopg
import uvloop
from rich.console import Console
from sqlalchemy import Connection, text

from bench.frame import FLAT_BOUND, Limit, conclude, fresh, parser
from bench.limits import PARK, resident_mb
from bench.servers import servers
from redrive import Redrive, Task, seconds
from redrive.app import WorkerSettings
from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.lane import make_task
from redrive.operator.ports import OperatorLedger

FEW = 1_000
ROUNDS = 100
BATCH = 100
SIZE_BOUND = 1.5
MEMORY_BOUND_MB = 30.0
CHUNK = 500_000
ENDED = {
    "sqlite": """
        WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :last)
        INSERT INTO redrive_task (key, kind, payload, state, created_at, updated_at, ended_at)
        SELECT :state || '-' || n, 'tick', '{}', :state, n, n, n FROM numbers""",
    "postgresql": """
        INSERT INTO redrive_task (key, kind, payload, state, created_at, updated_at, ended_at)
        SELECT :state || '-' || n, 'tick', '{}', :state, now(), now(), now() - n * interval '1 ms'
          FROM generate_series(:first, :last - 1) AS n""",
}
T = TypeVar("T")


async def grow(app: Redrive, before: int, amount: int) -> None:
    """Have a third of so many tasks parked, done and dead each."""
    for state in ("parked", "done", "dead"):
        for first in range(before // 3, amount // 3, CHUNK):
            rows = {"first": first, "last": min(first + CHUNK, amount // 3)}

            def insert(connection: Connection, state: str = state, rows: dict[str, int] = rows) -> None:
                statement = PARK if state == "parked" else ENDED
                said = rows if state == "parked" else {**rows, "state": state}
                connection.execute(text(statement[connection.dialect.name]), said)

            await app.database.rebuild(insert)
    if app.database.dialect.name == "postgresql":
        await app.database.rebuild(lambda connection: connection.execute(text("ANALYZE redrive_task")))


class Costs:
    """The milliseconds of an add, a claim and a settlement of a hundred, in one database."""

    def __init__(self, app: Redrive, ledger: OperatorLedger, name: str, kinds: Sequence[str]) -> None:
        self._app, self._ledger, self._name, self._kinds = app, ledger, name, kinds
        self._times: dict[str, list[float]] = {}

    async def round(self, number: int) -> None:
        """Each once."""
        new = [make_task("tick", n, key=f"{self._name}-{number}-{n}") for n in range(BATCH)]
        await self._timed("add", self._app.add_many(new))
        claims = await self._timed("claim", self._ledger.claim(BATCH, seconds(30), kinds=self._kinds))
        assert len(claims) == BATCH
        settled = [decide(claim, Done(), Policy()) for claim in claims]
        await self._timed("settle", self._ledger.settle(settled, worker="bench"))

    def medians(self) -> dict[str, float]:
        return {what: statistics.median(each[ROUNDS // 10 :]) for what, each in self._times.items()}

    async def _timed(self, what: str, call: Awaitable[T]) -> T:
        began = time.perf_counter()
        came = await call
        self._times.setdefault(what, []).append((time.perf_counter() - began) * 1000)
        return came


async def flat(small: str, large: str, store: str, rows: int) -> list[Limit]:
    """The costs with many rows beside those with few, and with many kinds beside those with one. They take turns, so that a busy moment meets all of them."""
    async with Redrive(small) as few_rows, Redrive(large) as many_rows:
        await grow(few_rows, 0, FEW)
        await grow(many_rows, 0, rows)
        kinds = ["tick", *(f"kind-{n}" for n in range(999))]
        turns = [
            Costs(few_rows, await few_rows.tasks.ledger(), "few", ["tick"]),
            Costs(few_rows, await few_rows.tasks.ledger(), "handlers", kinds),
            Costs(many_rows, await many_rows.tasks.ledger(), "many", ["tick"]),
        ]
        for number in range(ROUNDS):
            for each in turns:
                await each.round(number)
        few, handlers, many = (each.medians() for each in turns)
    limits = [
        Limit(f"{what} with {rows:,} parked, done and dead / with {FEW:,} ({few[what]:.2f} ms)", store, round(many[what] / few[what], 2), "×", FLAT_BOUND)
        for what in few
    ]  # fmt: skip
    more = handlers["claim"] - few["claim"]
    return [*limits, Limit("claim for 1,000 handlers, longer than for one by", store, round(more, 2), "ms", 10.0)]


async def memory(url: str, tasks: int) -> float:
    """How much larger a worker is after ten times as many tasks, in MB."""
    done, sizes = 0, list[float]()
    async with Redrive(url) as app:

        @app.handler("tick")
        async def tick(_task: Task) -> None:
            nonlocal done
            done += 1

        workers = app.workers(WorkerSettings(concurrency=1000))
        running, added = asyncio.create_task(workers.run()), 0
        for target in (tasks // 10, tasks):
            while done < target:
                if added - done < 5_000 and added < tasks:
                    await app.add_many(make_task("tick", n) for n in range(added, added + 1_000))
                    added += 1_000
                else:
                    await asyncio.sleep(0.005)
            gc.collect()
            sizes.append(resident_mb())
        workers.stop()
        await running
    return sizes[1] - sizes[0]


def in_a_loop(url: str, tasks: int) -> float:
    return uvloop.run(memory(url, tasks))


async def churn(url: str, updates: int) -> None:
    """So many updates of tasks that are there: each is claimed, settled and returned, which is three."""
    async with Redrive(url) as app:
        ledger, left = await app.tasks.ledger(), updates
        while left > 0:
            claims = await ledger.claim(1000, seconds(30), kinds=["tick"])
            await ledger.settle([decide(claim, Done(), Policy()) for claim in claims], worker="bench")
            await app.add_many(make_task("tick", 0) for _ in range(1000 - len(claims)))
            left -= 3 * len(claims)
            await app.database.statement(_return)


def _return(connection: Connection) -> None:
    """Have what is done wait again, as if it had come back: an update more of each."""
    connection.execute(
        text(
            "UPDATE redrive_task SET state = 'waiting', ended_at = NULL, due_at = statement_timestamp() WHERE state = 'done'"
        )
    )
    connection.execute(text("TRUNCATE redrive_attempt"))


def sizes(url: str, updates: int) -> Limit:
    """How much larger table and indexes are after all of the updates than after a tenth of them."""
    found = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
        connection.execute("SELECT pg_reload_conf()")
        for part in (updates // 10, updates - updates // 10):
            uvloop.run(churn(url, part))
            row = connection.execute("SELECT pg_total_relation_size('redrive_task')").fetchone()
            assert row is not None
            found.append(row[0])
    name = f"size of table and indexes after {updates:,} updates / after a tenth ({found[0] / 2**20:.1f} MB)"
    return Limit(name, "postgres", round(found[1] / found[0], 2), "×", SIZE_BOUND)


def measure(options: argparse.Namespace, console: Console) -> list[Limit]:
    limits = list[Limit]()
    with servers(options.folder, postgres=True, rabbitmq=False) as running:
        assert running.postgres is not None
        for store in ("postgres", "sqlite"):
            console.print(f"{store}: memory over {options.tasks:,} tasks", highlight=False)
            # In a process of its own: one that has grown before hides what this one needs.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                grown = alone.submit(in_a_loop, fresh(running, store, "memory"), options.tasks).result()
            name = f"memory grown from {options.tasks // 10:,} to {options.tasks:,} tasks"
            limits.append(Limit(name, store, round(grown, 1), "MB", MEMORY_BOUND_MB))
            if store == "postgres":
                console.print(f"{store}: {options.updates:,} updates", highlight=False)
                limits.append(sizes(fresh(running, store, "updates"), options.updates))
                running.postgres.drop("updates")
            console.print(f"{store}: {options.rows:,} rows", highlight=False)
            small, large = fresh(running, store, "few"), fresh(running, store, "rows")
            limits += uvloop.run(flat(small, large, store, options.rows))
    return limits


def main(argv: Sequence[str]) -> int:
    arguments = parser("growth", __doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--updates", type=int, default=10_000_000)
    arguments.add_argument("--tasks", type=int, default=1_000_000, help="that one worker runs")
    options = arguments.parse_args(argv)
    console = Console()
    limits = measure(options, console)
    return conclude(limits, options.output, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
