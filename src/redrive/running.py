"""An application that works, as monitoring sees it (`Running`), and what stands around it in `redrive serve` (`Service`)."""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from redrive.alerting import STORE_EVERY, Watch
from redrive.app import Redrive, Workers
from redrive.chores import PROVE_EVERY, WriteProof, repeat
from redrive.core.states import State
from redrive.engine.patience import Patience
from redrive.engine.worker_settings import WorkerSettings, worker_name
from redrive.lane import Lane
from redrive.observe.metrics import GATES_MAX, MetricsObserver
from redrive.operator.alert_rules import EVERY as ALERTS_EVERY
from redrive.operator.bookkeeper import EVERY as BOOKS_EVERY
from redrive.operator.bookkeeper import Bookkeeper
from redrive.operator.carrier import Carrier
from redrive.operator.headcount import Headcount
from redrive.operator.ports import OperatorLedger
from redrive.settings import Settings

ANSWER_WITHIN = timedelta(seconds=2)
"""How long the store may take to answer a health check."""
ANSWERING_OBJECTS, WORKING_OBJECTS = 5_000, 50_000
"""How many more objects there are when the garbage collector looks: of a worker that fails all tasks once, with 3,000 slots, it took 0.7 µs a
task with 20,000, and takes 0.1 with 50,000."""
SWITCH_SECONDS = 0.0002
"""How long a thread that computes lets others wait for the interpreter. SQLite's writer asks for it after each step, and with Python's 5 ms it
waited for the loop, which ran handlers meanwhile: of tasks that run 35,458/s instead of 39,668, of those that fail once 13,754 instead of 15,227."""


def tuned_runner(*, answers: bool = False) -> asyncio.Runner:
    """The event loop of a process that is ours alone: uvloop where it is installed, and a garbage collector that looks less often.

    A worker makes and drops thousands of small objects a second, hardly any of them in cycles: looking for cycles at Python's usual pace
    takes a tenth of its time. What it holds at once, some thousand tasks, should fit in between two looks: they are not looked through for
    nothing then. In a process that `answers` each look must stay short, since whoever asks for a page waits for it: with one at every
    5,000 objects instead of 50,000, p95 of the five slowest pages fell from 97 to 205 ms to 35 to 100 ms.

    What was imported is never looked through, also not once now, for the few cycles in it: that would be a quarter of the time to start.

    And threads hand the interpreter on sooner, see `SWITCH_SECONDS`.
    """
    gc.freeze()
    gc.set_threshold(ANSWERING_OBJECTS if answers else WORKING_OBJECTS, 20, 100)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def observe_with_metrics(app: Redrive) -> MetricsObserver:
    """The application's metrics; its own observer of them if it brought one."""
    for observer in app.observers:
        if isinstance(observer, MetricsObserver):
            return observer
    made = MetricsObserver()
    app.observers.append(made)
    return made


async def open_patiently(app: Redrive, stopped: asyncio.Event) -> bool:
    """Open the application, waiting while its store is away; False if it was told to stop before."""
    lane = next(iter(app.lanes.values()), None)
    patience = Patience(app.store.url, lambda _: None) if lane is None else Patience(lane.name, lane.tell)
    opening = asyncio.create_task(patience.until_answered(app.open))
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
        return opening.done() and not stopped.is_set()
    finally:
        for task in (opening, stopping):
            task.cancel()
        await asyncio.gather(opening, stopping, return_exceptions=True)


