"""The application: a store, its lanes, and the workers that run them."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from redrive.core.table import TASKS, LedgerTable
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings, worker_name
from redrive.errors import HandlerError, UsageError
from redrive.lane import Lane
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.observe.traces import span_around
from redrive.operator.carrier import Carrier
from redrive.operator.ports import OperatorLedger
from redrive.ports import Clock, Observer
from redrive.signs import Signs, write_counts
from redrive.stores.open import open_store
from redrive.stores.port import NO_TASKS, Store
from redrive.system import System

__all__ = ["Redrive", "WorkerSettings", "Workers"]

DEFAULT_URL = "sqlite:///redrive.db"
OF_TASKS = frozenset({"tasks", "handler", "add", "add_many", "add_sync", "result"})
"""What is there only where the store keeps tasks of any kind."""


class Redrive:
    """Durable retries on a database.

        app = Redrive("sqlite:///work.db")

        @app.handler("send_invoice", policy=Policy(Exponential(seconds(2), minutes(5)), retries=5))
        async def send_invoice(task): ...

        await app.add("send_invoice", {"invoice": 7}, key="invoice-7")

    An application has lanes, one for each table: `app.tasks` is that of redrive's own, `adopt` gives lanes over tables of
    yours. Looking and acting is done on a lane (`await app.tasks.get("invoice-7")`); `app.handler`, `app.add`,
    `app.add_many`, `app.add_sync`, `app.result` and `app.gate` are those of `app.tasks`. On SQLite our tables are made when the file is opened; on
    PostgreSQL run `redrive migrate` first.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        durable: bool = True,
    ) -> None:
        self.store: Store = open_store(url, clock=clock, durable=durable)
        """Where all is kept that people look at: tasks, keys, figures, the audit log."""
        self.observers: list[Observer] = list(observers)
        """Who is told what happens in all lanes."""
        self._lanes: dict[str, Lane] = {}
        if self.store.keeps_tasks:
            self.tasks = Lane(self.store, TASKS, open_app=self.open, observers=self.observers)
            """The lane of redrive's own table."""
            self.handler = self.tasks.handler
            self.add = self.tasks.add
            self.add_many = self.tasks.add_many
            self.add_sync = self.tasks.add_sync
            self.gate = self.tasks.gate
            self.result = self.tasks.result
            self._lanes[self.tasks.name] = self.tasks
        self.systems: dict[str, System] = {}
        """The systems that stand on this application, by name."""
        self._opened = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say why there is no lane of redrive's own tasks, where the store keeps none; and that people look and act on a lane."""
            if name in OF_TASKS:
                raise UsageError(NO_TASKS)
            hint = "" if name.startswith("_") or not hasattr(Lane, name) else f": it is on a lane, app.tasks.{name}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def database(self) -> Database:
        """The database, for systems and code that read and write tables of their own."""
        return self.store.database

    # --- lanes ------------------------------------------------------------------------------------------------------

    def adopt(
        self,
        table: LedgerTable,
        *,
        observers: Iterable[Observer] = (),
        tune: Callable[[WorkerSettings], WorkerSettings] | None = None,
        ledger: OperatorLedger | None = None,
        beside: Beside | None = None,
    ) -> Lane:
        """A lane over a table of yours; it is checked when the application opens.

        `observers` are told what happens in this lane alone, and `tune` may change how its worker works. `beside` writes
        in the same commits as the engine. A system may bring a `ledger` of its own over a table that its
        migrations made; the lane then has that ledger's name.
        """
        if ledger is None and not self.store.keeps_tasks:
            raise UsageError(NO_TASKS)
        if not isinstance(table, LedgerTable):
            raise UsageError(
                f"a table is adopted by a LedgerTable, such as LedgerTable('emails', …), not by {table!r:.80}"
            )
        name = table.name if ledger is None else ledger.name
        if name in self._lanes:
            raise UsageError(f"table {name!r} has a lane already: keep what the first `adopt` returned")
        lane = Lane(
            self.store, table, open_app=self.open, observers=self.observers, own_observers=observers, tune=tune,
            ledger=ledger, beside=beside,
        )  # fmt: skip
        self._lanes[name] = lane
        return lane

    def attach(self, system: System) -> None:
        """Take a system in; systems do this by themselves when they are made."""
        if system.name in self.systems:
            raise UsageError(f"this application has {system.name} already: keep the first one")
        if self._opened:
            raise UsageError(f"attach {system.name} before the application is opened: its tables are checked then")
        self.systems[system.name] = system

    @property
    def lanes(self) -> dict[str, Lane]:
        """All lanes by the names of their tables, redrive's own first where the store keeps it."""
        return dict(self._lanes)

    # --- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect, check the versions and the adopted tables. Done by itself at the first use."""
        if not self._opened:
            try:
                await self.store.open(self.systems)
                self._opened = True
                for lane in self._lanes.values():
                    await lane.ledger()
            except BaseException:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        """Let go of the systems and of the store."""
        self._opened = False
        try:
            for system in self.systems.values():
                await system.close()
        finally:
            await self.store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- work -------------------------------------------------------------------------------------------------------

    def workers(self, settings: WorkerSettings | None = None, *, lanes: Sequence[Lane] | None = None) -> "Workers":
        """The workers of all lanes that have handlers, and the loops of the systems; or of some lanes only."""
        return Workers(self, settings or WorkerSettings(), lanes=lanes)

    async def work(self, settings: WorkerSettings | None = None) -> None:
        """Work off all lanes until the calling task is cancelled, then stop gracefully."""
        await self.workers(settings).run()

    async def work_off(self, lane: Lane, settings: WorkerSettings | None = None) -> None:
        """Work off one lane until nothing is due there any more, then come back: for runs that cron starts.

        Claims that nobody settled are charged first. If the calling task is cancelled it stops gracefully.
        """
        worker = await _make_worker(lane, settings or WorkerSettings(), worker_name())
        running = asyncio.create_task(worker.run(until_idle=True))
        try:
            await asyncio.wait([running])
        finally:
            worker.stop()
            await running
            with suppress(Exception):  # figures, which no work waits for
                await write_counts(self.store, worker.name, [worker])


