"""Handlers of dead letters die while they hand over: every dead letter reaches the relay, under one id, however often."""

import asyncio
import os
import random
import secrets
import signal
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from redrive.systems.relay.relay_pb2 import RetryMessage
from tests import forks

from .books import until
from .processes import STOP_SECONDS, events

ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS", "1"))
KILLS = 2 * ROUNDS
PER_KILL = 40
DRAIN_SECONDS = 150


class HandlerProcess:
    """A `redrive relay dead-letters` of its own."""

    def __init__(self, folder: Path, name: str, queues: str, broker_url: str) -> None:
        self._log = folder / f"{name}.log"
        environment = os.environ | {
            "RABBITMQ_URL": broker_url,
            "RETRY_QUEUE": f"{queues}.retry",
            "DEAD_LETTER_EXCHANGE": f"{queues}.dlx",
            "DEAD_LETTER_QUEUE": f"{queues}.dead",
            "LOG_FORMAT": "json",
            "PYTHONPATH": str(forks.ROOT),
        }
        self._process = forks.run(
            "relay", "dead-letters", "--port", "0", folder=folder, log=self._log, environment=environment
        )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def handed(self) -> int:
        """How many dead letters it says it has handed over."""
        assert self._process.poll() is None, f"it ended by itself: {self.log[-2000:]}"
        return len(events(self.log, "dead_letter"))

    def kill(self) -> None:
        """SIGKILL, at whatever moment this is."""
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


async def test_kill_storm(rabbitmq: str, tmp_path: Path, rng: random.Random) -> None:
    """kill -9 while dead letters are handed over, again and again: none is lost, none gets a second id, the last stop is clean."""
    name = f"letters-{secrets.token_hex(4)}"
    came: dict[bytes, list[str]] = defaultdict(list)

    async def take(message: AbstractIncomingMessage) -> None:
        read = RetryMessage.FromString(message.body)
        assert (read.original_queue, message.headers["x-dead-letter-class"]) == (f"{name}.work", "transient")
        came[read.original_payload].append(read.message_id)
        await message.ack()

    async def reject(message: AbstractIncomingMessage) -> None:
        await message.reject()

    sent: set[bytes] = set()
    async with await aio_pika.connect(rabbitmq) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=500)
        arguments = {"x-dead-letter-exchange": f"{name}.dlx"}
        work = await channel.declare_queue(f"{name}.work", durable=True, arguments=arguments)
        retry = await channel.declare_queue(f"{name}.retry", durable=True)
        await retry.consume(take)

        await work.consume(reject)

        async def fail_some() -> None:
            """Messages that their consumer rejects, all at once."""
            some = [f"{len(sent) + at:05}".encode() for at in range(PER_KILL)]
            await asyncio.gather(*(_publish(channel, work.name, body) for body in some))
            sent.update(some)

        with ExitStack() as stack:
            for turn in range(KILLS + 1):
                handler = stack.enter_context(HandlerProcess(tmp_path, f"handler-{turn}", name, rabbitmq))
                await until(lambda one=handler: len(events(one.log, "broker_connected")) == 2, "it has started")
                await fail_some()
                enough = rng.randrange(1, PER_KILL // 2)
                await until(lambda one=handler, least=enough: one.handed >= least, "it works")
                if turn < KILLS:
                    handler.kill()
            await until(lambda: set(came) >= sent, "all have come", timeout=DRAIN_SECONDS)
            assert handler.stop() == 0, handler.log[-2000:]
            assert "Traceback" not in handler.log
        dead = await channel.declare_queue(f"{name}.dead", passive=True)
        left = dead.declaration_result.message_count
        twice = sum(len(ids) > 1 for ids in came.values())
        print(f"{len(sent)} dead letters, {KILLS} handlers killed, {twice} handed over more than once, {left} left")
        await asyncio.gather(*(channel.queue_delete(f"{name}.{one}") for one in ("work", "retry", "dead")))
        await channel.exchange_delete(f"{name}.dlx")
    assert left == 0
    assert set(came) == sent
    assert {body: set(ids) for body, ids in came.items()} == {body: {f"m-{body.decode()}"} for body in sent}


async def _publish(channel: aio_pika.abc.AbstractChannel, queue: str, body: bytes) -> None:
    message = aio_pika.Message(body, message_id=f"m-{body.decode()}", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, queue)
