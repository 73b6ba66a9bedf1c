"""Ids that sort by the time of their making: UUIDs of version 7, as text."""

import re
from datetime import datetime
from itertools import count

from redrive.sql import uuid7, uuid7s

_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_serials = count()

NOBODY = "00000000-0000-7000-8000-000000000000"
"""An id that nothing has: what a malformed one is looked up as, so that it costs the same as an unknown one."""


def new_id(now: datetime) -> str:
    """A new id; those that a process makes at one instant sort in the order of their making."""
    return str(uuid7(now, next(_serials)))


def new_ids(now: datetime, amount: int) -> list[str]:
    """So many of them."""
    return [str(made) for made in uuid7s(now, [next(_serials) for _ in range(amount)])]


def read_id(text: str) -> str:
    """The id itself, or one that nothing has where the text is none."""
    return text if _FORM.fullmatch(text) else NOBODY
