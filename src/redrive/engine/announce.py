"""Telling the observers. None of them may stop the work: what one raises is logged, and the others are told all the same."""

import logging
from collections.abc import Iterable, Sequence

from redrive.events import Event
from redrive.ports import Observer

_log = logging.getLogger("redrive")


def announce(observers: Iterable[Observer], events: Sequence[Event]) -> None:
    """Tell all observers a group of facts."""
    for observer in observers:
        try:
            observer.observe(events)
        except Exception:  # the facts are durable; a full disk under the logs must not undo the work
            _log.exception("%s failed as an observer", type(observer).__name__)
