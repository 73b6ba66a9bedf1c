"""Ids for rows whose table makes none: UUIDs that begin with the time, so that their order is the order of adding.

New rows then go to the end of their index, and a page of tasks in the order of ids is a page in the order of time.
"""

import os
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
    milliseconds, microseconds = divmod((now - EPOCH) // MICROSECOND, 1000)
    part = microseconds * 4096 // 1000
    random = (serial % _SERIALS) << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BYTES)) >> _SPARE_BITS
    return UUID(int=(milliseconds & ((1 << 48) - 1)) << 80 | 7 << 76 | part << 64 | 2 << 62 | random)
