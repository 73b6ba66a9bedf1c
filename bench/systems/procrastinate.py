"""Procrastinate on PostgreSQL: one worker with concurrent jobs, its own `RetryStrategy` with no wait.

Adding: `batch_defer_async`, one statement for each batch.
"""

import asyncio
import logging
from typing import Any

import procrastinate
import psycopg

from bench.job import ADD_BATCH, Audit, Job, Tally

CONCURRENCY = 4
"""The best of 1, 4, 8, 16 and 40 here: 550, 800, 600, 720 and 570 a second."""


def application(job: Job, tally: Tally | None = None) -> tuple[procrastinate.App, Any]:
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    connector = procrastinate.PsycopgConnector(conninfo=job.url, min_size=CONCURRENCY + 2, max_size=CONCURRENCY + 2)
    app = procrastinate.App(connector=connector)

    @app.task(name="attempt", pass_context=True, retry=procrastinate.RetryStrategy(max_attempts=3))
    async def attempt(context: procrastinate.JobContext, number: int) -> None:
        assert tally is not None
        tally.attempt(number, first_try=context.job.attempts == 0)

    return app, attempt


def prepare(job: Job) -> None:
    async def install() -> None:
        app, _ = application(job)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(install())


def add(job: Job) -> None:
    async def defer() -> None:
        app, attempt = application(job)
        async with app.open_async():
            for first in range(0, job.tasks, ADD_BATCH):
                numbers = range(first, min(first + ADD_BATCH, job.tasks))
                await attempt.batch_defer_async(*({"number": number} for number in numbers))

    asyncio.run(defer())


def work(job: Job, tally: Tally) -> None:
    async def serve() -> None:
        app, _ = application(job, tally)
        async with app.open_async():
            # A retry is not announced by NOTIFY, so the default poll of five seconds would decide the last few.
            serving = asyncio.create_task(
                app.run_worker_async(
                    concurrency=CONCURRENCY, fetch_job_polling_interval=0.05, install_signal_handlers=False
                )
            )
            completed = asyncio.create_task(tally.completed())
            await asyncio.wait((serving, completed), return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            await asyncio.wait((serving,))

    asyncio.run(serve())


def audit(job: Job) -> Audit:
    """Finished jobs stay in the table; its attempts count every try that ended."""
    with psycopg.connect(job.url) as connection:
        row = connection.execute(
            """select count(*) filter (where status <> 'succeeded'),
                      count(*) filter (where status = 'succeeded'),
                      coalesce(sum(attempts) - count(*) filter (where status = 'succeeded'), 0)
                 from procrastinate_jobs"""
        ).fetchone()
    assert row is not None
    return Audit(left=row[0], succeeded=row[1], failed=row[2])
