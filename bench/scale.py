"""What a task costs PostgreSQL: bytes of WAL, table and index, with plain and partitioned history and the portable claim. `python -m bench.scale`.

Bytes do not depend on how busy the machine is; tasks per second do, and are here only to compare the ways with each other.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, text

from bench.servers import servers
from redrive.core import jitter
from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.durations import ZERO, seconds
from redrive.core.outcome import Done, Failed, Outcome
from redrive.core.policy import Policy
from redrive.core.task import NewTask
from redrive.ledgers.open import open_database, own_ledger
from redrive.ledgers.postgres.partitions import partition
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.migrate import migrate

TASKS = 20_000
BATCH = 100
PAYLOAD = {"order": 7, "text": "x" * 170}
"""About 200 bytes."""
POLICY = Policy(Fixed(ZERO), retries=3, jitter=jitter.none, name="bench")
LEASE = seconds(60)
SECONDS_MAX = 120
WORKERS = 4
LSN = text("SELECT pg_current_wal_insert_lsn()::text")
FAR = text("SELECT pg_wal_lsn_diff(CAST(CAST(:now AS text) AS pg_lsn), CAST(CAST(:then AS text) AS pg_lsn))::float8")
SIZES = text(
    "SELECT sum(pg_table_size(c.oid))::float8, sum(pg_indexes_size(c.oid))::float8 FROM pg_class AS c"
    " WHERE c.relname LIKE 'redrive%' AND c.relkind = 'r'"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way: bytes of WAL for each task, by what is done to it; bytes that stay; and how quick it was here."""

    way: str
    added: float
    run: float
    failed_once: float
    table: float
    index: float
    per_second: float
    four_per_second: float


async def measure(url: str, way: str, tasks: int) -> Cost:
    """Add and run tasks in one process, in batches, with the books balanced at the end."""
    plain = open_database(url)
    await migrate(plain)
    if way == "partitioned":
        await partition(plain, "daily", None)
    database = open_database(url_of(url, way))
    marks, took = [await _lsn(plain)], 0.0
    for first in (0, tasks):
        await _add(database, first, tasks)
        marks.append(await _lsn(plain))
        began = time.perf_counter()
        await _work(database, tasks, failing=bool(first))
        took = took or time.perf_counter() - began
        marks.append(await _lsn(plain))
    far = [await plain.read(_far, now, then) / tasks for then, now in pairwise(marks)]
    table, index = await plain.read(lambda connection: connection.execute(SIZES).one())
    four = await _work_at_once(database, [open_database(url_of(url, way)) for _ in range(WORKERS)], tasks)
    await database.close()
    await plain.close()
    return Cost(way, far[0], far[1], far[3], table / tasks / 2, index / tasks / 2, tasks / took, four)


def url_of(url: str, way: str) -> str:
    """The database for this way."""
    return f"{url}{'&' if '?' in url else '?'}claim=portable" if way == "portable" else url


async def _work_at_once(database: Database, others: list[Database], tasks: int) -> float:
    """How many of new tasks are run in a second where several want them."""
    await _add(database, 2 * tasks, tasks)
    began = time.perf_counter()
    await asyncio.gather(*(_work(other, tasks // len(others), failing=False) for other in others))
    took = time.perf_counter() - began
    for other in others:
        await other.close()
    return tasks / took


async def _add(database: Database, first: int, tasks: int) -> None:
    ledger = own_ledger(database)
    for start in range(first, first + tasks, 1000):
        await ledger.add(
            [NewTask(kind="mail", key=f"order-{n:012}", payload=PAYLOAD) for n in range(start, start + 1000)]
        )


async def _work(database: Database, tasks: int, *, failing: bool) -> None:
    """Run them all; the first try of each fails where asked for."""
    ledger, ran = own_ledger(database), 0
    deadline = time.monotonic() + SECONDS_MAX
    while ran < tasks:
        assert time.monotonic() < deadline, "tasks are missing, or this takes too long"
        claims = await ledger.claim(min(BATCH, tasks if failing else tasks - ran), LEASE)
        fails = [failing and not claim.task.failures for claim in claims]
        outcomes: list[Outcome] = [Failed(TimeoutError("too slow")) if fail else Done() for fail in fails]
        ended = [
            decide(claim, outcome, POLICY, elapsed=seconds(0.01))
            for claim, outcome in zip(claims, outcomes, strict=True)
        ]
        assert await ledger.settle(ended, worker="bench") == []
        ran += len(claims) - sum(fails)


async def _lsn(database: Database) -> str:
    return str(await database.read(lambda connection: connection.execute(LSN).scalar_one()))


def _far(connection: Connection, now: str, then: str) -> float:
    return float(connection.execute(FAR, {"now": now, "then": then}).scalar_one())


def main() -> None:
    """Measure every way, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    given = parser.parse_args()
    shown = Table(
        "way",
        "WAL added",
        "WAL run",
        "WAL fail once, run",
        "table bytes",
        "index bytes",
        "run/s here",
        "by four workers",
        title="bytes a task",
    )
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder), postgres=True, rabbitmq=False) as running:
        assert running.postgres is not None
        for way in ("plain", "partitioned", "portable"):
            cost = asyncio.run(measure(running.postgres.create(f"scale_{way}"), way, given.tasks))
            numbers = (
                cost.added,
                cost.run,
                cost.failed_once,
                cost.table,
                cost.index,
                cost.per_second,
                cost.four_per_second,
            )
            shown.add_row(cost.way, *(f"{number:,.0f}" for number in numbers))
    Console().print(shown)


if __name__ == "__main__":
    main()
