"""The application that the worker processes of these tests serve; database and evidence file come by the environment."""

import asyncio
import os
import signal
import time

from sqlalchemy import text

from redrive import Context, Fixed, Policy, Redrive, Task, TransientError, jitter, seconds
from redrive.observe.logs import LogObserver

from . import evidence

PATIENT = Policy(Fixed(seconds(0.1)), attempts=1000, jitter=jitter.none, name="patient")

app = Redrive(os.environ["DATABASE_URL"], observers=[LogObserver()])


@app.handler("work", policy=PATIENT)
async def work(task: Task, context: Context) -> None:
    """Take `ms` (the first try `first_ms`, if given), and fail the first `fails` tries."""
    with evidence.on_record(task, context):
        first = context.attempt == 1 and not context.claim.suspect and "first_ms" in task.payload
        await asyncio.sleep(task.payload["first_ms" if first else "ms"] / 1000)
        if context.attempt <= task.payload.get("fails", 0):
            raise TransientError("not yet")


@app.handler("quick", policy=PATIENT)
async def quick(task: Task) -> None:
    """Take `ms`, and leave nothing on record: there are a million of them."""
    if task.payload["ms"]:
        await asyncio.sleep(task.payload["ms"] / 1000)


@app.handler("block", policy=PATIENT)
def block(task: Task, context: Context) -> None:
    """Hold a thread for `ms`, deaf to everything."""
    with evidence.on_record(task, context):
        time.sleep(task.payload["ms"] / 1000)


@app.handler("pair", policy=PATIENT, transactional=True)
async def pair(task: Task, context: Context) -> None:
    """Leave one row in the same database."""
    with evidence.on_record(task, context):
        await context.connection.execute(text("INSERT INTO effect (key) VALUES (:key)"), {"key": task.key})
        if context.attempt <= task.payload.get("fails", 0):
            raise TransientError("not yet")


@app.handler("seed", policy=PATIENT)
async def seed(task: Task, context: Context) -> None:
    """Add `amount` tasks one by one, so that this process adds while it works."""
    with evidence.on_record(task, context):
        for number in range(task.payload["amount"]):
            kind = "pair" if number % 10 == 0 else "work"
            await app.add(kind, {"ms": number % 7}, key=f"{task.key}-{number}")


@app.handler("poison", policy=PATIENT)
async def poison(task: Task, context: Context) -> None:
    """Kill the process that runs it."""
    with evidence.on_record(task, context):
        os.kill(os.getpid(), signal.SIGKILL)
