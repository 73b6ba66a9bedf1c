"""The process that is recorded: adds tasks one by one, works them off, and writes down what it was told is durable. `python -m proof.power.recorded FILE TASKS SEED`."""

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.event import listen

from redrive import Fixed, Policy, Redrive, State, Task, TransientError, jitter, seconds
from redrive.app import WorkerSettings
from redrive.events import AttemptEnded, Event
from redrive.ledgers.sql.migrate import migrate

ACKNOWLEDGED = "acknowledged"
CHECKPOINT_PAGES = 100
"""A tenth of what SQLite has by itself: ten times as many checkpoints to be cut in, and images that are quicker to look through."""


class Acknowledged:
    """A file in the same folder, so that what was acknowledged stands in the same order as what was written."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(f"{folder}/{ACKNOWLEDGED}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, line: str) -> None:
        """One line, in one write."""
        os.write(self._file, f"{line}\n".encode())

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`."""
        for event in events:
            if isinstance(event, AttemptEnded):
                claim = event.settlement.claim
                self.say(f"settled {claim.task.key} {claim.claim_id.hex}")


def _checkpoint_often(connection: Any, _record: object) -> None:
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")


async def main(file: str, tasks: int, rng: random.Random) -> None:
    """Until all are done."""
    listen(Engine, "connect", _checkpoint_often)
    said = Acknowledged(os.path.dirname(file))
    app = Redrive(f"sqlite:///{file}", observers=[said])
    await migrate(app.database)

    @app.handler("work", policy=Policy(Fixed(seconds(0.01)), attempts=100, jitter=jitter.none))
    async def work(_task: Task) -> None:
        if rng.random() < 0.2:
            raise TransientError("not yet")

    async with app:
        workers = app.workers(WorkerSettings(concurrency=4))
        running = asyncio.create_task(workers.run())
        for number in range(tasks):
            added = await app.add("work", {"filler": "x" * rng.randrange(300)}, key=f"k{number}")
            said.say(f"added {added.key}")
        while (await app.tasks.counts())[State.DONE] < tasks:
            await asyncio.sleep(0.01)
        workers.stop()
        await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))))
