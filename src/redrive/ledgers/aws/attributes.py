"""Values as DynamoDB writes them, and back. Pure.

Numbers are whole, or floats of a few digits; nothing here needs more than that. What is None is not written at all.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

Attribute = dict[str, Any]
"""One value with its type, as in `{"S": "text"}`."""
Item = dict[str, Attribute]
Key = tuple[str, str]
"""The partition key and the sort key of an item."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def encode(value: Any) -> Attribute:
    """A value with its type. What a map holds as None is left out."""
    match value:
        case str():
            return {"S": value}
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": repr(value)}
        case Mapping():
            return {"M": {name: encode(inner) for name, inner in value.items() if inner is not None}}
        case list() | tuple():
            return {"L": [encode(inner) for inner in value]}
        case _:
            raise TypeError(f"no attribute holds {value!r:.80}")


def decode(attribute: Attribute) -> Any:
    """The value of an attribute."""
    [(kind, value)] = attribute.items()
    match kind:
        case "S" | "BOOL":
            return value
        case "N":
            return float(value) if "." in value or "E" in value.upper() else int(value)
        case "M":
            return {name: decode(inner) for name, inner in value.items()}
        case "L":
            return [decode(inner) for inner in value]
        case _:
            raise TypeError(f"an attribute of type {kind} is not ours")


def to_item(values: Mapping[str, Any]) -> Item:
    """An item from values; None is left out."""
    return {name: encode(value) for name, value in values.items() if value is not None}


def from_item(item: Item) -> dict[str, Any]:
    """The values of an item."""
    return {name: decode(attribute) for name, attribute in item.items()}


def to_micros(instant: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (instant - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant, exactly."""
    return EPOCH + micros * MICROSECOND


def to_iso(instant: datetime) -> str:
    """An instant as people see it: sorted as text it is sorted by time."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_iso(text: str) -> datetime:
    """The instant that was written so."""
    return datetime.fromisoformat(text)
