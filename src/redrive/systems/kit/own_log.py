"""The log of a system that tells more than the facts of its lane, such as what it refused before there was a task."""

import logging
from datetime import datetime
from typing import Any

from redrive.lane import Lane
from redrive.observe.logs import TIME_OF_LINE, LogObserver
from redrive.operator.json_views import instant_json

_log = logging.getLogger("redrive")


class OwnLog(LogObserver):
    """Is told the facts of a lane, and `say`s what else there is to tell."""

    def __init__(self, system: str) -> None:
        super().__init__(system=system)
        self._lane: Lane | None = None

    def follow(self, lane: Lane) -> None:
        """Be silent wherever the lane is: a library user may have no observer for log lines."""
        self._lane = lane

    def say_of(self, at: datetime, level: str, event: str, **fields: Any) -> None:
        """Write a line about a change: its time is that of the change."""
        self.say(level, event, **{TIME_OF_LINE: instant_json(at)}, **fields)

    def say(self, level: str, event: str, **fields: Any) -> None:
        """Write a line about what stands already: a full disk under the logs must not undo it."""
        if self._lane is not None and self not in self._lane.observers:
            return
        try:
            getattr(self._log, level)(event, **fields)
        except Exception:
            _log.exception("%s could not be logged", event)
