"""What the tests of the engine share: handlers, an observer that can be waited for, a ledger with faults, a worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from redrive.core.backoff import Fixed
from redrive.core.jitter import none
from redrive.core.policy import Policy
from redrive.core.task import NewTask
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.worker import Worker, WorkerSettings
from redrive.events import Event
from redrive.ledgers.sql.ledger import SqlLedger

PATIENCE_SECONDS = 150
STEADY = Policy(Fixed(timedelta(seconds=10)), retries=2, jitter=none)


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
