"""The driver's decoder, made to survive strangers.

A broker hands on properties that it never looks at: a timestamp beyond the year 9999, text that is not UTF-8, a thousand arrays one
inside the other. The driver cannot decode them and gives up the whole connection, the broker delivers the message again, and one such
message would stop the relay for good. Here it arrives as what it is: a body whose properties cannot be read, to be quarantined like
any other bad input.
"""

from typing import Any

from pamqp.commands import Basic
from pamqp.header import ContentHeader

_decode = ContentHeader.unmarshal


def _decode_or_keep(self: Any, data: bytes) -> None:
    try:
        _decode(self, data)
    except Exception as error:  # whatever the driver trips over, a stack that is too deep among it
        if len(data) < 12:
            raise  # not even the size of the body is known: the connection really is of no use
        self.properties = Basic.Properties()
        self.unreadable = Unreadable(str(error) or type(error).__name__, bytes(data[12:]))


class Unreadable:
    """Properties that could not be decoded: why, and their bytes."""

    def __init__(self, why: str, raw: bytes) -> None:
        self.why = why
        self.raw = raw


def survive_strangers() -> None:
    """Let the driver hand on messages whose properties it cannot decode. It changes only what would end the connection."""
    ContentHeader.unmarshal = _decode_or_keep  # type: ignore[method-assign]


def unreadable(header: Any) -> Unreadable | None:
    """What could not be read of a message's properties, if anything."""
    found = getattr(header, "unreadable", None)
    return found if isinstance(found, Unreadable) else None
