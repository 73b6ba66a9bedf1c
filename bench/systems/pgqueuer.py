"""PgQueuer on PostgreSQL: batches of 500, all tables logged, its own retry by `DatabaseRetryEntrypointExecutor`.

Adding: `enqueue` with lists, one statement for each batch.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import DatabaseRetryEntrypointExecutor, PgQueuer
from pgqueuer.models import Job as PgQueuerJob
from pgqueuer.queries import Queries

from bench.job import ADD_BATCH, Audit, Job, Tally

BATCH = 500
POOL = 8


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop, as PgQueuer's own command line does."""
    return uvloop.run(coroutine)


@asynccontextmanager
async def queries(job: Job) -> AsyncIterator[Queries]:
    connection = await asyncpg.connect(job.url)
    try:
        yield Queries.from_asyncpg_connection(connection)
    finally:
        await connection.close()


def prepare(job: Job) -> None:
    async def install() -> None:
        async with queries(job) as store:
            await store.install()

    run(install())


def add(job: Job) -> None:
    async def enqueue() -> None:
        async with queries(job) as store:
            for first in range(0, job.tasks, ADD_BATCH):
                numbers = range(first, min(first + ADD_BATCH, job.tasks))
                payloads: list[bytes | None] = [str(number).encode() for number in numbers]
                await store.enqueue(["attempt"] * len(numbers), payloads, [0] * len(numbers))

    run(enqueue())


def work(job: Job, tally: Tally) -> None:
    logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)

    async def serve() -> None:
        async with asyncpg.create_pool(job.url, min_size=POOL, max_size=POOL) as pool:
            worker = PgQueuer.from_asyncpg_pool(pool)

            @worker.entrypoint(
                "attempt",
                executor_factory=lambda parameters: DatabaseRetryEntrypointExecutor(
                    parameters, initial_delay=timedelta(0)
                ),
            )
            async def attempt(each: PgQueuerJob) -> None:
                assert each.payload is not None
                tally.attempt(int(each.payload), first_try=each.attempts == 0)

            serving = asyncio.create_task(worker.run(batch_size=BATCH))
            completed = asyncio.create_task(tally.completed())
            await asyncio.wait((serving, completed), return_when=asyncio.FIRST_COMPLETED)
            worker.shutdown.set()
            await serving

    run(serve())


def audit(job: Job) -> Audit:
    """A finished job leaves the queue for the log; a retry is logged as queued again, with its traceback."""

    async def count() -> Audit:
        connection = await asyncpg.connect(job.url)
        try:
            return Audit(
                left=await connection.fetchval("select count(*) from pgqueuer"),
                succeeded=await connection.fetchval("select count(*) from pgqueuer_log where status = 'successful'"),
                failed=await connection.fetchval("select count(*) from pgqueuer_log where traceback is not null"),
            )
        finally:
            await connection.close()

    return run(count())
