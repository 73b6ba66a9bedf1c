"""The relay: failed messages of RabbitMQ wait in the database, go back to their queues on time, and end with people.

    app = Redrive("postgresql://…")
    relay = Relay(app, RelaySettings(rabbitmq_url="amqp://…"))

`intake` stores what arrives, the handler here publishes what is due, and the engine in between keeps the time. Only the handler
ends a row: a lost confirm, a broker that is away or a crash charge nothing.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from aio_pika import Message
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, func, literal_column, select

from redrive import Exponential, Fixed, PermanentError, Policy, Redrive, Task, TransientError, jitter, seconds
from redrive.app import WorkerSettings
from redrive.events import TaskAdded
from redrive.extend import System, describe_error, redact
from redrive.operator.alert_rules import Alarm
from redrive.settings import load
from redrive.systems.relay.broker import Consumer, Published, Publisher
from redrive.systems.relay.desk import ActsOnMessages, Review
from redrive.systems.relay.headers import MESSAGE_ID
from redrive.systems.relay.intake import Intake
from redrive.systems.relay.logs import RelayLog, RelayMetrics
from redrive.systems.relay.missing import MissingQueues
from redrive.systems.relay.outbox import is_spent, retry_message, review_message
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.store import Store, Stored
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue

JITTER = seconds(1)
LEASE = seconds(10)
"""A relay that is killed keeps the messages it was publishing from going out for about this long."""
CONCURRENCY = 256
"""How many confirms may be awaited at once. Each holds a payload in memory."""
BATCH = 128
TRIES_MAX = 999_999
"""No row dies of failures: only the handler ends it."""
SOON = timedelta(milliseconds=200)
WAKE_SECONDS = 0.1
"""What is due later than `SOON` wakes the worker at most this often: it only has to hear of it before it is due."""
DEPTH_MAX = 1_000_000
AGAIN_MAX = seconds(60)
"""A message that no queue takes is tried at least this often, however long retries may wait."""


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
        self._app = app
        self._service = service
        self._log = RelayLog()
        self._metrics = RelayMetrics()
        self.lane = app.adopt(
            RETRY_QUEUE, observers=[self._log, self._metrics], tune=self._tune, beside=ActsOnMessages()
        )
        # What the handler fails with brings its own wait along. What is left is a crash: due again at once.
        crashed = Policy(Fixed(timedelta(0)), attempts=TRIES_MAX, jitter=jitter.additive(JITTER), name="relay")
        self.lane.handler(policy=crashed)(self.publish)
        url = self.settings.rabbitmq_url
        own = [self.settings.invalid_queue, self.settings.manual_review_queue]
        self._publisher = Publisher(url, f"{service}-publisher", self._broker, queues=own, cut=self._confirm_lost)
        self._store = Store(app.database, self.lane, self.policy)
        self._intake = Intake(self.settings, self._store, self._publisher, self)
        self._consumer = Consumer(
            url, f"{service}-consumer", self._broker,
            queue=self.settings.retry_queue, prefetch=self.settings.rabbitmq_prefetch, take=self._intake.take,
        )  # fmt: skip
        self.review = Review(app.database, self.lane)
        self._missing = MissingQueues()
        self._publishing: asyncio.Task[None] | None = None
        self._waking: asyncio.TimerHandle | None = None

    def _tune(self, worker: WorkerSettings) -> WorkerSettings:
        return replace(worker, concurrency=CONCURRENCY, batch=BATCH, lease=LEASE, poll=self.settings.poll)

    # --- publishing -------------------------------------------------------------------------------------------------

    async def publish(self, task: Task) -> None:
        """Publish a due message to its queue, or to the reviewers when its retries are spent."""
        row = task.payload
        spent = is_spent(task)
        queue = self.settings.manual_review_queue if spent else row["original_queue"]
        try:
            message = review_message(task) if spent else retry_message(task, self._service)
            answer = await self._publisher.publish(message, queue)
        except Exception as error:
            raise self._again(task, f"cannot be published: {describe_error(error)}") from error
        if answer in (Published.CONFIRMED, Published.REFUSED):
            self._missing.found(queue)
        match answer:
            case Published.CONFIRMED if spent:
                why = row["error_reason"] or "nobody said of what"
                raise PermanentError(
                    f"all {row['max_retries']} retries are spent; it is in {queue} now, dead of: {why}"
                )
            case Published.CONFIRMED:
                return
            case Published.UNROUTABLE:
                if spent:
                    await self._publisher.declare_again(queue)
                raise self._again(
                    task,
                    f"unroutable: there is no queue {queue!r}; it is tried again until there is one",
                    at_least=self._missing.missed(queue),
                )
            case Published.REFUSED:
                raise self._again(task, f"refused: the broker does not take messages for {queue!r} now")
            case Published.UNCONFIRMED:
                raise self._again(task, f"unconfirmed: {queue!r} may have it, but the broker did not say so")

    def _again(self, task: Task, reason: str, *, at_least: timedelta = timedelta(0)) -> TransientError:
        """Try again with the backoff of its count. The count itself is raised by nothing but a confirm."""
        delay = max(self.policy.delay(task.failures + 1, task.key), at_least)
        return TransientError(reason, retry_after=min(delay, self.settings.max_delay, AGAIN_MAX))

    # --- what the intake tells --------------------------------------------------------------------------------------

    def stored(self, stored: Stored) -> None:
        """A batch is durable: count it, tell it, and let the worker know when to look."""
        self._metrics.stored(stored)
        if self._logs:
            self._log.stored(stored)
        if stored.new and self.lane.observers:
            name = self.lane.name
            self.lane.tell([TaskAdded(name, name, one.message_id, id_, True) for id_, one, _ in stored.new])
        delays = stored.delays
        if not delays:
            return
        if min(delays) <= SOON:
            self._wake()
        elif self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wake)

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._app.database.wake(self.lane.name)

    def invalid(self, reason: str, detail: str) -> None:
        """A message is in quarantine."""
        self._metrics.quarantined(reason)
        if self._logs:
            self._log.quarantined(reason, detail)

    def unstored(self, error: str) -> None:
        """What arrived cannot be stored for now."""
        if self._logs:
            self._log.unstored(error)

    def _broker(self, link: str, up: bool, error: str) -> None:  # noqa: FBT001 - called by position
        if self._logs:
            self._log.broker(link, up=up, error=error)

    def _confirm_lost(self, message: Message, queue: str) -> None:
        self._metrics.confirm_lost()
        if self._logs:
            self._log.confirm_lost(message.headers.get(MESSAGE_ID) or message.message_id, queue)

    @property
    def _logs(self) -> bool:
        """Whether the application wants log lines."""
        return self._log in self.lane.observers

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self, stopped: asyncio.Event) -> None:
        """Take messages in until stopped. Publishing goes on until `close`: handlers may still wait for their confirms."""
        if self._publishing is None:
            self._publishing = asyncio.create_task(self._publisher.run(), name="relay-publisher")
        consuming = asyncio.create_task(self._consumer.run(), name="relay-consumer")
        stopping = asyncio.create_task(stopped.wait())
        self._metrics.running(up=True)
        try:
            await asyncio.wait({consuming, self._publishing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (consuming, self._publishing):
                if task.done():
                    task.result()  # neither ends by itself: what it raised must be heard
            await self._consumer.finish()
        finally:
            self._metrics.running(up=False)
            if self._waking is not None:
                self._waking.cancel()
                self._waking = None
            consuming.cancel()
            stopping.cancel()
            await asyncio.gather(consuming, stopping, return_exceptions=True)

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

    def panel(self) -> Any:
        """See `System`."""
        from redrive.systems.relay.page import PANEL

        return PANEL

    def routes(self) -> Sequence[Any]:
        """See `System.routes`."""
        from redrive.systems.relay.routes import make_router

        return (make_router(self.review),)

    async def alarms(self) -> Sequence[Alarm]:
        """Messages that wait for a person, by the queue that they failed in."""
        waiting = await self.review.waiting()
        named = [
            Alarm(f"relay review {queue}", redact(f"relay: messages of {queue!r} wait for a person: {amount:,}"))
            for queue, amount in waiting.queues
        ]
        rest = Alarm("relay review", "relay: messages of more queues wait for a person: see /systems/relay")
        return [*named, rest] if waiting.more else named

    async def checks(self) -> Mapping[str, bool]:
        """Whether the broker is there."""
        return {"rabbitmq": self._consumer.is_up and self._publisher.is_up}

    # --- metrics ----------------------------------------------------------------------------------------------------

    def measure(self, registry: CollectorRegistry) -> None:
        """See `System.measure`."""
        self._metrics.register(registry)

    async def refresh(self) -> None:
        """Ask the database how much waits, and for how long."""
        depth = await self._app.database.read(_depth)
        self._metrics.gauges(depth=depth, oldest_due=await (await self.lane.ledger()).oldest_due())


def _depth(connection: Connection) -> int:
    is_pending = retry_queue.c.status == literal_column("'pending'")  # as a literal: bound, it hides the partial index
    pending = select(retry_queue.c.id).where(is_pending).limit(DEPTH_MAX).subquery()
    counted = select(func.count()).select_from(pending)
    return int(connection.execute(counted).scalar_one())
