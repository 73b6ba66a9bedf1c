"""The application behind gates: its time runs faster than ours, the same in all processes, and its destination is down until a file says otherwise."""

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from redrive import Context, Fixed, Policy, Redrive, Task, TransientError, jitter, minutes
from redrive.observe.logs import LogObserver

from . import evidence

SPEED, BEGUN, UP = "REDRIVE_FAULTS_SPEED", "REDRIVE_FAULTS_BEGUN", "REDRIVE_FAULTS_UP"
KIND = "REDRIVE_FAULTS_KIND"
"""The one kind that a process serves, in our time."""
START = datetime(2030, 1, 1, tzinfo=UTC)


class FastClock:
    """So many times as fast as the clock on the wall."""

    def __init__(self, speed: float, begun: float) -> None:
        self._speed = speed
        self._begun = begun

    def now(self) -> datetime:
        """See `Clock.now`."""
        return START + timedelta(seconds=(time.time() - self._begun) * self._speed)


def is_up(file: Path, now: datetime) -> bool:
    """Whether the destination answers: from the instant on that the file names."""
    try:
        return now >= datetime.fromisoformat(file.read_text())
    except (FileNotFoundError, ValueError):
        return False


if BEGUN in os.environ:
    clock = FastClock(float(os.environ[SPEED]), float(os.environ[BEGUN]))
    app = Redrive(os.environ["DATABASE_URL"], clock=clock, observers=[LogObserver()])
    # Longer than the outage: what fails before the gate is shut is not tried again while it lasts, however quick a minute is here.
    policy = Policy(Fixed(minutes(12)), attempts=3, jitter=jitter.none, name="three tries")

    @app.handler("transfer", policy=policy, gate="bank:DE")
    async def transfer(_task: Task) -> None:
        """Ask the bank."""
        if not is_up(Path(os.environ[UP]), clock.now()):
            raise TransientError("the bank is down")

elif KIND in os.environ:
    app = Redrive(os.environ["DATABASE_URL"], observers=[LogObserver()])

    @app.handler(os.environ[KIND])
    async def work(task: Task, context: Context) -> None:
        """Take so many milliseconds."""
        with evidence.on_record(task, context):
            await asyncio.sleep(task.payload / 1000)
