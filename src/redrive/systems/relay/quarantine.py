"""Bad input goes to a queue of its own: never requeued, never lost."""

import asyncio

from aiormq.abc import DeliveredMessage

from redrive.extend import safe_text
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.broker import Published, Publisher
from redrive.systems.relay.frames import unreadable
from redrive.systems.relay.message import InvalidMessageError
from redrive.systems.relay.outbox import quarantined_message

PAUSE_CAP_SECONDS = 2.0
WHOLE_TRIES_MAX = 2
"""So often bad input is tried with all that came with it. After that its body goes alone: something beside it cannot be sent."""


async def quarantine(message: DeliveredMessage, error: InvalidMessageError, publisher: Publisher, queue: str) -> None:
    """Publish bad input with the reason beside it; when this returns the broker has it there."""
    given, detail = message.header.properties, safe_text(str(error))
    strange = unreadable(message.header)
    raw = None if strange is None else strange.raw
    headers, content_type, properties = given.headers or {}, given.content_type, amqp.properties_of(given)
    tries = 0
    failed = 0
    while True:
        try:
            made = quarantined_message(
                message.body, headers, content_type,
                reason=error.reason, detail=detail, properties=properties, raw_properties=raw,
            )  # fmt: skip
            answer = await publisher.publish(made, queue)
        except Exception:  # it may pass; if not, something beside the body cannot be sent
            failed += 1
            if failed >= WHOLE_TRIES_MAX:
                headers, content_type, properties, raw = {}, None, {}, None
        else:
            if answer is Published.CONFIRMED:
                return
            if answer is Published.UNROUTABLE:
                await publisher.declare_again(queue)
        tries += 1
        await asyncio.sleep(min(PAUSE_CAP_SECONDS, 0.05 * 2 ** min(tries, 10)))
