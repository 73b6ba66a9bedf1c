"""AMQP headers in a JSON column: what a broker may send that JSON does not know keeps its type on the way through.

Such a value becomes an object with one key that begins with `$`, such as `{"$bytes": "AP8="}`.
"""

import math
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from pamqp.encode import field_table

HEADERS_BYTES_MAX = 65_536
"""All headers of a message must fit into one frame of 128 KiB together with ours."""

TEXT_CHARS_MAX = 500
"""How much of an error travels in a header."""

SINGLE_MAX = 3.4028234663852886e38
"""The driver sends floats in single precision; a larger one goes on as text."""

COUNT = "x-retry-count"
MESSAGE_ID = "x-message-id"
ERROR = "x-original-error"
SCHEDULER = "x-retry-scheduler"
EXCEEDED = "x-max-retries-exceeded"
QUEUE = "x-original-queue"
CONTENT_TYPE = "x-original-content-type"
RESUBMITTED_BY = "x-resubmitted-by"
RESUBMITTED_AT = "x-resubmitted-at"
INVALID_REASON = "x-invalid-reason"
INVALID_DETAIL = "x-invalid-detail"
INVALID_PROPERTIES = "x-invalid-properties"
LETTER_CLASS = "x-dead-letter-class"
LETTER_RULE = "x-dead-letter-rule"
PROPERTIES = "x-original-properties"
NOTES = frozenset({LETTER_CLASS, LETTER_RULE, PROPERTIES})
"""What an upstream says about a message: it is kept with the message while it waits, and does not go out with its retries."""
TRACE = "traceparent"
"""W3C Trace Context: the trace that a message belongs to."""
PROPERTY_NAMES = (
    "app_id", "content_encoding", "correlation_id", "message_id", "priority", "reply_to", "timestamp", "type",
)  # fmt: skip
"""The AMQP properties that an upstream may give back. Not `expiration`, of which it may have died, nor `user_id`, which the broker
compares with who publishes."""
SHORT_BYTES_MAX = 255
"""AMQP's own limit for properties such as the message id."""
REPLY_CHANNEL = "amq.rabbitmq.reply-to"
"""The broker closes the channel of whoever publishes with this address without waiting for answers there."""

_ROUTING = frozenset({"CC", "BCC"})
"""The broker would route copies by them: a copy that arrives elsewhere would hide that the queue is missing."""
_OURS = frozenset(
    {
        COUNT,
        MESSAGE_ID,
        ERROR,
        SCHEDULER,
        EXCEEDED,
        QUEUE,
        CONTENT_TYPE,
        RESUBMITTED_BY,
        RESUBMITTED_AT,
        INVALID_REASON,
        INVALID_DETAIL,
        INVALID_PROPERTIES,
    }
)
_OF_ONE_ROUND = frozenset({LETTER_CLASS, LETTER_RULE, RESUBMITTED_BY, RESUBMITTED_AT})
"""What is said of one failure, or of one resubmission: it is not carried on to the next round."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_DROPPED = _OURS | _ROUTING | {"x-death"}


def fit(headers: Mapping[str, Any], *, bytes_max: int = HEADERS_BYTES_MAX) -> bool:
    """Whether the headers can be sent, and take no more than so many bytes on the wire."""
    try:
        return len(field_table(dict(headers))) <= bytes_max
    except (TypeError, ValueError, OverflowError, struct.error, RecursionError):
        return False


def kept(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that go on with the message: not the broker's record of deaths, none of ours."""
    return {name: value for name, value in headers.items() if name not in _DROPPED}


def carried(stored: Mapping[str, Any], arrived: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a message that came back, as JSON: what the upstream sent, and of the last round what it did not send again."""
    rest = {name: value for name, value in stored.items() if name not in arrived and name not in _OF_ONE_ROUND}
    whole = rest | dict(arrived)
    if rest and not fit({name: from_json(value) for name, value in whole.items()}):
        return dict(arrived)  # both together are more than a message can carry
    return whole


def trace_of(headers: Mapping[str, Any]) -> str | None:
    """The trace that a message belongs to, if its headers say so."""
    given = headers.get(TRACE)
    return given if isinstance(given, str) and _TRACEPARENT.fullmatch(given) else None


def properties(given: Any) -> dict[str, Any]:
    """The properties in this table that can be sent, whatever a stranger has put there."""
    if not isinstance(given, Mapping):
        return {}
    return {name: given[name] for name in PROPERTY_NAMES if name in given and _is_property(name, given[name])}


def properties_of(given: Any) -> dict[str, Any]:
    """The same of a message that has come, by the names that `Message` has for them."""
    return properties(
        {name: getattr(given, "message_type" if name == "type" else name, None) for name in PROPERTY_NAMES}
    )


def _is_property(name: str, value: Any) -> bool:
    match name:
        case "priority":
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255
        case "timestamp":
            return isinstance(value, datetime) and value.tzinfo is not None and value.timestamp() >= 0
        case _:
            usable = isinstance(value, str) and value != "" and value != REPLY_CHANNEL
            return usable and len(value.encode(errors="replace")) <= SHORT_BYTES_MAX and fit({name: value})


def without_routing(headers: Mapping[str, Any]) -> dict[str, Any]:
    """All headers but those by which the broker would route copies."""
    return {name: value for name, value in headers.items() if name not in _ROUTING}


def shortened(text: str) -> str:
    """As much of a text as travels in a header."""
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"


def sendable(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The same headers in the types that the driver can send."""
    return {str(name): from_json(to_json(value)) for name, value in headers.items()}


def to_json(value: Any) -> Any:
    """A header's value as JSON."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                return {"$float": repr(value)}
            return value if abs(value) <= SINGLE_MAX else repr(value)
        case bytes() | bytearray() | memoryview():
            return {"$bytes": b64encode(value).decode()}
        case datetime():
            return {"$time": value.isoformat()}
        case Decimal():
            return {"$decimal": str(value)}
        case list() | tuple():
            return [to_json(one) for one in value]
        case Mapping():
            table = {str(name): to_json(one) for name, one in value.items()}
            return {"$table": table} if any(name.startswith("$") for name in table) else table
        case _:
            return str(value)


def from_json(value: Any) -> Any:
    """The header's value again."""
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$float": str(text)}:
            return float(text)
        case {"$bytes": str(text)}:
            return bytearray(b64decode(text))  # the driver sends no other bytes
        case {"$time": str(text)}:
            return datetime.fromisoformat(text)
        case {"$decimal": str(text)}:
            return Decimal(text)
        case {"$table": dict(table)}:
            return {name: from_json(one) for name, one in table.items()}
        case _:
            return {name: from_json(one) for name, one in value.items()}
