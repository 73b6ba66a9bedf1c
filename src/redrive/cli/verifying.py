"""What `redrive verify` does: real worker processes on the user's database, killed and stopped at random, and a look at what became of each task.

Its workers run tasks of one kind of its own, and no handler of the application.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete

from redrive.app import Redrive
from redrive.cli.app_path import load_app
from redrive.core.backoff import Fixed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Attempt, Task, TaskId
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import UsageError
from redrive.lane import make_task
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger

KIND = "redrive.verify"
LEASE_SECONDS = 2.0
WORKERS = 2
PORTION = 10
"""How many tasks there are for each kill and each stall."""
PATIENCE_SECONDS = 300.0
POLICY = Policy(Fixed(timedelta(milliseconds=100)), retries=10_000, name="verify")
DELETED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class RunMark:
    """What a handler has left behind: it began, or it came to its end."""

    pid: int
    key: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise, how it was tried, and whether it holds."""

    promise: str
    figure: str
    holds: bool


@dataclass(slots=True)
class Verification:
    """One run."""

    app_path: str
    app: Redrive
    kills: int
    stalls: int
    drawn: random.Random
    tell: Callable[[str], None]
    added: dict[str, TaskId] = field(default_factory=dict)
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    async def run(self, *, beside_others: bool) -> list[Promise]:
        """Try it, and leave nothing behind."""
        ledger = await self.app.tasks.ledger()
        if not isinstance(ledger, SqlLedger):
            raise UsageError("verify needs SQLite or PostgreSQL")
        await self.app.database.write(_forget, ledger)  # of one that was killed itself
        await self._check_alone(beside_others=beside_others)
        try:
            with tempfile.TemporaryDirectory(prefix="redrive-verify-") as folder:
                evidence = Path(folder) / "evidence.jsonl"
                evidence.touch()
                async with self._workers(evidence):
                    for number in range(self.kills):
                        await self._kill(evidence)
                        self.tell(f"kill -9 {number + 1} of {self.kills}")
                    for number in range(self.stalls):
                        await self._stall(evidence)
                        self.tell(f"stall {number + 1} of {self.stalls}")
                    await self._finish()
                return await self._look(_read(evidence))
        finally:
            await self.app.database.write(_forget, ledger)

    async def _check_alone(self, *, beside_others: bool) -> None:
        counts = await self.app.tasks.counts()
        others = counts[State.WAITING] + counts[State.CLAIMED]
        if others and not beside_others:
            raise UsageError(
                f"{others:,} tasks wait or run in this database: verify is for a staging database without work of others; "
                "with --beside-others it runs beside them and touches none of them"
            )

    # --- what is done to the workers ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _workers(self, evidence: Path) -> AsyncIterator[None]:
        self.workers = [_start(self.app_path, evidence) for _ in range(WORKERS)]
        try:
            yield
        finally:
            for one in self.workers:
                one.kill()
                await asyncio.to_thread(one.wait)

    async def _busy(self, evidence: Path) -> "subprocess.Popen[bytes]":
        """New tasks, and a worker that runs one of them."""
        await self._add()
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            open_ = Counter(line.pid for line in _read(evidence) if not line.ended)
            open_.subtract(line.pid for line in _read(evidence) if line.ended)
            busy = [one for one in self.workers if open_[one.pid] > 0]
            if busy:
                return self.drawn.choice(busy)
            self._check_workers()
            await asyncio.sleep(0.02)
        raise UsageError(f"no worker has begun a task within {PATIENCE_SECONDS:.0f} s: run `redrive doctor`")

    def _check_workers(self) -> None:
        for one in self.workers:
            if one.poll() is not None:
                raise UsageError(
                    f"a worker exited on its own with status {one.returncode}: run `redrive worker`, which says why"
                )

    async def _add(self) -> None:
        keys = [f"{KIND}:{self.drawn.getrandbits(64):016x}" for _ in range(PORTION)]
        ledger = await self.app.tasks.ledger()
        for one in await ledger.add([make_task(KIND, key=key) for key in keys]):
            self.added[one.key] = one.id

    async def _kill(self, evidence: Path) -> None:
        victim = await self._busy(evidence)
        victim.kill()
        await asyncio.to_thread(victim.wait)
        self.workers.remove(victim)
        self.workers.append(_start(self.app_path, evidence))

    async def _stall(self, evidence: Path) -> None:
        victim = await self._busy(evidence)
        victim.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_SECONDS + 2)
        finally:
            victim.send_signal(signal.SIGCONT)

    async def _finish(self) -> None:
        """Until all that was added has ended, or nothing ends any more."""
        left, ends = -1, time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            tasks = [await self.app.tasks.get_by_id(id_) for id_ in self.added.values()]
            open_ = sum(task is not None and task.state in (State.WAITING, State.CLAIMED) for task in tasks)
            if open_ != left:
                left, ends = open_, time.monotonic() + PATIENCE_SECONDS
            if not open_:
                return
            self._check_workers()
            await asyncio.sleep(0.2)

    # --- what became of it ----------------------------------------------------------------------------------------------

    async def _look(self, lines: list[RunMark]) -> list[Promise]:
        tasks = {key: await self.app.tasks.get_by_id(id_) for key, id_ in self.added.items()}
        attempts = {key: await self.app.tasks.attempts(id_) for key, id_ in self.added.items()}
        return judge(tasks, attempts, lines, kills=self.kills, stalls=self.stalls)


