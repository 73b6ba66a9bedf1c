"""The contract: what arrives on the retry queue, read and checked: a message that fits the contract, or the reason why it does not.

Whatever a stranger sends, one of the two comes out; nothing that is read here can hurt what happens to other messages.
"""

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from aiormq.abc import DeliveredMessage
from google.protobuf.message import DecodeError

from redrive.operator.words import describe_error, safe_text
from redrive.systems.relay import headers as amqp_headers
from redrive.systems.relay.frames import unreadable
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.settings import QUEUE_BYTES_MAX, RelaySettings
from redrive.systems.relay.tables import MESSAGE_ID_CHARS_MAX
from redrive.systems.relay.values import Arrival

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_PROTOBUF_TYPES = frozenset(
    {"", PROTOBUF, "application/protobuf", "application/vnd.google.protobuf", "application/octet-stream"}
)
RETRIES_MAX = 100_000
COUNT_MAX = 900_000
"""Larger numbers are taken for these: the engine's own count of failures ends at a million, and no row may die of it."""
TRANSIENT = "transient"
"""The one class of dead letters that is retried."""
HINT_MAX = timedelta(days=366)
"""A hint further in the future is bad input: most often it is in microseconds."""
HINT_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
"""A hint before this is bad input too: most often it is in seconds."""


class InvalidMessageError(Exception):
    """Bad input. `reason` is one of a few words, for counting; the text says more."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_delivery(message: DeliveredMessage, settings: RelaySettings) -> Arrival:
    """The message that the broker delivered, or an `InvalidMessageError` whatever it holds."""
    properties = message.header.properties
    if (strange := unreadable(message.header)) is not None:
        raise InvalidMessageError("bad_properties", f"the properties cannot be decoded: {strange.why}")
    try:
        return read_message(
            message.body,
            content_type=properties.content_type,
            content_encoding=properties.content_encoding,
            headers=properties.headers or {},
            settings=settings,
        )
    except InvalidMessageError:
        raise
    except Exception as error:  # nothing that a stranger sends may stop the consumer
        raise InvalidMessageError("unparsable", describe_error(error)) from error


def read_message(
    body: bytes,
    *,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[str, Any],
    settings: RelaySettings,
) -> Arrival:
    """The message, or an `InvalidMessageError`."""
    if len(body) > settings.relay_max_message_bytes:
        raise InvalidMessageError(
            "too_large",
            f"{len(body):,} bytes are more than RELAY_MAX_MESSAGE_BYTES={settings.relay_max_message_bytes:,}",
        )
    if not amqp_headers.fit(amqp_headers.sendable(headers)):
        limit = f"{amqp_headers.HEADERS_BYTES_MAX:,} bytes"
        raise InvalidMessageError("bad_headers", f"the headers cannot be sent on, or take more than {limit}")
    if content_encoding not in (None, "", "identity"):
        raise InvalidMessageError("content_type", f"content encoding {content_encoding!r:.80} is not supported")
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind in _PROTOBUF_TYPES:
        read = _from_protobuf(body)
    elif kind == JSON:
        read = _from_json(body)
    else:
        raise InvalidMessageError("content_type", f"content type {content_type!r:.80} is neither {PROTOBUF} nor {JSON}")
    return _checked(read, headers, settings)


def _from_protobuf(body: bytes) -> RetryMessage:
    try:
        return RetryMessage.FromString(body)
    except DecodeError as error:
        raise InvalidMessageError("unparsable", f"not a redrive.relay.v1.RetryMessage: {error}") from error


def _from_json(body: bytes) -> RetryMessage:
    """The same names as in the protobuf contract, the payload in base64. What is null is absent, what is unknown is ignored."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError("unparsable", f"not JSON: {error}") from error
    if not isinstance(given, dict):
        raise InvalidMessageError("unparsable", f"expected a JSON object, not {type(given).__name__}")
    read = RetryMessage()
    for field in RetryMessage.DESCRIPTOR.fields:
        value = given.get(field.name)
        if value is None:
            continue
        try:
            setattr(read, field.name, _json_value(field.name, value))
        except (TypeError, ValueError, binascii.Error) as error:
            # The value itself is not told: it may be the payload.
            detail = f"{field.name} does not hold this {type(value).__name__}"
            raise InvalidMessageError("bad_field", detail) from error
    return read


def _json_value(name: str, value: Any) -> Any:
    if isinstance(value, bool | float):
        raise TypeError(name)
    if isinstance(value, str) and name == "original_payload":
        return b64decode(value, validate=True)
    if isinstance(value, str) and name == "next_retry_at_ms":
        return int(value)  # as JSON made by protobuf itself writes 64 bits
    return value


def _checked(read: RetryMessage, headers: Mapping[str, Any], settings: RelaySettings) -> Arrival:
    _check_text("message_id", read.message_id, chars_max=MESSAGE_ID_CHARS_MAX)
    _check_text("original_queue", read.original_queue, bytes_max=QUEUE_BYTES_MAX)
    for name in ("retry_count", "max_retries"):
        if getattr(read, name) < 0:
            raise InvalidMessageError("negative_count", f"{name} is {getattr(read, name)}")
    return Arrival(
        message_id=read.message_id,
        payload=read.original_payload,
        queue=read.original_queue,
        error_reason=safe_text(read.error_reason),
        retry_count=min(read.retry_count, COUNT_MAX),
        max_retries=_most_retries(read, headers, settings),
        not_before=_instant(read.next_retry_at_ms, datetime.now(UTC)),
        headers={str(name): amqp_headers.to_json(value) for name, value in amqp_headers.kept(headers).items()},
        content_type=_content_type(headers.get(amqp_headers.CONTENT_TYPE)),
    )


def _content_type(given: Any) -> str | None:
    """The content type of the retry; none where there is none that can be sent."""
    text = safe_text(given) if isinstance(given, str) else ""
    return text if 0 < len(text.encode()) <= amqp_headers.SHORT_BYTES_MAX else None


def _most_retries(read: RetryMessage, headers: Mapping[str, Any], settings: RelaySettings) -> int:
    """How often it may be retried: not at all if an upstream has found that this will not help."""
    if headers.get(amqp_headers.LETTER_CLASS, TRANSIENT) != TRANSIENT:
        return 0
    return min(read.max_retries or settings.default_max_retries, RETRIES_MAX)


def _check_text(name: str, text: str, *, chars_max: int | None = None, bytes_max: int | None = None) -> None:
    if not text:
        raise InvalidMessageError(f"no_{name}", f"{name} is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessageError("bad_field", f"{name} is not text: {error.reason}") from error
    if "\0" in text:
        raise InvalidMessageError("bad_field", f"{name} holds a NUL, which no database stores")
    if (chars_max is not None and len(text) > chars_max) or (bytes_max is not None and size > bytes_max):
        limit = f"{chars_max} characters" if chars_max is not None else f"{bytes_max} bytes"
        raise InvalidMessageError("bad_field", f"{name} is longer than {limit}")


def _instant(hint_ms: int, now: datetime) -> datetime | None:
    """The hint as an instant; none for 0. What lies in the past raises no due time; what is absurd is bad input."""
    if hint_ms == 0:
        return None
    try:
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=hint_ms)
    except OverflowError:
        instant = None
    if instant is None or not HINT_EARLIEST <= instant <= now + HINT_MAX:
        said = "beyond all calendars" if instant is None else f"{instant:%Y-%m-%d}"
        detail = f"next_retry_at_ms {hint_ms} is {said}: milliseconds since 1970 are meant, at most {HINT_MAX.days} days ahead"
        raise InvalidMessageError("bad_hint", detail)
    return instant
