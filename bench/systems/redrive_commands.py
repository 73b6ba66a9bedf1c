"""The command bus of redrive on PostgreSQL with PGMQ, as a program of its own runs it: one process on uvloop.

All guarantees are on: fence, audit, attempts, rollups, one commit for row and message. Adding: `send_batch` for each batch.
"""

import asyncio
from typing import Any

from sqlalchemy import Connection, text

from bench.job import ADD_BATCH, Audit, Job, Tally
from bench.systems.redrive import run
from redrive import Redrive
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.commands import Command, CommandContext, Commands, CommandWorker, NewCommand, Registry, RetryPolicy

CONCURRENCY = 2000
DOMAIN, TYPE = "bench", "Attempt"


def application(job: Job) -> tuple[Redrive, Commands, Registry]:
    app, handlers = Redrive(job.url), Registry()
    return app, Commands(app, handlers=handlers, retry_policy=RetryPolicy(3, [0])), handlers


def prepare(job: Job) -> None:
    async def create() -> None:
        app, _, _ = application(job)
        await migrate(app.database, ["commands"])
        await app.close()

    run(create())


def add(job: Job) -> None:
    async def send() -> None:
        app, bus, _ = application(job)
        async with app:
            for first in range(0, job.tasks, ADD_BATCH):
                numbers = range(first, min(first + ADD_BATCH, job.tasks))
                await bus.send_batch(
                    NewCommand(domain=DOMAIN, command_type=TYPE, command_id=str(n), data={"n": n}) for n in numbers
                )

    run(send())


def work(job: Job, tally: Tally) -> None:
    async def serve() -> None:
        app, bus, handlers = application(job)

        @handlers.handler(DOMAIN, TYPE)
        async def attempt(command: Command, context: CommandContext) -> None:
            tally.attempt(command.data["n"], first_try=context.attempt == 1)

        async with app:
            worker = CommandWorker(bus, DOMAIN)
            serving = asyncio.create_task(worker.run(concurrency=CONCURRENCY))
            completed = asyncio.create_task(tally.completed())
            await asyncio.wait((serving, completed), return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            await serving

    run(serve())


def audit(job: Job) -> Audit:
    """Commands, messages, audit and history must tell the same story."""

    def count(connection: Connection) -> Audit:
        def rows(table: str, where: str) -> int:
            return int(connection.execute(text(f"SELECT count(*) FROM {table} WHERE {where}")).scalar_one())

        done = rows("commandbus.command", "status = 'COMPLETED'")
        left = rows("commandbus.command", "status <> 'COMPLETED'")
        failed = rows("commandbus.audit", "event_type = 'FAILED'")
        story: dict[str, Any] = {
            "messages": rows("pgmq.q_bench__commands", "true") == left,
            "audit": rows("commandbus.audit", "event_type = 'COMPLETED'") == done,
            "history": rows("redrive_attempt", "outcome = 'done'") == done,
            "failures": rows("redrive_attempt", "outcome = 'failed'") == failed,
        }
        if wrong := [name for name, right in story.items() if not right]:
            raise RuntimeError(f"commands and {', '.join(wrong)} differ")
        return Audit(left=left, succeeded=done, failed=failed)

    async def asked() -> Audit:
        app, _, _ = application(job)
        async with app:
            return await app.database.read(count)

    return run(asked())
