"""Handlers that blocked the event loop lately, in this service: for the people who look at it."""

import time
from collections.abc import Sequence
from datetime import timedelta

from redrive.core.durations import format_duration
from redrive.events import Event, LoopBlocked

SHOWN_SECONDS = 3600.0


class BlockedLoops:
    """An observer that keeps the latest of each ledger."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, LoopBlocked]] = {}

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`."""
        for event in events:
            if isinstance(event, LoopBlocked):
                self._latest[event.ledger] = (time.monotonic(), event)

    def said(self) -> list[str]:
        """One line for each ledger in whose handlers it happened in the last hour: `7.6s: pay`."""
        lately = [event for at, event in self._latest.values() if time.monotonic() - at < SHOWN_SECONDS]
        return [f"{format_duration(_rounded(event.span))}: {', '.join(event.kinds)}" for event in lately]


def _rounded(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds(), 1))
