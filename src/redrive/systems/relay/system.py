"""The relay: failed messages of RabbitMQ wait in the database, go back to their queues on time, and end with people.

    app = Redrive("postgresql://…")
    relay = Relay(app, RelaySettings(rabbitmq_url="amqp://…"))

`deliveries` and `intake` store what arrives, `work` publishes what is due, and the engine in between keeps the time.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from aio_pika import Message
from prometheus_client import CollectorRegistry

from redrive import Exponential, Fixed, Policy, Redrive, jitter, seconds
from redrive.app import WorkerSettings
from redrive.extend import System
from redrive.operator.alert_rules import Alarm
from redrive.operator.words import redact
from redrive.settings import load
from redrive.systems.relay.beside import ActsOnMessages
from redrive.systems.relay.broker import Consumer, Publisher, consume_until
from redrive.systems.relay.deliveries import Deliveries
from redrive.systems.relay.desk import ReviewDesk
from redrive.systems.relay.headers import MESSAGE_ID
from redrive.systems.relay.intake import RelayIntake
from redrive.systems.relay.logs import RelayLog, RelayMetrics
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.tables import RETRY_QUEUE
from redrive.systems.relay.work import Work

JITTER = seconds(1)
LEASE = seconds(10)
"""A relay that is killed keeps the messages it was publishing from going out for about this long."""
CONCURRENCY = 256
"""How many confirms may be awaited at once. Each holds a payload in memory."""
BATCH = 128
TRIES_MAX = 999_999
"""No row dies of failures: only the handler ends it."""


def backoff_policy(settings: RelaySettings) -> Policy:
    """`min(BASE_DELAY_MS * 2^retry_count, MAX_DELAY_MS)` and up to a second of jitter."""
    return Policy(
        Exponential(settings.base_delay, settings.max_delay),
        attempts=TRIES_MAX,
        jitter=jitter.additive(JITTER),
        name="relay",
    )


class Relay(System):
    """The retry scheduler for RabbitMQ on an application."""

    name = "relay"

    def __init__(
        self, app: Redrive, settings: RelaySettings | None = None, *, service: str = "retry-scheduler"
    ) -> None:
        super().__init__(app)
        self.settings = settings if settings is not None else load(RelaySettings)
        self.policy = backoff_policy(self.settings)
        self._log = RelayLog()
        self._metrics = RelayMetrics()
        self.lane = app.adopt(
            RETRY_QUEUE, observers=[self._log, self._metrics], tune=self._tune, beside=ActsOnMessages()
        )
        self._log.follow(self.lane)
        url = self.settings.rabbitmq_url
        own = [self.settings.invalid_queue, self.settings.manual_review_queue]
        self._publisher = Publisher(url, f"{service}-publisher", self._log.broker, queues=own, cut=self._confirm_lost)
        self._work = Work(self.settings, self._publisher, self.policy, service)
        # What the handler fails with brings its own wait along. What is left is a crash: due again at once.
        crashed = Policy(Fixed(timedelta(0)), attempts=TRIES_MAX, jitter=jitter.additive(JITTER), name="relay")
        self.lane.handler(policy=crashed)(self._work.publish)
        self._intake = RelayIntake(app.database, self.lane, self.policy, self._log, self._metrics)
        self._deliveries = Deliveries(self.settings, self._intake, self._publisher, self._log, self._metrics)
        self._consumer = Consumer(
            url, f"{service}-consumer", self._log.broker,
            queue=self.settings.retry_queue, prefetch=self.settings.rabbitmq_prefetch, take=self._deliveries.take,
        )  # fmt: skip
        self.desk = ReviewDesk(app.database, self.lane)
        self._publishing: asyncio.Task[None] | None = None

    def _tune(self, worker: WorkerSettings) -> WorkerSettings:
        return replace(worker, concurrency=CONCURRENCY, batch=BATCH, lease=LEASE, poll=self.settings.poll)

    def _confirm_lost(self, message: Message, queue: str) -> None:
        self._metrics.confirms_lost.inc()
        self._log.confirm_lost(message.headers.get(MESSAGE_ID) or message.message_id, queue)

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self, stopped: asyncio.Event) -> None:
        """Take messages in until stopped. Publishing goes on until `close`: handlers may still wait for their confirms."""
        if self._publishing is None:
            self._publishing = asyncio.create_task(self._publisher.run(), name="relay-publisher")
        self._metrics.up.set(1)
        looking = asyncio.create_task(self._intake.gates.run(stopped), name="relay-gates")
        try:
            await consume_until(stopped, self._consumer, self._publishing)
        finally:
            looking.cancel()
            self._metrics.up.set(0)
            self._intake.stop_waking()

    async def close(self) -> None:
        """Let go of the broker."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing

    @property
    def ready(self) -> bool:
        """Whether both connections to the broker have been made."""
        return self._consumer.was_up and self._publisher.was_up

    @property
    def is_connected(self) -> bool:
        """Whether the broker is there now."""
        return self._consumer.is_up and self._publisher.is_up

    # --- what a service asks for ------------------------------------------------------------------------------------

    def panel(self) -> Any:
        from redrive.systems.relay.page import make_panel

        return make_panel(self.desk, lambda: self.is_connected)

    def routes(self) -> Sequence[Any]:
        from redrive.systems.relay.routes import make_router

        return (make_router(self.desk),)

    async def alarms(self) -> Sequence[Alarm]:
        """Messages that wait for a person, by the queue that they failed in."""
        waiting = await self.desk.waiting()
        named = [
            Alarm(f"relay review {queue}", redact(f"relay: messages of {queue!r} wait for a person: {amount:,}"))
            for queue, amount in waiting.queues
        ]
        rest = Alarm("relay review", "relay: messages of more queues wait for a person: see /systems/relay")
        return [*named, rest] if waiting.more else named

    async def checks(self) -> Mapping[str, bool]:
        """Whether the broker is there."""
        return {"rabbitmq": self.is_connected}

    def measure(self, registry: CollectorRegistry) -> None:
        self._metrics.register(registry)

    async def refresh(self) -> None:
        """Ask the database how much waits, and for how long."""
        self._metrics.depth.set(await self.desk.depth())
        oldest_due = await (await self.lane.ledger()).oldest_due()
        self._metrics.oldest_due.set(oldest_due.total_seconds() if oldest_due else 0)
