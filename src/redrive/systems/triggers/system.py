"""The system itself: its lane, its stores, its loops, its routes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import structlog
from prometheus_client import CollectorRegistry

from redrive import Policy, Redrive, Schedule, State, __version__, jitter
from redrive.app import WorkerSettings
from redrive.errors import LedgerAwayError, SettingsError
from redrive.extend import System
from redrive.http.outgoing import Guard, Outgoing
from redrive.operator.alert_rules import Alarm
from redrive.operator.headcount import Headcount
from redrive.operator.words import describe_error
from redrive.settings import Settings, load
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers.aws.settings import AwsSettings
from redrive.systems.triggers.desk import EndpointDesk
from redrive.systems.triggers.held import EndpointGates
from redrive.systems.triggers.hosting import Hosting
from redrive.systems.triggers.inbox import WORDS, amounts
from redrive.systems.triggers.ledger import ENDPOINTS, EVENTS, TRIGGER_DELIVERIES
from redrive.systems.triggers.logs import DeliveryLog, TriggerMetrics
from redrive.systems.triggers.settings import TriggerSettings
from redrive.systems.triggers.status import STATUSES
from redrive.systems.triggers.stores import open_stores
from redrive.systems.triggers.values import Change
from redrive.systems.triggers.work import Deliverer

if TYPE_CHECKING:
    from redrive.systems.triggers.aws.metrics import EmfMetrics

PRUNE_EVERY_SECONDS = 60.0
PARKED_EVERY_SECONDS = 5.0


class Triggers(System):
    """Events in, deliveries tracked.

        app = Redrive("sqlite:///work.db")
        triggers = Triggers(app)

    `redrive serve --app module:app` then serves the API under `/v1` and delivers.
    """

    name: ClassVar[str] = "triggers"
    audited = (ENDPOINTS,)

    def __init__(self, app: Redrive, settings: TriggerSettings | None = None, *, hosting: Hosting = Hosting()) -> None:
        super().__init__(app)
        self._hosting = hosting
        self.settings = settings or load(TriggerSettings)
        if self.settings.endpoint_rate is not None and not app.store.keeps_tasks:
            raise SettingsError(
                "ENDPOINT_RATE is not for events in DynamoDB: set ENDPOINT_CONCURRENCY, or keep events in PostgreSQL"
            )
        self._keys = app.store.keys
        self.guard = Guard(self.settings.delivery_allow_networks)
        self.outgoing = Outgoing(self.guard, user_agent=f"redrive/{__version__}")
        self.metrics: TriggerMetrics | None = None
        self.emf = _cloudwatch(app.store.url)
        self.keeper = SecretKeeper(app.store.file)
        self.stores, adoption = open_stores(app, self.settings, self.keeper, self._tell, self._ledger)
        self.intake, self.inbox, self.endpoints = self.stores.intake, self.stores.inbox, self.stores.endpoints
        self.deliverer = Deliverer(
            self.stores.loads, self.endpoints, self.stores.clock, self.outgoing, self.keeper,
            retry_all=self.settings.delivery_retry_all, retry_after_max=self.settings.longest_delay,
        )  # fmt: skip
        self.policy = policy_of(self.settings)
        self._retention: timedelta | None = None
        self._log: Any = structlog.get_logger(system="triggers")
        self._story = DeliveryLog()
        self.lane = app.adopt(TRIGGER_DELIVERIES, observers=[self._story], tune=self._tune, **adoption)
        self._story.follow(self.lane)
        self.lane.gate("*", **self.settings.endpoint_limits)  # each endpoint has a gate of its own
        # People count events here, and not the deliveries that they are made of.
        self.lane.headcount = Headcount(name=EVENTS, things="events", words=WORDS, amounts=self._amounts)
        self.lane.handler(policy=self.policy)(self.deliverer.deliver)
        self._gates = EndpointGates(self.lane, self.stores)
        self.desk = EndpointDesk(self.stores.book, self.lane, self._gates)

    async def _ledger(self) -> Any:
        return await self.lane.ledger()

    def panel(self) -> Any:
        from redrive.systems.triggers.page import make_panel

        return make_panel(self.desk)

    def routes(self) -> Sequence[Any]:
        from redrive.systems.triggers.routes import make_routes

        return make_routes(
            stores=self.stores, keys=self._keys, deliverer=self.deliverer, guard=self.guard, lane=self.lane,
            desk=self.desk, gates=self._gates, rate_limit_per_minute=self.settings.rate_limit_per_minute,
            deliveries_per_minute=self.settings.deliveries_per_minute, queried=self._queried, hosting=self._hosting,
        )  # fmt: skip

    def error_styles(self) -> Sequence[Any]:
        from redrive.systems.triggers.access import STYLE

        return (STYLE,)

    def measure(self, registry: CollectorRegistry) -> None:
        self.metrics = TriggerMetrics(registry)

    async def refresh(self) -> None:
        if self.metrics is not None:
            totals = await self.inbox.totals()
            self.metrics.received.set(totals.get("received", 0))
            self.metrics.queued.set(totals.get("queued", 0))
            for word in STATUSES:
                self.metrics.statuses.labels(word).set(totals.get(word, 0))

    async def _amounts(self) -> dict[State, int]:
        return amounts(await self.inbox.totals())

    async def alarms(self) -> Sequence[Alarm]:
        """See `System.alarms`: endpoints that their failures have disabled."""
        return await self.desk.alarms()

    async def run(self, stopped: asyncio.Event) -> None:
        """Forget what was delivered long ago, and tell CloudWatch what is counted, until told to stop."""
        await self._check_secrets()
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._every(PRUNE_EVERY_SECONDS, stopped, "prune_failed", self.forget, self.tell_totals))
            loops.create_task(self._every(PARKED_EVERY_SECONDS, stopped, "look_failed", self.stores.queue_parked))
            if self.emf is not None:
                loops.create_task(self.emf.run(stopped))
        # The workers stop at the same time and may still be delivering, within their grace.
        await self.deliverer.idle.wait()
        await self.outgoing.close()

    async def _check_secrets(self) -> None:
        """Stop at the start, with the remedy, where secrets are stored that no key here opens."""
        with suppress(LedgerAwayError):
            stored = await self.endpoints.some_secret()
            if stored is not None:
                self.keeper.open(stored)

    def _queried(self) -> None:
        if self.metrics is not None:
            self.metrics.queries.inc()
        if self.emf is not None:
            self.emf.count_query()

    def _tell(self, changes: Sequence[Change]) -> None:
        """After a commit: log what has changed, where this application writes a log, and count it."""
        self._story.tell(changes)
        if self.metrics is not None:
            self.metrics.count(changes)
        if self.emf is not None:
            self.emf.count(changes)

    def _tune(self, settings: WorkerSettings) -> WorkerSettings:
        # Deliveries live as long as their events, which are pruned here; failed ones are kept for ever.
        self._retention = settings.retention.get(State.DONE)
        return replace(settings, retention={})

    async def _every(
        self, seconds: float, stopped: asyncio.Event, failed: str, *calls: Callable[[], Awaitable[None]]
    ) -> None:
        while not stopped.is_set():
            try:
                for call in calls:
                    await call()
            except LedgerAwayError:
                pass  # the workers say so; it is tried again
            except Exception as error:  # whatever a driver says: the service goes on, and it is tried again
                self._log.error(failed, error=describe_error(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), seconds)

    async def forget(self) -> None:
        """Forget what was delivered longer ago than is kept, and finish what others have left."""
        before = None if self._retention is None else self.stores.clock.now() - self._retention
        while await self.inbox.forget_delivered(before):
            pass

    async def tell_totals(self) -> None:
        """Tell CloudWatch how many events are open."""
        if self.emf is not None:
            self.emf.tell_totals(await self.inbox.totals())

    async def close(self) -> None:
        """See `System.close`."""
        await self.stores.flushed()

    async def flush(self) -> None:
        """Write what was counted and not written yet: points of charts, and what CloudWatch is told."""
        await self.stores.flushed()
        if self.emf is not None:
            self.emf.flush()


def policy_of(settings: TriggerSettings) -> Policy:
    """How a failed delivery is tried again: 1, 5 and 15 minutes later, unless the settings say otherwise."""
    percent = settings.retry_jitter_percent
    return Policy(
        Schedule(settings.delays),
        retries=settings.max_retry_attempts,
        jitter=jitter.plus_minus(percent) if percent else jitter.none,
        name="triggers",
    )


def _cloudwatch(store: str) -> "EmfMetrics | None":
    """The metrics of CloudWatch, where events are kept on AWS."""
    if not store.startswith("dynamodb:"):
        return None
    from redrive.systems.triggers.aws.metrics import EmfMetrics

    return EmfMetrics(namespace=load(AwsSettings).metrics_namespace, service=load(Settings).service_name)
