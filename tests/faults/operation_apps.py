"""The application whose dead tasks the operations of these tests bring back; database, evidence and the state of the bank come by the environment."""

import asyncio
import os
from pathlib import Path

from redrive import Context, Fixed, PermanentError, Policy, Redrive, Task, jitter, seconds
from redrive.observe.logs import LogObserver

from . import evidence

UP = "REDRIVE_FAULTS_UP"
"""The environment variable that names the file: while it is there, the bank is up."""
TAKES = "REDRIVE_FAULTS_TAKES"
"""The environment variable that says how many seconds a payment takes; none if it is not set."""

app = Redrive(os.environ.get("DATABASE_URL", "sqlite:///nowhere.db"), observers=[LogObserver()])


@app.handler("pay", policy=Policy(Fixed(seconds(0.1)), attempts=1000, jitter=jitter.none, name="patient"))
async def pay(task: Task, context: Context) -> None:
    """Pay, if the bank is up."""
    with evidence.on_record(task, context):
        if not Path(os.environ[UP]).exists():
            raise PermanentError("the bank does not answer")
        if seconds_taken := float(os.environ.get(TAKES, 0)):
            await asyncio.sleep(seconds_taken)
