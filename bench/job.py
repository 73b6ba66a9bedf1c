"""What one measurement is told, and how it proves that the work was done.

A `Job` travels to a subprocess as JSON. A `Tally` counts, for every single task, how often it failed and how often it
succeeded, so a system that loses, skips or repeats a task is found out. Only the standard library is used here: this
module is imported by every interpreter that measures.
"""

import asyncio
import dataclasses
import json
import mmap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Work = Literal["add", "run", "fail_once"]
Store = Literal["rabbitmq", "postgres", "sqlite"]
WORKS: tuple[Work, ...] = get_args(Work)

ADD_BATCH = 1_000
"""Tasks per call for every system that can add in bulk, so that no one gains by a larger batch than the others."""

POLL_SECONDS = 0.005
"""How often the last success is looked for: the error of a measurement of three seconds is under 0.2 %."""


class FirstTryError(Exception):
    """What every handler raises on the first try of `fail_once`."""


class VerificationError(Exception):
    """The work was not done as promised, so its time means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One phase of one measurement: store the tasks (`add`) or work them off (`work`)."""

    name: str
    """Fresh for every measurement and fit for a queue, a database or a file."""
    module: str
    store: Store
    url: str
    """Where the store is: an AMQP URL, a PostgreSQL URL, or the path of a SQLite file."""
    work: Work
    phase: Literal["add", "work"]
    tasks: int
    server_pid: int | None = None
    """The PostgreSQL whose processor time counts as the server's."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Job":
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the store itself says. `None` where it keeps no record of what is over."""

    left: int
    """Tasks still to be done: waiting, waiting for a retry, or held by a worker."""
    succeeded: int | None = None
    failed: int | None = None
    """Failed tries, not tasks."""


class Tally:
    """Two bytes per task, in memory that forked workers share: failures and successes."""

    def __init__(self, tasks: int, *, fail_first: bool) -> None:
        self.tasks = tasks
        self.fail_first = fail_first
        self.finished_at: float | None = None
        self._failures = mmap.mmap(-1, tasks)
        self._successes = mmap.mmap(-1, tasks)
        self._done_up_to = 0

    def attempt(self, number: int, *, first_try: bool) -> None:
        """The whole handler of every system: count, and raise if this try is meant to fail."""
        if first_try and self.fail_first:
            self._failures[number] += 1
            raise FirstTryError("the first try fails")
        self._successes[number] += 1

    def complete(self) -> bool:
        """Whether every task has succeeded. Cheap to ask often: it goes on where it last found a gap."""
        gap = self._successes.find(b"\0", self._done_up_to)
        self._done_up_to = self.tasks if gap < 0 else gap
        return gap < 0

    def wait(self) -> None:
        """Block until every task has succeeded, and stop the clock. The only other end is the time limit."""
        while not self.complete():
            time.sleep(POLL_SECONDS)
        self.finished_at = time.perf_counter()

    async def completed(self) -> None:
        """The same for systems that live in an event loop."""
        while not self.complete():
            await asyncio.sleep(POLL_SECONDS)
        self.finished_at = time.perf_counter()

    def verify(self) -> None:
        """Every task succeeded exactly once, and failed exactly as often as this work wants."""
        wanted_failures = 1 if self.fail_first else 0
        for what, counts, wanted in (("succeed", self._successes, 1), ("fail", self._failures, wanted_failures)):
            right = counts[:].count(wanted)
            if right != self.tasks:
                raise VerificationError(
                    f"{self.tasks - right:,} of {self.tasks:,} tasks did not {what} exactly {wanted} times"
                )
