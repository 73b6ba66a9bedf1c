"""reliable-cmd on PostgreSQL with PGMQ: its async worker, backoff of zero, waking by NOTIFY.

Adding: `send_batch`, which it cuts into transactions of its own. PGMQ comes from the SQL of its package, because the server has
no extension; that is all that is left out of reliable-cmd's own schema. It reads the columns of a message by their places, as
older versions of PGMQ had them; `read` below names them instead, and is the same otherwise.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any
from uuid import UUID

import psycopg
import uvloop
from commandbus import CommandBus, HandlerRegistry, PgmqClient, PgmqMessage, RetryPolicy, SendRequest, Worker
from psycopg_pool import AsyncConnectionPool

from bench.job import ADD_BATCH, Audit, Job, Tally

CONCURRENCY = 20
"""Between `reliable_cmd_few` and `reliable_cmd_many`, which are measured beside it: the best of the three counts."""
SPARE = 4
"""Connections beside those of the handlers: it listens, receives and sends on others."""
DOMAIN, TYPE = "bench", "Attempt"


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return uvloop.run(coroutine)


@asynccontextmanager
async def pool(job: Job, concurrency: int = CONCURRENCY) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(job.url, min_size=SPARE, max_size=concurrency + SPARE, open=False) as opened:
        yield opened


async def read(
    _self: PgmqClient, conn: Any, queue_name: str, visibility_timeout: int, batch_size: int
) -> list[PgmqMessage]:
    async with conn.cursor() as cursor:
        await cursor.execute(
            "SELECT msg_id, read_ct, enqueued_at, vt, message FROM pgmq.read(%s, %s, %s)",
            (queue_name, visibility_timeout, batch_size),
        )
        return [
            PgmqMessage(msg_id=row[0], read_count=row[1], enqueued_at=str(row[2]), vt=str(row[3]), message=row[4])
            for row in await cursor.fetchall()
        ]


PgmqClient._read = read  # type: ignore[method-assign]


def prepare(job: Job) -> None:
    schema = resources.files("commandbus.migrations")
    statements = [(resources.files("pgmq") / "sql" / "pgmq.sql").read_text()]
    for file in sorted(schema.iterdir(), key=lambda one: one.name):
        if file.name.endswith(".sql"):
            statements.append(file.read_text().replace("CREATE EXTENSION IF NOT EXISTS pgmq;", ""))
    statements.append(f"SELECT pgmq.create('{DOMAIN}__commands')")
    with psycopg.connect(job.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]  # it is text from a file


def add(job: Job) -> None:
    async def send() -> None:
        async with pool(job) as opened:
            bus = CommandBus(opened)
            for first in range(0, job.tasks, ADD_BATCH):
                numbers = range(first, min(first + ADD_BATCH, job.tasks))
                await bus.send_batch(
                    [
                        SendRequest(domain=DOMAIN, command_type=TYPE, command_id=UUID(int=n + 1), data={"n": n})
                        for n in numbers
                    ]
                )

    run(send())


def work(job: Job, tally: Tally, concurrency: int = CONCURRENCY) -> None:
    logging.disable(logging.CRITICAL)

    async def serve() -> None:
        async with pool(job, concurrency) as opened:
            registry = HandlerRegistry()

            @registry.handler(DOMAIN, TYPE)
            async def attempt(command: Any, context: Any) -> None:
                tally.attempt(command.data["n"], first_try=context.attempt == 1)

            policy = RetryPolicy(max_attempts=3, backoff_schedule=[0])
            worker = Worker(opened, domain=DOMAIN, registry=registry, retry_policy=policy)
            serving = asyncio.create_task(worker.run(concurrency=concurrency, poll_interval=0.05))
            completed = asyncio.create_task(tally.completed())
            await asyncio.wait((serving, completed), return_when=asyncio.FIRST_COMPLETED)
            await worker.stop()
            await serving

    run(serve())


def audit(job: Job) -> Audit:
    with psycopg.connect(job.url) as connection:
        rows = connection.execute("SELECT status, count(*) FROM commandbus.command GROUP BY status").fetchall()
    counts = {str(status): int(count) for status, count in rows}
    done = counts.pop("COMPLETED", 0)
    return Audit(left=sum(counts.values()), succeeded=done)
