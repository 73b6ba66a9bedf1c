"""The inbox that the servers of these tests serve; database and evidence file come by the environment."""

import asyncio
import os

from redrive import Context, Redrive, Task, TransientError, seconds
from redrive.systems.webhooks import Webhooks, WebhookSettings

from . import evidence

app = Redrive(os.environ["DATABASE_URL"])
webhooks = Webhooks(
    app,
    WebhookSettings(
        _env_file=None, worker_count=20, max_attempts=1000, queue_maxsize=100_000,
        retry_base_delay=seconds(0.05), retry_max_delay=seconds(0.1),
    ),
    sources=(),
)  # fmt: skip


@webhooks.handler("work")
async def work(task: Task, context: Context) -> None:
    """Take `ms`, and fail the first `fails` tries; what `hangs` does so until its server is killed."""
    with evidence.on_record(task, context):
        if task.payload.get("hangs") and context.attempt == 1 and not context.claim.suspect:
            await asyncio.Event().wait()
        await asyncio.sleep(task.payload["ms"] / 1000)
        if context.attempt <= task.payload["fails"]:
            raise TransientError("not yet")


@webhooks.handler("later")
async def later(task: Task, context: Context) -> None:
    """Ask for patience once."""
    with evidence.on_record(task, context):
        if context.attempt == 1:
            raise TransientError("come back", retry_after=seconds(task.payload["seconds"]))
