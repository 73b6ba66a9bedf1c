"""A small application to try redrive with: `redrive serve --app examples.sample:app`.

Tasks and webhooks `flaky.*` fail twice and then succeed, `poison.*` always fail and end dead, all others succeed. The waits of
tasks are short, so that retries can be watched; those of webhooks are what the settings say. It takes every kind there is: do
not point it at a database with work of your own.
"""

import asyncio

from redrive import Context, Exponential, Policy, Redrive, Task, TransientError, jitter, seconds
from redrive.settings import load_settings
from redrive.systems.webhooks import Webhooks

app = Redrive(load_settings().database_url)
webhooks = Webhooks(app)

QUICKLY = Policy(Exponential(seconds(1), seconds(5)), retries=3, jitter=jitter.percent(20), name="sample")


@app.handler("flaky.*", policy=QUICKLY)
@webhooks.handler("flaky.*")
async def flaky(task: Task, context: Context) -> None:
    """Fails twice, then succeeds."""
    await asyncio.sleep(0.2)
    if context.attempt <= 2:
        raise TransientError(f"try {context.attempt} of {task.kind} fails, as flaky tasks do")


@app.handler("poison.*", policy=QUICKLY)
@webhooks.handler("poison.*")
async def poison(task: Task) -> None:
    """Always fails."""
    await asyncio.sleep(0.2)
    raise ValueError(f"{task.kind} cannot be digested")


@app.handler("*", policy=QUICKLY)
@webhooks.handler("*")
async def anything(_task: Task) -> None:
    """Succeeds."""
    await asyncio.sleep(0.2)
