"""redrive itself, as `redrive worker` runs it: one process on uvloop, with history, rollups and fence on.

Adding: `add_many` for each batch, over two streams in turn.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, func, select

import redrive.ledgers.postgres.open
import redrive.ledgers.sqlite.database  # noqa: F401 - both are imported when a store is opened, and imports are not timed
from bench.job import ADD_BATCH, Audit, Job, Tally
from redrive import Fixed, Policy, Redrive, Task, jitter
from redrive.app import WorkerSettings
from redrive.lane import make_task
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.migrate import migrate
from redrive.running import tuned_runner

STREAMS = 2
SETTINGS = WorkerSettings(concurrency=3000)
POLICY = Policy(Fixed(timedelta(0)), retries=2, jitter=jitter.none)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with tuned_runner() as runner:
        return runner.run(coroutine)


def application(job: Job) -> Redrive:
    return Redrive(f"sqlite:///{job.url}" if job.store == "sqlite" else job.url)


def prepare(job: Job) -> None:
    async def create() -> None:
        app = application(job)
        await migrate(app.database)
        await app.close()

    run(create())


def add(job: Job) -> None:
    batches = iter(range(0, job.tasks, ADD_BATCH))

    async def insert(app: Redrive) -> None:
        for first in batches:
            numbers = range(first, min(first + ADD_BATCH, job.tasks))
            await app.add_many(make_task("attempt", n, key=f"task-{n}") for n in numbers)

    async def insert_in_streams() -> None:
        async with application(job) as app:
            await asyncio.gather(*(insert(app) for _ in range(STREAMS)))

    run(insert_in_streams())


def work(job: Job, tally: Tally, settings: WorkerSettings = SETTINGS) -> None:
    async def until_complete() -> None:
        async with application(job) as app:

            @app.handler("attempt", policy=POLICY)
            async def attempt(task: Task) -> None:
                tally.attempt(task.payload, first_try=task.failures == 0)

            workers = app.workers(settings)
            running = asyncio.create_task(workers.run())
            await tally.completed()
            workers.stop()
            await running

    run(until_complete())


def audit(job: Job) -> Audit:
    """Tasks, history and rollup must tell the same story."""

    def count(connection: Connection) -> Audit:
        def total(column: Any) -> int:
            return int(connection.execute(select(func.coalesce(column, 0))).scalar_one())

        def rows(table: Any, *where: Any) -> int:
            return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())

        task, attempt, minute = schema.task, schema.attempt, schema.minute
        done, failed = rows(attempt, attempt.c.outcome == "done"), rows(attempt, attempt.c.outcome == "failed")
        counted = (total(func.sum(minute.c.done)), total(func.sum(minute.c.retried)))
        if (done, failed) != counted:
            raise RuntimeError(f"history {done, failed} and rollup {counted} differ")
        if rows(task, task.c.state == "done") != done:
            raise RuntimeError("tasks and history differ")
        return Audit(left=rows(task, task.c.state != "done"), succeeded=done, failed=failed)

    async def asked() -> Audit:
        async with application(job) as app:
            return await app.database.read(count)

    return run(asked())
