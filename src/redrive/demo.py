"""The service with sample traffic, so that every chart lives within a minute: `make demo`.

Destinations that fail now and then, one that limits its callers, an outage that begins every two minutes and heals, an import
that nobody can digest, reports that take their time, and people who change their minds. What the traffic does to a system is
one function in `TRAFFIC`, run while that system is attached; the application's own tasks are always driven.

Do not point it at a database with work of your own.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from redrive import (
    Context,
    Exponential,
    PermanentError,
    Policy,
    RateLimitedError,
    Redrive,
    Task,
    TransientError,
    Where,
    jitter,
    make_task,
    seconds,
)
from redrive.settings import load_settings
from redrive.system import System

OUTAGE_EVERY_SECONDS, OUTAGE_AFTER_SECONDS, OUTAGE_SECONDS = 120.0, 15.0, 25.0
BEAT_SECONDS = 0.5

app = Redrive(load_settings().database_url)
chance = random.Random()
started = time.monotonic()

PATIENTLY = Policy(Exponential(seconds(1), seconds(8)), retries=6, jitter=jitter.percent(20), name="patiently")
BRIEFLY = Policy(Exponential(seconds(1), seconds(4)), retries=3, jitter=jitter.percent(20), name="briefly")


def is_out(running_seconds: float) -> bool:
    """Whether the customer register is out after so many seconds."""
    return 0 <= running_seconds % OUTAGE_EVERY_SECONDS - OUTAGE_AFTER_SECONDS < OUTAGE_SECONDS


# --- destinations -------------------------------------------------------------------------------------------------------


@app.handler("mail.send", policy=PATIENTLY)
async def send_mail(task: Task) -> None:
    """Nearly always works."""
    await asyncio.sleep(chance.uniform(0.02, 0.2))
    if chance.random() < 0.05:
        raise TransientError(f"421 mail.example did not answer for message {task.payload['message']}")


@app.handler("payment.capture", policy=PATIENTLY)
async def capture(task: Task, context: Context) -> None:
    """A flaky destination: a third of the tries fail, and now and then a card is refused for good."""
    await asyncio.sleep(chance.uniform(0.05, 0.4))
    drawn = chance.random()
    if drawn < 0.02:
        raise PermanentError(f"card of order {task.payload['order']} was declined")
    if drawn < 0.35:
        raise TransientError(f"503 from https://pay.example/capture/{task.payload['order']} at try {context.attempt}")


@app.handler("search.index", policy=PATIENTLY)
async def index(task: Task) -> None:
    """Limits its callers."""
    await asyncio.sleep(chance.uniform(0.01, 0.05))
    if chance.random() < 0.2:
        raise RateLimitedError(f"429 for document {task.payload['document']}", retry_after=seconds(3))


@app.handler("customer.sync", policy=PATIENTLY)
async def sync(task: Task) -> None:
    """Fails while the register is out, and heals with it."""
    await asyncio.sleep(chance.uniform(0.02, 0.1))
    if is_out(time.monotonic() - started):
        raise ConnectionError(f"crm.example:443 refused the connection for customer {task.payload['customer']}")


@app.handler("report.render", policy=BRIEFLY)
async def render(_task: Task) -> None:
    """Takes its time."""
    await asyncio.sleep(chance.uniform(1, 4))


@app.handler("import.parse", policy=BRIEFLY)
async def parse(task: Task) -> None:
    """Poison: no try will ever work."""
    await asyncio.sleep(0.02)
    raise ValueError(f"row {task.payload['row']} of 'orders-{task.payload['file']}.csv' has no amount")


# --- traffic --------------------------------------------------------------------------------------------------------------


async def drive_tasks(stopped: asyncio.Event) -> None:
    """redrive's own tasks, a few each beat."""
    for number in itertools.count(1):
        tasks = [make_task("mail.send", {"message": number * 10 + one}) for one in range(chance.randint(1, 3))]
        tasks += [make_task("search.index", {"document": number}), make_task("customer.sync", {"customer": number})]
        if number % 2 == 0:
            tasks.append(make_task("payment.capture", {"order": number, "currency": "EUR", "token": "tok_demo_4242"}))
        if number % 8 == 0:
            tasks.append(make_task("report.render", {"month": "2026-01", "pages": chance.randint(3, 90)}))
        if number % 12 == 4:
            tasks.append(make_task("import.parse", {"file": number // 60, "row": number}))
        if number % 20 == 0:
            tasks.append(make_task("mail.send", {"message": number, "newsletter": True}, key=f"newsletter-{number}-{time.time_ns()}", delay=seconds(60)))  # fmt: skip
        await app.add_many(tasks)
        if number % 40 == 0:
            await app.cancel(Where(key=tasks[-1].key), actor="demo", reason="the reader has unsubscribed")
        if await stops(stopped):
            return


async def stops(stopped: asyncio.Event, within_seconds: float = BEAT_SECONDS) -> bool:
    """Whether to stop: told so now, or while waiting for the next beat."""
    try:
        async with asyncio.timeout(within_seconds):
            await stopped.wait()
    except TimeoutError:
        return False
    return True


TRAFFIC: dict[str, Callable[[System, asyncio.Event], Coroutine[Any, Any, None]]] = {}
"""By the name of a system: what drives it, until the event is set."""


class Demo(System):
    """Sample traffic for this application and for the systems on it that have some."""

    name = "demo"

    def __init__(self, app: Redrive) -> None:
        super().__init__(app)
        self._app = app

    async def run(self, stopped: asyncio.Event) -> None:
        """Drive everything until told to stop."""
        async with asyncio.TaskGroup() as group:
            group.create_task(drive_tasks(stopped))
            for name, system in self._app.systems.items():
                if name in TRAFFIC:
                    group.create_task(TRAFFIC[name](system, stopped))


Demo(app)
