"""The application whose payments the tests of effects kill; database and the bank's address come by the environment."""

import asyncio
import json
import os
from typing import Any

from redrive import Context, Fixed, Policy, Redrive, Task, jitter, seconds
from redrive.effects import CannotTell, Effect, Happened, NotHappened
from redrive.observe.logs import LogObserver

BANK = "REDRIVE_FAULTS_BANK"
"""The environment variable that names the bank's port."""
PATIENT = Policy(Fixed(seconds(0.1)), attempts=1000, jitter=jitter.none, name="patient")

app = Redrive(os.environ.get("DATABASE_URL", "sqlite:///nowhere.db"), observers=[LogObserver()])


async def ask_bank(question: dict[str, Any]) -> Any:
    """What the bank answers; a `ConnectionError` if it drops the line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[BANK]))
    try:
        writer.write(json.dumps(question).encode() + b"\n")
        answer = await reader.readline()
    finally:
        writer.close()
    if not answer:
        raise ConnectionError("the bank dropped the line")
    return json.loads(answer)


async def was_paid(task: Task, context: Context) -> Happened | NotHappened | CannotTell:
    """What the bank's books say."""
    found = await ask_bank({"do": "look", "task": task.key, "key": context.effect_key})
    if found == "dark":
        return CannotTell("the bank does not show this account")
    return Happened(found) if found else NotHappened("the bank has no such payment")


@app.handler("pay", policy=PATIENT, effect=Effect(was_paid, policy=PATIENT))
async def pay(task: Task, context: Context) -> None:
    """Pay, and know that it may have happened."""
    async with context.effect():
        await ask_bank({"do": "pay", "task": task.key, "key": context.effect_key})


@app.handler("pay_blindly", policy=PATIENT)
async def pay_blindly(task: Task) -> None:
    """Pay, and pay again if no answer comes."""
    await ask_bank({"do": "pay", "task": task.key, "key": ""})
