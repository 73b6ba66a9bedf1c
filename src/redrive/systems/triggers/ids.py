"""Ids that sort by the time of their making: UUIDs of version 7, as text."""

import re
import secrets
import threading
from datetime import datetime

from redrive.extend import EPOCH

_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_RANDOM_BITS = 74
_lock = threading.Lock()
_last = 0
"""The last id of this process, without its fixed bits: the next one is larger, also within one millisecond."""

NOBODY = "00000000-0000-7000-8000-000000000000"
"""An id that nothing has: what a malformed one is looked up as, so that it costs the same as an unknown one."""


def new_id(now: datetime) -> str:
    """A new id."""
    global _last
    milliseconds = max(0, int((now - EPOCH).total_seconds() * 1000)) & ((1 << 48) - 1)
    # The first random bit stays clear, so that counting on within a millisecond never runs over.
    drawn = (milliseconds << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    with _lock:
        if drawn >> _RANDOM_BITS == _last >> _RANDOM_BITS:
            drawn = _last + 1 + secrets.randbits(32)
        _last = drawn
    stamp, high, low = drawn >> _RANDOM_BITS, (drawn >> 62) & 0xFFF, drawn & ((1 << 62) - 1)
    digits = f"{(stamp << 80) | (7 << 76) | (high << 64) | (0b10 << 62) | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def read_id(text: str) -> str:
    """The id itself, or one that nothing has where the text is none."""
    return text if _FORM.fullmatch(text) else NOBODY
