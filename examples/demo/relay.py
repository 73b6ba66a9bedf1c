"""Traffic for the relay, where there is a broker: orders that failed upstream, and a consumer that fails some of them again.

The queues are the demo's own, whatever the settings say: on a broker with real work it takes and leaves nothing of that. What
goes to the reviewers' queue is taken from it here, as their own tools would; the rows stay to be seen.
"""

import json
import secrets
from datetime import timedelta
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractRobustConnection

from examples.demo.traffic import Traffic, chance, is_out, span
from redrive import Redrive
from redrive.settings import load_settings
from redrive.systems.relay.headers import COUNT, MESSAGE_ID
from redrive.systems.relay.message import PROTOBUF
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.system import Relay

RETRY, REVIEW, ORDERS = "demo.retry.scheduled", "demo.manual-review.pending", "demo.orders"
PREFETCH = 20
RETRIES = 3


class RelayTraffic(Traffic):
    """Orders of a shop on RabbitMQ."""

    every_seconds = 2.0

    def __init__(self, app: Redrive, settings: RelaySettings) -> None:
        waits = {"base_delay_ms": _milliseconds(span(0.5)), "max_delay_ms": _milliseconds(span(8))}
        mine = {"retry_queue": RETRY, "manual_review_queue": REVIEW}
        self._settings = settings.model_copy(update=waits | mine)
        Relay(app, self._settings, service=load_settings().service_name)
        self._run = secrets.token_hex(3)
        self._connection: AbstractRobustConnection | None = None
        self._channel: AbstractChannel | None = None

    async def begin(self) -> None:
        """Connect, and consume what the relay publishes."""
        await self.end()
        self._connection = await aio_pika.connect_robust(self._settings.rabbitmq_url, timeout=10)
        self._channel = await self._connection.channel()
        await self._channel.set_qos(prefetch_count=PREFETCH)
        # A queue of this connection alone: it is gone with the demo.
        orders = await self._channel.declare_queue(ORDERS, exclusive=True)
        await orders.consume(self._take)
        for name in (RETRY, REVIEW):
            await self._channel.declare_queue(name, durable=True)
        reviewed = await self._channel.get_queue(REVIEW)
        await reviewed.consume(_read, no_ack=True)

    async def beat(self, number: int) -> None:
        """An order that failed upstream; one in eight cannot be helped."""
        poison = number % 8 == 3
        payload = json.dumps({"order": number, "poison": poison}).encode()
        await self._fail(f"order-{self._run}-{number}", payload, 0, "the warehouse did not answer")

    async def end(self) -> None:
        """See `Traffic.end`."""
        if self._connection is not None:
            await self._connection.close()

    async def _take(self, message: AbstractIncomingMessage) -> None:
        """Handle an order as a consumer does: it works, or it is sent to be retried once more."""
        async with message.process():
            facts = json.loads(message.body)
            reason = None
            if facts["poison"]:
                reason = f"order {facts['order']} has no lines"
            elif is_out() or chance.random() < 0.3:
                reason = "the warehouse did not answer"
            if reason is not None:
                count: Any = message.headers.get(COUNT, 0)
                await self._fail(str(message.headers[MESSAGE_ID]), message.body, int(count), reason)

    async def _fail(self, message_id: str, payload: bytes, count: int, reason: str) -> None:
        assert self._channel is not None
        retry = RetryMessage(
            message_id=message_id, original_payload=payload, original_queue=ORDERS, error_reason=reason,
            retry_count=count, max_retries=RETRIES,
        )  # fmt: skip
        message = aio_pika.Message(retry.SerializeToString(), content_type=PROTOBUF)
        await self._channel.default_exchange.publish(message, RETRY)


def _milliseconds(wait: timedelta) -> int:
    return max(1, round(wait.total_seconds() * 1000))


async def _read(_message: AbstractIncomingMessage) -> None:
    """A reviewer's tool has it now."""
