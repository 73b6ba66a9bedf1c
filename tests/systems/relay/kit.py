"""The other side of the broker: a producer, consumers and queues of a test's own, and a relay that runs beside them."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from sqlalchemy import Connection, func, insert, select

from redrive import Redrive
from redrive.app import WorkerSettings
from redrive.lane import Actor
from redrive.operator.acts import Acted
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.message import (
    PROTOBUF,
    InvalidMessageError,
)
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.tables import retry_queue
from redrive.systems.relay.values import Arrival

WAIT_SECONDS = 150.0


async def until(holds: Callable[[], Awaitable[bool] | bool], what: str, *, seconds: float = WAIT_SECONDS) -> None:
    """Wait for something that must happen."""
    ends = time.monotonic() + seconds
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return
        assert time.monotonic() < ends, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(0.02)


def retry(message_id: str, queue: str, payload: bytes = b"payload", **given: Any) -> RetryMessage:
    """A message as an upstream sends it."""
    return RetryMessage(
        message_id=message_id, original_queue=queue, original_payload=payload, error_reason="it broke", **given
    )


def arrival(message_id: str, **given: Any) -> Arrival:
    """The same as it is read."""
    fields = {
        "payload": b"p", "queue": "q", "error_reason": "", "retry_count": 0, "max_retries": 3, "not_before": None,
        "headers": {}, "content_type": None,
    }  # fmt: skip
    return Arrival(message_id=message_id, **(fields | given))


class Broker:
    """Queues of one test on a real broker; they are deleted with it."""

    def __init__(self, url: str, connection: AbstractConnection, channel: AbstractChannel) -> None:
        self.url = url
        self.name = f"t-{secrets.token_hex(4)}"
        self._connection = connection
        self.channel = channel
        self._made: set[str] = set()

    def settings(self, **given: Any) -> RelaySettings:
        """Settings with queues of this test's own and short waits."""
        made = RelaySettings(
            _env_file=None,
            **{
                "rabbitmq_url": self.url,
                "retry_queue": f"{self.name}.retry",
                "manual_review_queue": f"{self.name}.review",
                "base_delay_ms": 20,
                "max_delay_ms": 50,
                **given,
            },
        )
        self._made |= {made.retry_queue, made.manual_review_queue, made.invalid_queue}
        return made

    async def queue(self, name: str = "work", **given: Any) -> str:
        """A durable queue for a consumer."""
        full = f"{self.name}.{name}"
        self._made.add(full)
        await self.channel.declare_queue(full, **{"durable": True, **given})
        return full

    async def delete(self, queue: str) -> None:
        await self.channel.queue_delete(queue)

    async def send(
        self,
        settings: RelaySettings,
        *messages: RetryMessage | bytes,
        headers: Any = None,
        content_type: Any = PROTOBUF,
    ) -> None:
        """Send to the retry queue, and wait for all confirms."""
        bodies = [one if isinstance(one, bytes) else one.SerializeToString() for one in messages]
        await asyncio.gather(
            *(self.put(settings.retry_queue, body, headers=headers, content_type=content_type) for body in bodies)
        )

    async def put(self, queue: str, body: bytes, **given: Any) -> None:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, **given)
        await self.channel.default_exchange.publish(message, queue)

    async def take(
        self, queue: str, amount: int = 1, *, seconds: float = WAIT_SECONDS
    ) -> list[AbstractIncomingMessage]:
        """So many messages of a queue, acknowledged."""
        taken: list[AbstractIncomingMessage] = []
        found = await self.channel.get_queue(queue)
        ends = time.monotonic() + seconds
        while len(taken) < amount:
            message = await found.get(fail=False, no_ack=True, timeout=seconds)
            if message is not None:
                taken.append(message)
                continue
            assert time.monotonic() < ends, f"{len(taken)} of {amount} messages came to {queue}"
            await asyncio.sleep(0.01)
        return taken

    async def depth(self, queue: str) -> int:
        """How many messages are ready in a queue; those that somebody holds do not count."""
        declared = await (await self._connection.channel()).declare_queue(queue, passive=True)
        return declared.declaration_result.message_count or 0

    async def consume(self, queue: str, take: Callable[[AbstractIncomingMessage], Awaitable[None]]) -> None:
        """Be the consumer of a queue; each message is acknowledged after `take`."""
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=100)

        async def on_message(message: AbstractIncomingMessage) -> None:
            await take(message)
            await message.ack()

        await (await channel.get_queue(queue)).consume(on_message)

    async def clean(self) -> None:
        for queue in self._made:
            with suppress(Exception):
                channel = await self._connection.channel()
                await channel.queue_delete(queue)


