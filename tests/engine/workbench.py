"""What the tests of the engine share: handlers, an observer that can be waited for, ledgers with faults, a worker, claims that it holds."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.durations import ZERO
from redrive.core.jitter import none
from redrive.core.outcome import LeaseExpired
from redrive.core.policy import Policy
from redrive.core.task import Abandoned, NewTask, Task
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.held import HeldRun
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.events import Event
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from tests.core.test_decide import claim_of

PATIENCE_SECONDS = 150
SECOND = timedelta(seconds=1)
NEVER = timedelta(hours=1)
"""A poll for which no test waits."""
STEADY = Policy(Fixed(timedelta(seconds=10)), retries=2, jitter=none)
AT_ONCE = Policy(Fixed(ZERO), retries=2, jitter=none)
ONCE = Policy(attempts=1)


class Heard:
    """An observer that keeps every fact and can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def observe(self, events: Sequence[Event]) -> None:
        self.events += events
        self._changed.set()

    def tell(self, events: list[Event]) -> None:
        """For parts that take a function."""
        self.observe(events)

    def of(self, *kinds: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    async def amount(self, kind: type, amount: int) -> list[Any]:
        """Wait until there are so many facts of a kind."""
        await self.until(lambda: len(self.of(kind)) >= amount)
        return self.of(kind)

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until the condition holds, looked at after every fact."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not met():
                self._changed.clear()
                await self._changed.wait()


class Faulty:
    """A real ledger with a fault: what is set on it stands before what the ledger does."""

    def __init__(self, ledger: SqlLedger) -> None:
        self.real = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def handlers_of(*, policy: Policy = STEADY, **functions: Any) -> Handlers:
    """Handlers by their kinds, all with the same policy."""
    handlers = Handlers()
    for kind, function in functions.items():
        handlers.add(make_handler(kind, function, policy))
    return handlers


async def add(ledger: SqlLedger, *keys: str, kind: str = "job", **options: Any) -> list[Any]:
    """Add tasks with these keys; their ids."""
    added = await ledger.add([NewTask(kind=kind, key=key, **options) for key in keys])
    return [one.id for one in added]


@asynccontextmanager
async def working(
    ledger: Any,
    handlers: Handlers,
    *,
    heard: Heard | None = None,
    around: Any = None,
    grace: timedelta = timedelta(seconds=5),
    **settings: Any,
) -> AsyncIterator[Worker]:
    """A worker that runs for as long as the block, and has stopped gracefully after it."""
    observers = [] if heard is None else [heard]
    worker = Worker(ledger, handlers, WorkerSettings(grace=grace, **settings), observers=observers, around=around)
    running = asyncio.create_task(worker.run())
    try:
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_SECONDS)
        ready.cancel()
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running


def ignore(task: Any) -> None:
    """A handler that does nothing."""


class Gate:
    """A handler that shows who is inside and lets them out one by one, or all."""

    def __init__(self) -> None:
        self.inside: dict[str | None, asyncio.Event] = {}
        self.most = 0
        self.started: list[str | None] = []
        self.cancelled: list[str | None] = []
        self._changed = asyncio.Event()

    async def __call__(self, task: Task) -> None:
        self.inside[task.key] = out = asyncio.Event()
        self.started.append(task.key)
        self.most = max(self.most, len(self.inside))
        self._changed.set()
        try:
            await out.wait()
        except asyncio.CancelledError:
            self.cancelled.append(task.key)
            raise
        finally:
            del self.inside[task.key]

    def let_out(self, *keys: str) -> None:
        for key in keys or list(self.inside):
            self.inside[key].set()

    async def until_started(self, amount: int) -> None:
        async with asyncio.timeout(60):
            while len(self.started) < amount:
                self._changed.clear()
                await self._changed.wait()


def spying(ledger: Any) -> tuple[list[int], Any]:
    """How much each claim asks for, and the ledger that it must go through to be told."""
    asked: list[int] = []
    spied: Any = Faulty(ledger)

    async def claim(limit: int, lease: timedelta, **options: Any) -> Any:
        asked.append(limit)
        return await ledger.claim(limit, lease, **options)

    spied.claim = claim
    return asked, spied


def steal(connection: Connection) -> None:
    """Give every held row a fence that nobody has."""
    held = schema.task.update().where(schema.task.c.state == "claimed")
    connection.execute(held.values(claim_id=uuid4()))


async def lose(ledger: SqlLedger, *keys: str, kind: str = "job") -> list[Any]:
    """Tasks whose last run was lost with its worker; their ids."""
    ids = await add(ledger, *keys, kind=kind)
    claims = await ledger.claim(len(keys), SECOND, kinds=[kind])
    lost = [claim._replace(abandoned=Abandoned(claim_id=None, claimed_at=None)) for claim in claims]
    assert await ledger.settle([decide(one, LeaseExpired(), STEADY) for one in lost], worker="lost") == []
    return ids


class Due:
    """A ledger that says when the next task is due, or raises."""

    name = "tasks"
    transactions_max = 9
    effects = None

    def __init__(self, due: timedelta | Exception | None, *, gates: bool = False) -> None:
        self.due = due
        self.gates = gates
        self.asked: list[Any] = []

    async def next_due(self, *, kinds: Sequence[str]) -> timedelta | None:
        self.asked.append(kinds)
        if isinstance(self.due, Exception):
            raise self.due
        return self.due

    async def paused_kinds(self) -> tuple[()]:
        return ()

    async def uses_gates(self, *, anew: bool = False) -> bool:
        return self.gates

    async def discover(self, *, lately: bool = False) -> int:
        self.asked.append("discover")
        return 0


def run_of(key: str, *, at: float = -math.inf, lost: bool = False) -> HeldRun:
    """A run of a task with this key, extended long ago unless another time is said."""
    claim = claim_of(key=key)
    handler = make_handler("job", ignore, STEADY)
    return HeldRun(claim._replace(task=claim.task._replace(id=key)), at, handler, lost=lost)