def judge(
    tasks: dict[str, Task | None], attempts: dict[str, list[Attempt]], lines: list[RunMark], *, kills: int, stalls: int
) -> list[Promise]:
    """Which promises hold, for tasks by their keys, their attempts, and what handlers left behind."""
    lost = [key for key, task in tasks.items() if task is None]
    unfinished = [key for key, task in tasks.items() if task is not None and task.state is not State.DONE]
    begun = Counter(line.key for line in lines if not line.ended)
    ended = Counter(line.key for line in lines if line.ended)
    done = {key: sum(one.outcome == "done" for one in found) for key, found in attempts.items()}
    twice = [key for key, amount in done.items() if amount > 1]
    made_up = [key for key, amount in done.items() if amount > ended[key]]
    doubled = [key for key, found in attempts.items() if len({one.claim_id for one in found}) != len(found)]
    unaccounted = [key for key, found in attempts.items() if len(found) < done[key] or begun[key] > len(found)]
    gone = sum(one.outcome == "lease_expired" for found in attempts.values() for one in found)
    late = ended.total() - sum(done.values())
    return [
        Promise(
            promise="nothing acknowledged is lost",
            figure=f"{len(tasks):,} tasks, {kills} kill -9: {len(lost)} lost, {len(unfinished)} not done",
            holds=not lost and not unfinished,
        ),
        Promise(
            promise="no late settlement is accepted",
            figure=f"{stalls} stopped past their lease: {late} settlements came late, {len(twice)} tasks were done twice",
            holds=not twice,
        ),
        Promise(
            promise="a task is done only if its handler was",
            figure=f"{ended.total():,} handlers came to their end, {len(made_up)} tasks are done without one",
            holds=not made_up,
        ),
        Promise(
            promise="each claim ends in one attempt",
            figure=f"{begun.total():,} runs, {gone} lost with their workers, {len(doubled) + len(unaccounted)} not accounted for",
            holds=not doubled and not unaccounted,
        ),
    ]


def _read(evidence: Path) -> list[RunMark]:
    """Whole lines alone: whoever was killed may have left half of one."""
    whole = evidence.read_text().rpartition("\n")[0]
    return [RunMark(**json.loads(line)) for line in whole.splitlines()]


def _start(app_path: str, evidence: Path) -> "subprocess.Popen[bytes]":
    # The working folder is where the application is, as for every command.
    command = "from redrive.cli.verifying import work; work()"
    return subprocess.Popen([sys.executable, "-c", command, app_path, str(evidence)])  # noqa: S603


def _forget(connection: Connection, ledger: SqlLedger) -> None:
    """Delete the tasks of this kind, and all that is kept of them one by one. The figures of those minutes stay."""
    table = schema.task
    ids = list(connection.execute(table.select().with_only_columns(table.c.id).where(table.c.kind == KIND)).scalars())
    for start in range(0, len(ids), DELETED_AT_ONCE):
        named = [str(one) for one in ids[start : start + DELETED_AT_ONCE]]
        for other in schema.metadata.sorted_tables:
            if {"ledger", "task_id"} <= {*other.c.keys()}:
                connection.execute(delete(other).where(other.c.ledger == ledger.name, other.c.task_id.in_(named)))
    connection.execute(delete(table).where(table.c.kind == KIND))


# --- a worker -----------------------------------------------------------------------------------------------------------


async def _work(app_path: str, evidence: str) -> None:
    app = load_app(app_path)
    written = os.open(evidence, os.O_WRONLY | os.O_APPEND)

    def note(key: str, *, ended: bool) -> None:
        os.write(written, (json.dumps({"pid": os.getpid(), "key": key, "ended": ended}) + "\n").encode())

    async def handle(task: Any) -> None:
        note(task.key, ended=False)
        await asyncio.sleep(random.uniform(0.05, 0.3))
        note(task.key, ended=True)

    await app.open()
    lane = app.tasks.with_own_handlers()
    lane.handler(KIND, policy=POLICY)(handle)
    settings = WorkerSettings(concurrency=4, lease=timedelta(seconds=LEASE_SECONDS))
    worker = Worker(await lane.ledger(), lane.handlers, settings)
    parent = os.getppid()
    running = asyncio.create_task(worker.run())
    while not running.done() and os.getppid() == parent:  # nobody is left behind if verify itself is killed
        await asyncio.wait([running], timeout=1)
    worker.stop()
    await running


def work() -> None:
    """The main function of a worker."""
    asyncio.run(_work(*sys.argv[1:]))
