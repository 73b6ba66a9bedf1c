"""Bad input goes to a queue of its own, as it came and with the reason beside it: never requeued, never lost."""

from collections.abc import Mapping
from typing import Any

from aio_pika import DeliveryMode, Message
from aiormq.abc import DeliveredMessage

from redrive.operator.words import safe_text
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.broker import Publisher, pause
from redrive.systems.relay.frames import unreadable
from redrive.systems.relay.message import InvalidMessageError

PAUSE_CAP_SECONDS = 2.0
WHOLE_TRIES_MAX = 2
"""So often bad input is tried with all that came with it. After that its body goes alone: something beside it cannot be sent."""
HEADERS_BYTES_MAX = 120_000
"""Headers that arrived in one frame of 128 KiB leave in one too, with our reason beside them."""


async def quarantine(message: DeliveredMessage, error: InvalidMessageError, publisher: Publisher, queue: str) -> None:
    """Publish bad input; when this returns the broker has it there."""
    given, detail = message.header.properties, safe_text(str(error))
    strange = unreadable(message.header)
    raw = None if strange is None else strange.raw
    headers, content_type, properties = given.headers or {}, given.content_type, amqp.properties_of(given)
    failed = 0
    while True:
        try:
            made = quarantined_message(
                message.body, headers, content_type,
                reason=error.reason, detail=detail, properties=properties, raw_properties=raw,
            )  # fmt: skip
            await publisher.deliver(made, queue)
        except Exception:  # it may pass; if not, something beside the body cannot be sent
            failed += 1
            if failed >= WHOLE_TRIES_MAX:
                headers, content_type, properties, raw = {}, None, {}, None
            await pause(failed, cap_seconds=PAUSE_CAP_SECONDS)
        else:
            return


def quarantined_message(
    body: bytes,
    headers: Mapping[str, Any],
    content_type: str | None,
    *,
    reason: str,
    detail: str,
    properties: Mapping[str, Any] | None = None,
    raw_properties: bytes | None = None,
) -> Message:
    """Bad input as it came, with the reason beside it; properties that nobody can read go along as bytes."""
    ours: dict[str, Any] = {amqp.INVALID_REASON: reason, amqp.INVALID_DETAIL: amqp.shortened(detail)}
    if raw_properties is not None:
        ours[amqp.INVALID_PROPERTIES] = bytearray(raw_properties[:HEADERS_BYTES_MAX])
    theirs = amqp.sendable(amqp.without_routing(headers))
    if not amqp.fit(theirs, bytes_max=HEADERS_BYTES_MAX):
        theirs = {}
    return Message(
        body,
        headers=theirs | ours,
        content_type=content_type,
        delivery_mode=DeliveryMode.PERSISTENT,
        **(properties or {}),
    )
