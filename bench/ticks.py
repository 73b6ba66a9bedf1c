"""Rounds of tasks that do nothing, one for each line that is read: `python -m bench.ticks URL TASKS WORK`, as `bench.against` starts it.

The work is `run`, or `fail_once`: then the first try of each task raises. It says what they cost in processor time, of this process and of its sessions in the server, and what a second costs in which there is
nothing to do. Older code runs it too, so it uses little of it.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import uvloop
from sqlalchemy import Connection, text

from bench.job import FirstTryError
from redrive import Fixed, Policy, Redrive, Task, jitter
from redrive.lane import make_task
from redrive.ledgers.sql.migrate import migrate

PAGE = 500
POLICY = Policy(Fixed(timedelta(0)), retries=2, jitter=jitter.none)
IDLE_SECONDS = 1.0
TABLES = ("redrive_attempt", "redrive_minute", "redrive_task")
SESSIONS = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
Spent = dict[int, float]
"""Seconds of processor time until now: of sessions in the server by their process, and of this one as 0."""


async def serve(url: str, tasks: int, work: str) -> None:
    """Make the tables, and run a round for each line until there is none."""
    app, rounds = Redrive(url), Rounds(tasks)
    await migrate(app.database)
    app.handler("tick", policy=POLICY)(rounds.fail_once if work == "fail_once" else rounds.tick)
    async with app:
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            print(json.dumps(await rounds.run(app, name)), flush=True)


class Rounds:
    """So many tasks are added, and then run by a worker as it comes."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._left = 0
        self._ended = asyncio.Event()

    async def tick(self, _task: Task) -> None:
        self._left -= 1
        if not self._left:
            self._ended.set()

    async def fail_once(self, task: Task) -> None:
        if task.failures == 0:
            raise FirstTryError("the first try fails")
        await self.tick(task)

    async def run(self, app: Redrive, name: str) -> dict[str, float]:
        """Seconds of processor time, here and in the server, and of time on the wall: to add, to run, and to idle."""
        self._left = self._tasks
        self._ended.clear()
        await app.database.write(_clear)
        found = {}
        async with _timed(app, "add", found):
            for start in range(0, self._tasks, PAGE):
                few = range(start, min(start + PAGE, self._tasks))
                await app.add_many(make_task("tick", n, key=f"{name}-{n}") for n in few)
        await app.database.write(lambda connection: connection.execute(text("ANALYZE redrive_task")))
        workers = app.workers()
        async with _timed(app, "run", found):
            running = asyncio.create_task(workers.run())
            await self._ended.wait()
            while await app.database.read(_is_open):
                await asyncio.sleep(0.005)
        async with _timed(app, "idle", found):
            await asyncio.sleep(IDLE_SECONDS)
        workers.stop()
        await running
        return found


@asynccontextmanager
async def _timed(app: Redrive, what: str, found: dict[str, float]) -> AsyncIterator[None]:
    before, begun = await _spent(app), time.perf_counter()
    yield
    wall, after = time.perf_counter() - begun, await _spent(app)
    cost = {who: spent - before.get(who, 0.0) for who, spent in after.items()}
    found[f"{what} here"] = cost.pop(0)
    found |= {f"{what} in the server": sum(cost.values()), f"{what} wall": wall}


def _clear(connection: Connection) -> None:
    for table in TABLES:
        connection.execute(text(f"DELETE FROM {table}" if connection.dialect.name == "sqlite" else f"TRUNCATE {table}"))


def _is_open(connection: Connection) -> bool:
    return connection.execute(text("SELECT 1 FROM redrive_task WHERE state <> 'done' LIMIT 1")).first() is not None


async def _spent(app: Redrive) -> Spent:
    found = {}
    if app.database.dialect.name != "sqlite":
        sessions = await app.database.read(lambda connection: connection.execute(SESSIONS).scalars().all())
        found = {pid: _processor_seconds(pid) for pid in sessions}
    return found | {0: time.process_time()}


def _processor_seconds(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:  # it has ended in between
        return 0.0


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
