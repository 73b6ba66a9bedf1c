"""The messages that leave the relay: a retry to its own queue, a spent one to the reviewers, bad input to quarantine."""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aio_pika import DeliveryMode, Message

from redrive import Task
from redrive.systems.relay import headers as amqp

ERROR_CHARS_MAX = 500
"""How much of an error travels in a header."""
QUARANTINE_HEADERS_BYTES_MAX = 120_000
"""Headers that arrived in one frame of 128 KiB leave in one too, with our reason beside them."""


def is_spent(task: Task) -> bool:
    """Whether it goes to people now. What they have resubmitted goes out once at least, also where no retry is allowed."""
    most: int = task.payload["max_retries"]
    return task.failures >= (max(most, 1) if amqp.RESUBMITTED_BY in task.payload["headers"] else most)


def retry_message(task: Task, service: str) -> Message:
    """The original message for its own queue: the payload byte for byte, its headers, and ours."""
    row = task.payload
    ours = {
        amqp.COUNT: task.failures + 1,
        amqp.MESSAGE_ID: task.key,
        amqp.ERROR: _short(row["error_reason"]),
        amqp.SCHEDULER: service,
    }
    theirs = {name: amqp.from_json(value) for name, value in row["headers"].items()}
    return Message(
        row["original_payload"],
        headers={name: value for name, value in theirs.items() if name not in amqp.NOTES} | ours,
        content_type=row["content_type"],
        delivery_mode=DeliveryMode.PERSISTENT,
        **amqp.properties(theirs.get(amqp.PROPERTIES)),
    )


def review_message(task: Task) -> Message:
    """What people get to see of a message whose retries are spent."""
    row = task.payload
    body = {
        "message_id": task.key,
        "original_queue": row["original_queue"],
        "original_payload": b64encode(row["original_payload"]).decode(),
        "error_reason": row["error_reason"],
        "retry_count": task.failures,
        "max_retries": row["max_retries"],
        "failed_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    said = {
        name: _short(str(row["headers"][name]))
        for name in (amqp.LETTER_CLASS, amqp.LETTER_RULE)
        if name in row["headers"]
    }
    return Message(
        json.dumps(body, ensure_ascii=False).encode(),
        headers={amqp.EXCEEDED: True, amqp.QUEUE: row["original_queue"]} | said,
        content_type="application/json",
        message_id=task.key if len(task.key.encode()) <= amqp.SHORT_BYTES_MAX else None,
        delivery_mode=DeliveryMode.PERSISTENT,
    )


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
    ours: dict[str, Any] = {amqp.INVALID_REASON: reason, amqp.INVALID_DETAIL: _short(detail)}
    if raw_properties is not None:
        ours[amqp.INVALID_PROPERTIES] = bytearray(raw_properties[:QUARANTINE_HEADERS_BYTES_MAX])
    theirs = amqp.sendable(amqp.without_routing(headers))
    if not amqp.fit(theirs, bytes_max=QUARANTINE_HEADERS_BYTES_MAX):
        theirs = {}
    return Message(
        body,
        headers=theirs | ours,
        content_type=content_type,
        delivery_mode=DeliveryMode.PERSISTENT,
        **(properties or {}),
    )


def _short(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"
