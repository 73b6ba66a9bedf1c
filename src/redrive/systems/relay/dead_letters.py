"""The upstream of the relay for those who have none: dead letters are taken, judged by rules, and handed to the retry queue.

Every dead letter takes the same way, also one that people must look at: the relay stores it and hands it over at once, so that it has
its row there and its review message. Nothing is acknowledged before the broker has it on the retry queue or in quarantine. Whatever
breaks in between, it is delivered again under the same id, and the relay knows it. No database is needed here.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial

from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel as RawChannel
from aiormq.abc import DeliveredMessage

from redrive.errors import SettingsError
from redrive.operator.words import describe_error
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.broker import Consumer, Publisher, consume_until
from redrive.systems.relay.deaths import DeadLetter, read_letter
from redrive.systems.relay.frames import unreadable
from redrive.systems.relay.logs import DeadLetterMetrics, RelayLog
from redrive.systems.relay.message import PROTOBUF, InvalidMessageError
from redrive.systems.relay.quarantine import quarantine
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.rules import LetterClass, LetterVerdict, Rules
from redrive.systems.relay.settings import DeadLetterSettings, RelaySettings
from redrive.systems.relay.topology import bind, require

NOT_PLACED = "no-queue-known"
"""What stands in place of a rule's name where it is not known which queue a message failed in."""


