"""From the retry queue to the intake: deliveries are gathered, stored together, and acknowledged after the commit.

Nothing is acknowledged before it is durable, here or in the quarantine. Whatever breaks in between (the broker, the database,
this process), the broker delivers again what was not acknowledged, and a message that is stored already changes nothing.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterable

from aiormq.abc import AbstractChannel as RawChannel
from aiormq.abc import DeliveredMessage

from redrive.systems.relay.broker import Publisher
from redrive.systems.relay.intake import RelayIntake
from redrive.systems.relay.logs import RelayLog, RelayMetrics
from redrive.systems.relay.message import InvalidMessageError, read_delivery
from redrive.systems.relay.quarantine import quarantine
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.values import Arrival

LINGER_SECONDS = 0.003
"""How long the first message of a batch waits for others."""
BATCH_MAX = 500
HOLD_SECONDS = 0.05
"""How soon a message is stored again whose row was being published."""

Arrived = asyncio.Queue[DeliveredMessage]


class Tags:
    """Which deliveries of a channel are dealt with, and how to acknowledge them in few words.

    A broker numbers the deliveries of a channel from one. An acknowledgement stands for all before it too only up to the first
    that is still open, so a message that is held for a while keeps none behind it from being acknowledged.
    """

    def __init__(self) -> None:
        self._first_open = 1
        self._done: set[int] = set()
        self._told: set[int] = set()

    def done(self, tags: Iterable[int]) -> list[tuple[int, bool]]:
        """These are dealt with: the acknowledgements to send, each a tag and whether it stands for all before it too."""
        new = set(tags)
        self._done |= new
        last = None
        while self._first_open in self._done:
            self._done.discard(self._first_open)
            if self._first_open in self._told:
                self._told.discard(self._first_open)
            else:
                last = self._first_open
            self._first_open += 1
        rest = sorted(new & self._done)
        self._told.update(rest)
        return [*([] if last is None else [(last, True)]), *((tag, False) for tag in rest)]


class Deliveries:
    """Takes what the broker delivers. One `take` for each session of the consumer."""

    def __init__(
        self, settings: RelaySettings, intake: RelayIntake, publisher: Publisher, log: RelayLog, metrics: RelayMetrics
    ) -> None:
        self.settings = settings
        self.intake = intake
        self._publisher = publisher
        self._log = log
        self._metrics = metrics

    async def take(self, channel: RawChannel, arrived: Arrived) -> None:
        """Store and acknowledge until cancelled, which is when the session ends."""
        async with asyncio.TaskGroup() as helpers:
            session = ChannelSession(self, channel, arrived, helpers)
            while True:
                await session.process(await self._batch(arrived))

    async def _batch(self, arrived: Arrived) -> list[DeliveredMessage]:
        batch = [await arrived.get()]
        if arrived.empty():
            await asyncio.sleep(LINGER_SECONDS)
        while len(batch) < BATCH_MAX and not arrived.empty():
            batch.append(arrived.get_nowait())
        return batch

    async def quarantine(self, message: DeliveredMessage, error: InvalidMessageError) -> None:
        """Publish bad input to its own queue; when this returns the broker has it there."""
        await quarantine(message, error, self._publisher, self.settings.invalid_queue)

    def tell_invalid(self, error: InvalidMessageError) -> None:
        """Say what is in quarantine now."""
        self._metrics.invalid.labels(error.reason).inc()
        self._log.quarantined(error)


class ChannelSession:
    """What belongs to one channel: its tags, the messages that are held, the quarantines under way."""

    def __init__(
        self, deliveries: Deliveries, channel: RawChannel, arrived: Arrived, helpers: asyncio.TaskGroup
    ) -> None:
        self._deliveries = deliveries
        self._intake = deliveries.intake
        self._channel = channel
        self._arrived = arrived
        self._helpers = helpers
        self._tags = Tags()
        self._acknowledging = asyncio.Lock()

    async def process(self, batch: list[DeliveredMessage]) -> None:
        """Deal with a batch of deliveries."""
        good: list[tuple[DeliveredMessage, Arrival]] = []
        for message in batch:
            try:
                good.append((message, read_delivery(message, self._deliveries.settings)))
            except InvalidMessageError as error:
                self._helpers.create_task(self._quarantine(message, error))
        held = await self._store(good)
        if held:
            self._helpers.create_task(self._store_held(held))

    async def _store(self, pairs: list[tuple[DeliveredMessage, Arrival]]) -> list[tuple[DeliveredMessage, Arrival]]:
        """Store and acknowledge; those that must be held."""
        if not pairs:
            return []
        stored, refused = await self._intake.keep([arrival for _, arrival in pairs])
        # By identity: two deliveries of one message may be in one batch.
        held_ids = {id(arrival) for arrival in stored.held}
        held = [pair for pair in pairs if id(pair[1]) in held_ids]
        for message, arrival in pairs:
            if arrival.message_id in refused:
                error = InvalidMessageError("cannot_be_stored", refused[arrival.message_id])
                self._helpers.create_task(self._quarantine(message, error))
        await self._acknowledge(
            _tag(message)
            for message, arrival in pairs
            if id(arrival) not in held_ids and arrival.message_id not in refused
        )
        self._intake.tell(stored)
        return held

    async def _store_held(self, held: list[tuple[DeliveredMessage, Arrival]]) -> None:
        """Try again until the claims have ended. The broker sees them as under way meanwhile."""
        while held:
            await asyncio.sleep(HOLD_SECONDS * random.uniform(0.8, 1.2))
            held = await self._store(held)

    async def _quarantine(self, message: DeliveredMessage, error: InvalidMessageError) -> None:
        await self._deliveries.quarantine(message, error)
        await self._acknowledge([_tag(message)])
        self._deliveries.tell_invalid(error)

    async def _acknowledge(self, tags: Iterable[int]) -> None:
        done = list(tags)
        # One after the other: a word that waits for its place on the wire must not be overtaken by one that stands for all
        # before it. The broker closes a channel that acknowledges a delivery twice.
        # On a channel that is gone nothing can be acknowledged, nor need be: it all comes again.
        async with self._acknowledging:
            await self._send(self._tags.done(done))
        for _ in done:
            self._arrived.task_done()

    async def _send(self, words: list[tuple[int, bool]]) -> None:
        with contextlib.suppress(Exception):
            for at, (tag, multiple) in enumerate(words, start=1):
                # Only the last waits until it is on the wire: behind a message that is held each has a word of its own.
                await self._channel.basic_ack(tag, multiple=multiple, wait=at == len(words))


def _tag(message: DeliveredMessage) -> int:
    tag = message.delivery_tag
    assert tag is not None, "a delivery has a tag"
    return tag
