"""The system: the table `events` with its policy, its handlers, its door and its routes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from prometheus_client import CollectorRegistry

from redrive import Exponential, Policy, Redrive, State, jitter
from redrive.app import WorkerSettings
from redrive.errors import MissingExtraError
from redrive.extend import System
from redrive.lane import make_task
from redrive.settings import load
from redrive.systems.webhooks.desk import WebhookDesk
from redrive.systems.webhooks.handled import HandledTypes
from redrive.systems.webhooks.intake import Receipt, WebhookInbox
from redrive.systems.webhooks.logs import WebhookLogs, WebhookMetrics
from redrive.systems.webhooks.replays import Replays
from redrive.systems.webhooks.settings import WebhookSettings
from redrive.systems.webhooks.sources import Source, load_sources
from redrive.systems.webhooks.tables import EVENTS

if TYPE_CHECKING:
    from redrive.systems.webhooks.work import Forward

F = TypeVar("F", bound=Callable[..., Any])

DEPTH_COUNTED_MAX = 100_000


class Webhooks(System):
    """The inbox of an application.

        webhooks = Webhooks(app)

        @webhooks.handler("order.*")
        async def order(task): ...

    Without `settings` they come from the environment, without `sources` from `redrive.toml`.
    """

    name: ClassVar[str] = "webhooks"

    def __init__(
        self, app: Redrive, settings: WebhookSettings | None = None, *, sources: Iterable[Source] | None = None
    ) -> None:
        self.settings = load(WebhookSettings) if settings is None else settings
        self.sources: dict[str, Source] = (
            load_sources(self.settings.redrive_config)
            if sources is None
            else {source.name: source for source in sources}
        )
        self.policy = retry_policy(self.settings)
        super().__init__(app)
        self._now = app.database.now
        self._database = app.database
        self.logs = WebhookLogs()
        self.metrics = WebhookMetrics()
        self.lane = app.adopt(EVENTS, observers=[self.logs, self.metrics], tune=self._tune)
        self.logs.follow(self.lane)
        self._handled = HandledTypes(app.database, self.lane)
        self.inbox = WebhookInbox(app.database, self.lane, self._handled, self.logs, self.settings.queue_maxsize)
        self.desk = WebhookDesk(app.database, self.lane, self._handled)
        self._forward: Forward | None = None

    # --- working ----------------------------------------------------------------------------------------------------

    def handler(
        self,
        event_type: str,
        *,
        policy: Policy | None = None,
        transactional: bool = False,
        timeout: timedelta | None = None,
    ) -> Callable[[F], F]:
        """Register a function, sync or async, for the webhooks of a type; `*` stands for any text.

        It takes the task, whose `payload` is the webhook's, or the task and a `Context`. A type without a handler waits. The
        policy is that of the settings unless another is given.
        """
        return self.lane.handler(event_type, policy=policy or self.policy, transactional=transactional, timeout=timeout)

    def prepare(self) -> None:
        """See `System.prepare`: without any handler webhooks are forwarded, if there is a URL for it."""
        url = self.settings.webhook_forward_url
        if url is None or len(self.lane.handlers):
            return
        try:
            from redrive.systems.webhooks.work import Forward, forward_policy
        except ModuleNotFoundError as error:
            raise MissingExtraError("WEBHOOK_FORWARD_URL", "service") from error

        self._forward = Forward(str(url))
        self.lane.handler("*", policy=forward_policy(self.policy))(self._forward)

    def _tune(self, worker: WorkerSettings) -> WorkerSettings:
        kept = timedelta(days=self.settings.retention_days)
        return replace(
            worker,
            concurrency=self.settings.worker_count,
            retention=dict.fromkeys((State.DONE, State.DEAD, State.CANCELLED), kept) if kept else {},
            prune_every=timedelta(hours=self.settings.cleanup_interval_hours),
        )

    # --- taking in --------------------------------------------------------------------------------------------------

    async def accept(self, event_type: str, payload: dict[str, Any], *, idempotency_key: str) -> Receipt | None:
        """Take a webhook in, as POST /webhooks does: when this returns it is durable; None if the queue is full.

        A key that is known gives the receipt of the webhook that is there.
        """
        bytes_max = self.settings.payload_bytes_max
        return await self.inbox.accept(make_task(event_type, payload, key=idempotency_key, payload_bytes_max=bytes_max))

    # --- what a service asks for ------------------------------------------------------------------------------------

    def routes(self) -> Sequence[Any]:
        from redrive.systems.webhooks.routes import make_routes

        return make_routes(
            self.inbox, self.desk, self.lane, self.settings, self.sources, self.logs, self.metrics, self._now,
            Replays(self._database),
        )  # fmt: skip

    def measure(self, registry: CollectorRegistry) -> None:
        self.metrics.register(registry)

    async def refresh(self) -> None:
        self.metrics.depth.set(await self.inbox.depth(DEPTH_COUNTED_MAX))

    async def run(self, stopped: asyncio.Event) -> None:
        """Say which types are handled here, for processes that take webhooks in, and look which of them are limited or paused."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._handled.run(stopped))
            loops.create_task(self.inbox.gates.run(stopped))

    async def close(self) -> None:
        if self._forward is not None:
            await self._forward.close()


def retry_policy(settings: WebhookSettings) -> Policy:
    """`min(RETRY_BASE_DELAY * 2^attempts, RETRY_MAX_DELAY)` after each failure; the count is raised when it is computed."""
    cap = settings.retry_max_delay
    first = min(2 * settings.retry_base_delay, cap)
    return Policy(Exponential(first, cap), attempts=settings.max_attempts, jitter=jitter.none, name="webhooks")