class DeadLetters:
    """Takes dead letters and hands them to the relay."""

    def __init__(
        self, settings: RelaySettings, source: DeadLetterSettings, rules: Rules, *, service: str = "dead-letters"
    ) -> None:
        self.settings = settings
        self.source = source
        self.rules = rules
        self.metrics = DeadLetterMetrics()
        self._log = RelayLog()
        self._began = time.monotonic()
        self._runs = False
        url = settings.rabbitmq_url
        own = [settings.retry_queue, settings.invalid_queue]
        relays = {*own, settings.manual_review_queue}
        if source.dead_letter_queue in relays:
            raise SettingsError(
                f"DEAD_LETTER_QUEUE={source.dead_letter_queue!r} is the relay's own, and what is taken there would go in a circle: "
                "name the queue for dead letters"
            )
        self._own = {*relays, source.dead_letter_queue}
        self._publisher = Publisher(url, f"{service}-publisher", self._log.broker, queues=own, cut=self._confirm_lost)
        self._consumer = Consumer(
            url, f"{service}-consumer", self._log.broker,
            queue=source.dead_letter_queue, prefetch=settings.rabbitmq_prefetch, take=self.take, prepare=self._prepare,
        )  # fmt: skip

    async def _prepare(self, connection: AbstractConnection, queue: str) -> None:
        if self.source.exchange is None:
            await require(connection, queue)
        else:
            await bind(connection, queue, self.source.exchange, self.source.dead_letter_routing_keys)

    # --- one dead letter --------------------------------------------------------------------------------------------

    async def take(self, channel: RawChannel, arrived: "asyncio.Queue[DeliveredMessage]") -> None:
        """Hand over and acknowledge until cancelled, which is when the session ends. As many at once as are delivered."""
        async with asyncio.TaskGroup() as under_way:
            while True:
                message = await arrived.get()
                under_way.create_task(self._deal_with(message, channel, arrived))

    async def _deal_with(
        self, message: DeliveredMessage, channel: RawChannel, arrived: "asyncio.Queue[DeliveredMessage]"
    ) -> None:
        try:
            letter, verdict, packed = self.read(message)
            await self._send(packed)
        except InvalidMessageError as error:
            await quarantine(message, error, self._publisher, self.settings.invalid_queue)
            tell = partial(self._quarantined, error)
        else:
            tell = partial(self._handed_over, letter, verdict)
        assert message.delivery_tag is not None, "a delivery has a tag"
        with contextlib.suppress(Exception):  # on a channel that is gone nothing can be acknowledged: it comes again
            await channel.basic_ack(message.delivery_tag)
        tell()  # not before: what cannot be told would come again, and without an id as another message
        arrived.task_done()

    def read(self, message: DeliveredMessage) -> tuple[DeadLetter, LetterVerdict, Message]:
        """The dead letter, what is to become of it, and how it goes on; an `InvalidMessageError` whatever it holds."""
        if (strange := unreadable(message.header)) is not None:
            raise InvalidMessageError("bad_properties", f"the properties cannot be decoded: {strange.why}")
        try:
            letter = read_letter(message, self.rules, consumed=self.source.dead_letter_queue)
            if letter.is_placed and letter.trouble.queue in self._own:
                raise InvalidMessageError(
                    "own_queue",
                    f"it died in {letter.trouble.queue!r}, which is the relay's own: retried it would go in a circle",
                )
            verdict = self.judge(letter)
            return letter, verdict, self._packed(letter, verdict)
        except InvalidMessageError:
            raise
        except Exception as error:  # nothing that a stranger sends may stop the consumer
            raise InvalidMessageError("unparsable", describe_error(error)) from error

    def judge(self, letter: DeadLetter) -> LetterVerdict:
        """What is to become of it: what nobody knows the queue of cannot be retried, whatever the rules say."""
        if not letter.is_placed:
            return LetterVerdict(LetterClass.UNKNOWN, NOT_PLACED)
        return self.rules.classify(letter.trouble)

    def _packed(self, letter: DeadLetter, verdict: LetterVerdict) -> Message:
        """The letter as the relay takes it."""
        body = RetryMessage(
            message_id=letter.message_id,
            original_payload=letter.body,
            original_queue=letter.trouble.queue,
            error_reason=letter.error_reason,
            retry_count=letter.retry_count,
        ).SerializeToString()
        if len(body) > self.settings.relay_max_message_bytes:
            limit = f"RELAY_MAX_MESSAGE_BYTES={self.settings.relay_max_message_bytes:,}"
            raise InvalidMessageError("too_large", f"{len(letter.body):,} bytes are more than fit into {limit}")
        headers = letter.headers | {
            amqp.LETTER_CLASS: verdict.letter_class.value,
            amqp.LETTER_RULE: verdict.rule,
            amqp.PROPERTIES: letter.properties,
        }
        if letter.content_type:
            headers[amqp.CONTENT_TYPE] = letter.content_type
        if not amqp.fit(headers):
            limit = f"{amqp.HEADERS_BYTES_MAX:,} bytes"
            raise InvalidMessageError("bad_headers", f"the headers cannot be sent on, or take more than {limit}")
        known = letter.message_id if len(letter.message_id.encode()) <= amqp.SHORT_BYTES_MAX else None
        return Message(
            body, headers=headers, content_type=PROTOBUF, message_id=known, delivery_mode=DeliveryMode.PERSISTENT
        )

    async def _send(self, message: Message) -> None:
        """Publish to the retry queue; when this returns the broker has it there."""
        try:
            await self._publisher.deliver(message, self.settings.retry_queue)
        except Exception as error:  # not the connection but the message: it would never go
            raise InvalidMessageError("cannot_be_sent", describe_error(error)) from error

    # --- what is told -----------------------------------------------------------------------------------------------

    def _handed_over(self, letter: DeadLetter, verdict: LetterVerdict) -> None:
        self.metrics.handed_over(verdict.letter_class.value, letter.trouble.queue if letter.is_placed else None)
        self._log.dead_letter(letter, verdict)

    def _quarantined(self, error: InvalidMessageError) -> None:
        self.metrics.invalid.labels(error.reason).inc()
        self._log.quarantined(error)

    def _confirm_lost(self, message: Message, queue: str) -> None:
        self.metrics.confirms_lost.inc()
        self._log.confirm_lost(message.message_id, queue)

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self, stopped: asyncio.Event) -> None:
        """Work until stopped, then finish what has arrived."""
        publishing = asyncio.create_task(self._publisher.run(), name="dead-letters-publisher")
        self.metrics.up.set(1)
        self._runs = True
        try:
            await consume_until(stopped, self._consumer, publishing)
        finally:
            self.metrics.up.set(0)
            self._runs = False
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether it runs and both connections to the broker have been made."""
        return self._runs and self._consumer.was_up and self._publisher.was_up

    @property
    def uptime(self) -> timedelta:
        """How long it has been there."""
        return timedelta(seconds=time.monotonic() - self._began)

    def checks(self) -> Mapping[str, bool]:
        """Whether the broker is there."""
        return {"rabbitmq": self._consumer.is_up and self._publisher.is_up}
