"""Ids for rows whose table makes none: UUIDs that begin with the time, so that their order is the order of adding.

New rows then go to the end of their index, and a page of tasks in the order of ids is a page in the order of time.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from redrive.ledgers.sql.times import EPOCH, MICROSECOND

_SERIALS = 1 << 16
_RANDOM_BITS = 46
_RANDOM_BYTES, _SPARE_BITS = 6, 2
"""As `secrets.randbits`, in half of its time."""


def uuid7(now: datetime, serial: int = 0) -> UUID:
    """A UUID of version 7 (RFC 9562): milliseconds, the part of the millisecond, a serial number, and random bits.

    `serial` keeps rows that are added at the same instant in their order.
    """
    return UUID(int=_begun(now) | (serial % _SERIALS) << _RANDOM_BITS | _random(os.urandom(_RANDOM_BYTES)))


def uuid7s(now: datetime, serials: Sequence[int]) -> list[UUID]:
    """One for each serial number.

    The system is asked for random bytes once: a thread gives the interpreter away for each such call, and has to wait for it again.
    """
    begun, drawn = _begun(now), os.urandom(_RANDOM_BYTES * len(serials))
    return [
        UUID(int=begun | (serial % _SERIALS) << _RANDOM_BITS | _random(drawn[at : at + _RANDOM_BYTES]))
        for serial, at in zip(serials, range(0, len(drawn), _RANDOM_BYTES), strict=True)
    ]


def _begun(now: datetime) -> int:
    """All of it but the serial number and the random bits."""
    milliseconds, microseconds = divmod((now - EPOCH) // MICROSECOND, 1000)
    part = microseconds * 4096 // 1000
    return (milliseconds & ((1 << 48) - 1)) << 80 | 7 << 76 | part << 64 | 2 << 62


def _random(drawn: bytes) -> int:
    return int.from_bytes(drawn) >> _SPARE_BITS
