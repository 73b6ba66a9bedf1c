"""Properties that the driver cannot decode."""

import struct

import aio_pika
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from redrive.systems.relay.frames import survive_strangers, unreadable

DEEP = 1000


def nested(depth: int) -> bytes:
    """The properties of a message, as bytes: one header that holds an array in an array in an array."""
    inside = b""
    for _ in range(depth):
        inside = b"A" + struct.pack(">I", len(inside)) + inside
    table = b"\x04deep" + inside
    return struct.pack(">HI", 1 << 13, len(table)) + table


def test_properties_nested_too_deep_are_unreadable() -> None:
    """The decoder survives what its own recursion does not, and keeps the bytes."""
    survive_strangers()
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQ", 60, 0, 4) + nested(DEEP))
    strange = unreadable(header)
    assert strange is not None
    assert (header.body_size, strange.raw) == (4, nested(DEEP))
    assert strange.why


class Deep(aio_pika.Message):
    """A message that our driver could not write: a stranger's may have it all the same."""

    @property
    def properties(self) -> Basic.Properties:
        made = super().properties
        made.marshal = lambda: nested(DEEP)  # type: ignore[method-assign]
        return made