class Running:
    """An application that works, as monitoring sees it: whether its store is open, its workers run, and what it depends on answers."""

    exits = True
    """Whether the process ends with it: threads that outlive the grace are then not waited for."""

    def __init__(self, app: Redrive, workers: Workers | None, *, measured: bool = True) -> None:
        """Only who is `measured` counts what happens: it costs a little with every task."""
        self.app = app
        self.workers = workers
        self.metrics = observe_with_metrics(app) if measured else None
        if self.metrics is not None:
            for system in app.systems.values():
                system.measure(self.metrics.registry)
        self.proof = WriteProof(app.store, worker_name())
        """Whether the store takes writes."""
        self.is_open = False
        self.opened = asyncio.Event()
        self._started = time.monotonic()
        self._stopped = asyncio.Event()

    @property
    def uptime(self) -> timedelta:
        """How long it has been running."""
        return timedelta(seconds=time.monotonic() - self._started)

    @property
    def works(self) -> bool:
        """Whether the worker loop runs, where there is anything to work on."""
        if self._stopped.is_set():
            return False
        if not all(system.ready for system in self.app.systems.values()):
            return False
        return self.workers is None or self.workers.ready.is_set()

    def stop(self) -> None:
        """Ask it to stop gracefully; `run` then returns."""
        self._stopped.set()
        if self.workers is not None:
            self.workers.stop()

    async def run(self) -> None:
        """Open the store, however long it is away, and work until told to stop."""
        try:
            if await open_patiently(self.app, self._stopped):
                await self.open()
                await self.work()
        finally:
            self.is_open = False

    async def open(self) -> None:
        """Open the store, if nobody has, and what is to be done before anybody is told so."""
        await self.app.open()
        await self.prepare()
        self.is_open = True
        self.opened.set()

    async def prepare(self) -> None:
        """What is to be done once the store is open, and before anybody is told so."""

    async def work(self) -> None:
        """Work until told to stop. Beside it a small write proves now and then that the store takes any."""
        proving = asyncio.create_task(repeat("write proof", PROVE_EVERY, self.proof.prove))
        try:
            if self.workers is not None:
                await self.workers.run(then_exit=self.exits)
            else:
                await self._stopped.wait()
        finally:
            proving.cancel()
            await asyncio.gather(proving, return_exceptions=True)

    async def set_gauges(self) -> None:
        """Ask for what is not counted as it happens. Many workers share a ledger: how much waits there is asked by a service."""

    async def store_answers(self) -> bool:
        """Whether the store answers now."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN.total_seconds()):
                await self.app.store.answers()
        except Exception:  # whatever a driver says instead of an answer
            return False
        return True


class Service(Running):
    """An application with what stands around it in `redrive serve`: keys, metrics, its systems, and its workers."""

    metrics: MetricsObserver

    def __init__(
        self, app: Redrive, settings: Settings, worker: WorkerSettings | None = None, *, working: bool = True
    ) -> None:
        """Where others work it is not `working` itself, and only answers."""
        works = working and (bool(app.systems) or any(len(lane.handlers) for lane in app.lanes.values()))
        super().__init__(app, app.workers(worker or settings.worker()) if works else None)
        self.settings = settings
        self.keys = app.store.keys
        self.first_key: str | None = None
        """The admin key that was made at this start, until somebody has printed it."""
        self._at_end: list[Callable[[], Awaitable[None]]] = []
        kept = timedelta(days=settings.audit_retention_days) if settings.audit_retention_days else None
        self._bookkeeper = Bookkeeper(app.store, self._ledgers, audit_kept=kept)
        self._watch = Watch(app, settings, self.proof)

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something closed when the service ends, while its store is still open."""
        self._at_end.append(close)

    async def prepare(self) -> None:
        """See `Running.prepare`: there is a key to come in with."""
        given = self.settings.redrive_admin_key
        self.first_key = await self.keys.ensure_first(given.get_secret_value() if given is not None else None)

    async def work(self) -> None:
        """See `Running.work`. Beside it the books are kept, and people are told what is wrong."""
        chores = [
            asyncio.create_task(repeat("books", BOOKS_EVERY, self._bookkeeper.round)),
            asyncio.create_task(repeat("alerts", ALERTS_EVERY, self._watch.round)),
            asyncio.create_task(repeat("store alert", STORE_EVERY, self._watch.look_at_store)),
        ]
        if self.workers is None:  # else they carry operations on
            carrier = Carrier(self.app.store.operations, lambda: self.app.lanes, "service")
            chores.append(asyncio.create_task(carrier.run()))
        try:
            await super().work()
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, self.close_all(), return_exceptions=True)

    async def keep_house(self) -> None:
        """Keep the books and look what is wrong, once: for who is called by a schedule and does not run on."""
        await self._bookkeeper.round()
        await self._watch.round()

    async def close_all(self) -> None:
        """Close what was to be closed at the end; once."""
        closing, self._at_end = self._at_end, []
        await asyncio.gather(*(close() for close in closing), return_exceptions=True)

    async def set_gauges(self) -> None:
        """See `Running.set_gauges`: how many tasks stand where. A store that is away leaves the last numbers and says that it is not up."""
        for lane in self.app.lanes.values():
            try:
                ledger = await lane.ledger()
                counted = (await self.app.store.figures.states()).get(lane.name)
                # Before the first census a short look must do: no scrape may count a large table.
                counts = await lane.counts() if counted is None else await (await lane.census()).amounts_now(counted)
                oldest = await ledger.oldest_due()
            except Exception:  # a scrape must still get the counters
                self.metrics.up.labels(lane.name).set(0)
                continue
            self.metrics.up.labels(lane.name).set(self.app.store.trouble() is None and not self.proof.is_stale)
            for state in State:
                self.metrics.depth.labels(lane.name, state.value).set(counts.get(state, 0))
            self.metrics.oldest_due.labels(lane.name).set(oldest.total_seconds() if oldest else 0)
            with suppress(Exception):
                await self._show_gates(lane)
        for system in self.app.systems.values():
            with suppress(Exception):
                await system.refresh()

    async def _show_gates(self, lane: Lane) -> None:
        """The first gates, those that hold before all, by their names; the others by what they do."""
        reader = await lane.gate_reader()
        page = await reader.page(limit=GATES_MAX)
        gates = [view for view in page.items if not view.is_of_kinds]
        others, held = dict[str, int](), 0
        if page.cursor is not None:
            sums = await reader.sums()
            others = {does.value: amount for does, amount in sums.amounts.items()}
            for view in page.items:
                others[view.does] -= 1
            held = sums.held - sum(view.held for view in gates)
        self.metrics.show_gates(lane.name, gates, others, max(0, held))

    async def _ledgers(self) -> list[tuple[OperatorLedger, Headcount | None]]:
        return [(await lane.ledger(), lane.headcount) for lane in self.app.lanes.values()]