class Workers:
    """One worker for each lane with handlers, and the loops of the systems, started and stopped together."""

    def __init__(self, app: Redrive, settings: WorkerSettings, *, lanes: Sequence[Lane] | None = None) -> None:
        self._app = app
        self._settings = settings
        self._lanes = lanes
        self.name = worker_name()
        self._workers: list[Worker] = []
        self._stopped = asyncio.Event()
        self.ready = asyncio.Event()
        """Set when every worker has looked for work once."""

    def stop(self) -> None:
        """Ask all of them to stop gracefully; `run` returns when they have."""
        self._stopped.set()
        for worker in self._workers:
            worker.stop()

    async def run(self, *, then_exit: bool = False) -> None:
        """Work until `stop` is called or the calling task is cancelled; both are graceful.

        Plain handlers whose threads outlive the grace are waited for, unless the process is going to exit (`then_exit`).
        """
        await self._app.open()
        systems = list(self._app.systems.values()) if self._lanes is None else []
        for system in systems:
            system.prepare()
        asked = self._app.lanes.values() if self._lanes is None else self._lanes
        lanes = [lane for lane in asked if len(lane.handlers)]
        if not lanes and not systems:
            raise HandlerError("the application has no handlers: register one with @app.handler('kind')")
        sharers = sum(lane.handlers.has_transactional for lane in lanes)
        self._workers = [await _make_worker(lane, self._settings, self.name, sharers=max(1, sharers)) for lane in lanes]
        if self._stopped.is_set():
            return
        running = [asyncio.create_task(worker.run(then_exit=then_exit)) for worker in self._workers]
        running += [asyncio.create_task(system.run(self._stopped)) for system in systems]
        watching = asyncio.create_task(self._watch())
        signs = Signs(self._app.store, self.name, lambda: self._workers)
        carrier = Carrier(self._app.store.operations, lambda: self._app.lanes, self.name)
        beside = [asyncio.create_task(one) for one in (signs.give(), signs.count(), carrier.run())]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Asked to, cancelled, or because one of them broke: they stop together, and gracefully.
            self.stop()
            watching.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await signs.part()
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _watch(self) -> None:
        for worker in self._workers:
            await worker.ready.wait()
        self.ready.set()


async def _make_worker(lane: Lane, settings: WorkerSettings, name: str, *, sharers: int = 1) -> Worker:
    tuned = lane.tune(settings) if lane.tune else settings
    ledger = await lane.ledger()
    around = span_around()
    return Worker(ledger, lane.handlers, tuned, name=name, observers=lane.observers, around=around, sharers=sharers)
