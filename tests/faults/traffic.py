"""Traffic around a relay that goes on whatever dies: a producer that insists on its confirms, a consumer that writes down what comes."""

import asyncio
import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from redrive.systems.relay.relay_pb2 import RetryMessage
from tests import forks

from .processes import STOP_SECONDS


class Traffic:
    """A producer and a consumer, each with a connection that it makes again when it breaks."""

    def __init__(self, url: str, name: str, *, bursts_per_second: float = 8, burst: int = 10) -> None:
        self._url = url
        self.retry_queue = f"{name}.retry"
        self.review_queue = f"{name}.review"
        self.queue = f"{name}.work"
        self._pause = 1 / bursts_per_second
        self._burst = burst
        self.sent: list[str] = []
        """The ids of all messages that the broker has confirmed."""
        self.came: dict[str, set[str]] = defaultdict(set)
        """For each message id the publications that arrived: each has an AMQP id of its own, a redelivery has the same."""
        self._producing: asyncio.Task[None] | None = None
        self._consuming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        async with await aio_pika.connect(self._url) as connection:
            channel = await connection.channel()
            for queue in (self.queue, self.retry_queue):
                await channel.declare_queue(queue, durable=True)
        self._producing = asyncio.create_task(self._for_ever(self._produce))
        self._consuming = asyncio.create_task(self._for_ever(self._consume))

    async def stop_producing(self) -> None:
        await self._end(self._producing)

    async def stop(self) -> None:
        for task in (self._producing, self._consuming):
            await self._end(task)

    @staticmethod
    async def _end(task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _for_ever(self, work: Any) -> None:
        while True:
            with suppress(Exception):  # the broker is away: come again
                async with asyncio.timeout(10):
                    connection = await aio_pika.connect(self._url, timeout=10)
                try:
                    await work(connection)
                finally:
                    with suppress(Exception):
                        async with asyncio.timeout(5):
                            await connection.close()
            await asyncio.sleep(0.1)

    async def _produce(self, connection: Any) -> None:
        channel = await connection.channel(on_return_raises=True)
        while True:
            ids = [f"m-{len(self.sent) + at:05}" for at in range(self._burst)]
            async with asyncio.timeout(15):
                await asyncio.gather(*(self._send(channel, message_id) for message_id in ids))
            self.sent += ids
            await asyncio.sleep(self._pause)

    async def _send(self, channel: Any, message_id: str) -> None:
        body = RetryMessage(message_id=message_id, original_queue=self.queue, original_payload=message_id.encode())
        made = aio_pika.Message(body.SerializeToString(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(made, self.retry_queue)

    async def _consume(self, connection: Any) -> None:
        closed = asyncio.Event()
        connection.close_callbacks.add(lambda *_: closed.set())
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=200)
        queue = await channel.get_queue(self.queue)
        await queue.consume(self._take)
        await closed.wait()

    async def _take(self, message: AbstractIncomingMessage) -> None:
        assert message.body == str(message.headers["x-message-id"]).encode()
        self.came[str(message.headers["x-message-id"])].add(str(message.message_id))
        await message.ack()

    @property
    def missing(self) -> list[str]:
        """What was confirmed to the producer and has not come yet."""
        return [message_id for message_id in self.sent if message_id not in self.came]


class RelayProcess:
    """A `redrive relay run` of its own."""

    def __init__(self, folder: Path, name: str, traffic: Traffic, broker_url: str, database_url: str) -> None:
        self._log = folder / f"{name}.log"
        environment = os.environ | {
            "DATABASE_URL": database_url,
            "RABBITMQ_URL": broker_url,
            "RETRY_QUEUE": traffic.retry_queue,
            "MANUAL_REVIEW_QUEUE": traffic.review_queue,
            "BASE_DELAY_MS": "200",
            "MAX_DELAY_MS": "400",
            "LOG_FORMAT": "json",
            "PYTHONPATH": str(forks.ROOT),
        }
        self._process = forks.run("relay", "run", "--port", "0", folder=folder, log=self._log, environment=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """SIGKILL, at whatever moment this is."""
        assert self._process.poll() is None, f"it ended by itself: {self.log[-2000:]}"
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