@asynccontextmanager
async def broker_at(url: str) -> AsyncIterator[Broker]:
    """The other side of the broker at this URL."""
    async with await aio_pika.connect(url) as connection:
        made = Broker(url, connection, await connection.channel(on_return_raises=True))
        try:
            yield made
        finally:
            await made.clean()


@asynccontextmanager
async def running(app: Redrive, relay: Relay, *, connected: bool = True) -> AsyncIterator[None]:
    """A relay and its worker, until the end of the block."""
    workers = app.workers(WorkerSettings(grace=WorkerSettings().grace / 5))
    work = asyncio.create_task(workers.run())
    try:
        if connected:
            await until(lambda: work.done() or (relay.ready and workers.ready.is_set()), "the relay has started")
        yield
    finally:
        workers.stop()
        await work
        await app.close()


async def rows(app: Redrive) -> list[dict[str, Any]]:
    """All rows of the table."""

    def look(connection: Connection) -> list[dict[str, Any]]:
        return [
            dict(row._mapping) for row in connection.execute(select(retry_queue).order_by(retry_queue.c.message_id))
        ]

    return await app.database.read(look)


async def amount_of(app: Redrive) -> int:
    """How many rows there are."""
    counted = select(func.count()).select_from(retry_queue)
    return await app.database.read(lambda connection: connection.execute(counted).scalar_one())


async def row(app: Redrive, message_id: str) -> dict[str, Any]:
    """One row of the table."""
    [found] = [each for each in await rows(app) if each["message_id"] == message_id]
    return found


def delivered(body: bytes, tag: int = 1, **properties: Any) -> DeliveredMessage:
    """A message as the driver hands it on."""
    header = ContentHeader(body_size=len(body), properties=Basic.Properties(**properties))
    return DeliveredMessage(Basic.Deliver(delivery_tag=tag), header, body, None)  # type: ignore[arg-type]


NOWHERE = "amqp://guest:guest@127.0.0.1:1/"


ADA = Actor(name="ada", reason="the bank is back")


async def in_review(app: Redrive, *message_ids: str, **given: Any) -> list[int]:
    """Messages whose retries are spent; the ids of their rows."""
    now = datetime.now(UTC)
    values = {
        "original_payload": b'{"order": 7}', "original_queue": "orders", "error_reason": "it broke", "retry_count": 3,
        "max_retries": 3, "status": "failed", "headers": {"tenant": "ada"}, "created_at": now, "updated_at": now,
    }  # fmt: skip

    def write(connection: Connection) -> list[int]:
        made = [values | {"message_id": message_id} | given for message_id in message_ids]
        connection.execute(insert(retry_queue), made)
        c = retry_queue.c
        return list(connection.execute(select(c.id).where(c.message_id.in_(message_ids)).order_by(c.id)).scalars())

    return await app.database.write(write)


async def statuses(app: Redrive) -> dict[str, str]:
    """Where each message stands."""
    return {one["message_id"]: one["status"] for one in await rows(app)}


PATH = "/api/relay/review"


class Recorder:
    """A log that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def quarantined(self, error: InvalidMessageError) -> None:
        self.told.append(error.reason)

    def unstored(self, error: str) -> None:
        self.told.append(error)


def outcome(done: Acted) -> tuple[list[Any], dict[Any, str]]:
    """Which messages an act changed, and of the others why not."""
    return list(done.changed), dict(done.refused)
