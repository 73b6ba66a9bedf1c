"""Cursors of pages that are in the order of an `instant`: where a page ends, as text for whoever asks for the next."""

import math
from datetime import UTC, datetime

from sqlalchemy import Connection

CURSOR_CHARS_MAX = 100


def write_cursor(place: float | datetime, id: int) -> str:
    """The cursor of a page that ends with this row."""
    return f"{id}@{place.isoformat() if isinstance(place, datetime) else repr(place)}"


def read_cursor(cursor: str, connection: Connection) -> tuple[float | datetime, int] | None:
    """Where the page before ended, in the form in which this database orders; None for what no page gave."""
    id_, _, at = cursor[:CURSOR_CHARS_MAX].partition("@")
    try:
        if not id_.isascii() or not id_.isdecimal() or int(id_) >= 2**63:
            return None
        if connection.dialect.name == "sqlite":
            days = float(at)
            return (days, int(id_)) if math.isfinite(days) else None
        instant = datetime.fromisoformat(at)
        return None if instant.tzinfo is None else (instant.astimezone(UTC), int(id_))
    except (ValueError, OverflowError):
        return None
