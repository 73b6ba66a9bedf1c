"""How long queues have been missing, so that messages for them are not tried in vain all the time.

A message for a queue that has been missing for a while waits as long again before its next try. So the tries of one message
become rarer while its queue stays away, and thousands of messages for one queue cost little. Kept in memory only: a relay that
starts anew begins anew.
"""

import time
from collections.abc import Callable
from datetime import timedelta

QUEUES_MAX = 1000
"""How many queues are remembered; of more the longest missing is forgotten, and its messages are tried more often again."""


class MissingQueues:
    """Since when each queue has been missing."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[str, float] = {}

    def missed(self, queue: str) -> timedelta:
        """It is missing: for how long now, as far as is known."""
        now = self._now()
        if queue not in self._since and len(self._since) >= QUEUES_MAX:
            del self._since[next(iter(self._since))]
        return timedelta(seconds=now - self._since.setdefault(queue, now))

    def found(self, queue: str) -> None:
        """It is there."""
        self._since.pop(queue, None)
