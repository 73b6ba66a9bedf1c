"""Relays die while they hand messages to people: no row ends as failed whose review message is not with the broker."""

import asyncio
import json
import os
import random
import secrets
from contextlib import ExitStack, suppress
from pathlib import Path

import aio_pika
import pytest
from sqlalchemy import Connection, select

from redrive import Redrive
from redrive.systems.relay.message import PROTOBUF
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.tables import retry_queue

from .books import until
from .traffic import RelayProcess, Traffic

ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS", "1"))
KILLS = 2 * ROUNDS
DRAIN_SECONDS = 150


class Review:
    """The queue for people, and who reads it."""

    def __init__(self, channel: aio_pika.abc.AbstractChannel, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self.seen: set[str] = set()

    async def read(self) -> int:
        """Take off what is there; how many different messages have come."""
        queue = await self._channel.declare_queue(self._queue, durable=True)
        while (message := await queue.get(fail=False, no_ack=True, timeout=60)) is not None:
            self.seen.add(json.loads(message.body)["message_id"])
        return len(self.seen)


def failed(connection: Connection) -> set[str]:
    """The messages whose row says that people have them."""
    return set(connection.execute(select(retry_queue.c.message_id).where(retry_queue.c.status == "failed")).scalars())


def held(connection: Connection) -> int:
    """How many messages somebody was about to hand over."""
    return len(connection.execute(select(retry_queue.c.id).where(retry_queue.c.lease_until.is_not(None))).all())


class Producer:
    """Sends messages whose retries are spent, one after the other, until it is stopped."""

    def __init__(self, channel: aio_pika.abc.AbstractChannel, queue: str) -> None:
        self.sent: set[str] = set()
        self._channel = channel
        self._queue = queue
        self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while True:
            message_id = f"m-{len(self.sent):05}"
            spent = RetryMessage(message_id=message_id, original_queue="q", retry_count=3, max_retries=3)
            made = aio_pika.Message(
                spent.SerializeToString(), content_type=PROTOBUF, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            self.sent.add(message_id)
            await self._channel.default_exchange.publish(made, self._queue)
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._sending.cancel()
        with suppress(asyncio.CancelledError):
            await self._sending


@pytest.mark.parametrize(
    "store", ["postgres"], indirect=True
)  # the promise is the relay's own, whatever keeps its rows
async def test_no_row_fails_without_its_review_message(
    url: str, rabbitmq: str, tmp_path: Path, rng: random.Random
) -> None:
    """kill -9 in the middle of handing over, again and again: whatever is failed was confirmed by the broker before."""
    names = Traffic(rabbitmq, f"review-{secrets.token_hex(4)}")
    app = Redrive(url)
    async with await aio_pika.connect(rabbitmq) as connection, app:
        channel = await connection.channel()
        await channel.declare_queue(names.retry_queue, durable=True)
        review = Review(await connection.channel(), names.review_queue)
        producer = Producer(channel, names.retry_queue)
        cut = 0
        with ExitStack() as stack:
            for turn in range(KILLS + 1):
                relay = stack.enter_context(RelayProcess(tmp_path, f"relay-{turn}", names, rabbitmq, url))
                begun = await review.read()

                async def some_more(least: int = begun) -> bool:
                    return await review.read() > least

                await until(some_more, "it hands over")
                if turn == KILLS:
                    break
                await asyncio.sleep(rng.uniform(0, 0.3))
                relay.kill()
                ended = await app.database.read(failed)
                cut += await app.database.read(held)
                await review.read()
                assert ended <= review.seen
            await producer.stop()
            sent = producer.sent

            async def all_failed() -> bool:
                return await app.database.read(failed) >= sent - {max(sent)}  # the last was perhaps not sent

            await until(all_failed, "all are with people", timeout=DRAIN_SECONDS)
            assert relay.stop() == 0, relay.log[-2000:]
            await review.read()
            assert await app.database.read(failed) <= review.seen
        print(f"{len(sent)} messages, {KILLS} relays killed, {cut} rows held at a kill, each kill counted by itself")
        await asyncio.gather(*(channel.queue_delete(queue) for queue in (names.retry_queue, names.review_queue)))
