"""A worker of deliveries in DynamoDB, as a process to be killed: table, queue and evidence come by the environment.

Some of its calls are cut before or after their effect. A delivery fails as often as its id says, up to more than its budget.
"""

import asyncio
import os
import random
import signal
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive import Context, Fixed, Policy, Task, TransientError, jitter, seconds
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.ledgers.aws import sweep
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.open import open_clients
from redrive.ledgers.aws.queue import SqsQueue
from redrive.systems.triggers.aws.follow import EventFollower
from redrive.systems.triggers.ledger import TRIGGER_DELIVERIES
from tests.ledgers.aws.cutting import Cut, CuttingClient

from . import (
    aws_session,  # noqa: F401 - before any client is made
    evidence,
)

LEASE = seconds(4)
HANGING = "hanging"
"""In the id of an event: its first post ends only when its worker is killed."""
POLICY = Policy(Fixed(seconds(0.2)), retries=3, jitter=jitter.none, name="test")


def fails_of(task_id: str) -> int:
    """How often a delivery fails: four times is once too often."""
    return (0, 0, 0, 1, 2, 3, 4)[zlib.crc32(task_id.encode()) % 7]


async def deliver(task: Task, context: Context) -> None:
    """Post, which takes a while, and fail as often as the task shall. The first post of one that hangs ends with its process."""
    hangs = HANGING in task.key and task.key not in {
        line.key for line in evidence.read(Path(os.environ[evidence.VARIABLE]))
    }
    with evidence.on_record(task, context):
        if hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(zlib.crc32(task.key.encode()) % 60 / 1000)
        if context.attempt <= fails_of(task.key):
            raise TransientError("not yet")


def ledger_of(clients: Any, cut: Cut = lambda number, call: None) -> DynamoLedger:
    """The ledger of this test: it looks soon for what was lost."""
    sweep.LOOK_AGAIN = seconds(2)
    dynamo = Dynamo(CuttingClient(clients.dynamodb, cut), os.environ["TEST_TABLE"])
    queue = SqsQueue(CuttingClient(clients.sqs, cut), os.environ["TEST_QUEUE"])
    return DynamoLedger(
        dynamo, queue, TRIGGER_DELIVERIES, follower=EventFollower(),
        slack=seconds(1), grace=timedelta(milliseconds=500), sweep_every=seconds(2),
    )  # fmt: skip


async def work() -> None:
    """Work until told to stop, or killed."""
    drawn = random.Random(int(os.environ["TEST_SEED"]) * 1_000_003 + os.getpid())

    def cut(number: int, call: str) -> str | None:
        share = drawn.random()
        return "before" if share < 0.01 else "after" if share < 0.02 else None

    async with open_clients(region="us-east-1", endpoint_url=os.environ["AWS_ENDPOINT_URL"]) as clients:
        handlers = Handlers()
        handlers.add(make_handler(TRIGGER_DELIVERIES.name, deliver, POLICY))
        settings = WorkerSettings(lease=LEASE, concurrency=8, grace=seconds(5))
        worker = Worker(ledger_of(clients, cut), handlers, settings)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(work())
