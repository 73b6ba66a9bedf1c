"""What is wrong now, kept in the store: so that it is told once when it starts and once when it ends, whoever looks.

Something that stops and starts again within a few minutes has not ended: a number that wavers about its limit is one alert.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

QUIET = timedelta(minutes=2)
"""An alert has ended when nothing was wrong for so long."""
ACTIVE_MAX = 500
"""Alerts kept at once: nobody can act on more, and what is wrong with everything has one cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that is wrong."""

    name: str
    rule: str
    text: str
    started_at: datetime
    told_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has not been told yet."""

    started: Sequence[Alert]
    ended: Sequence[Alert]
