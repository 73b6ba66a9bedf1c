"""Wrong keys, counted for a minute, by who sent them and by how they begin: somebody guesses, from one address or from many."""

import time
from collections import deque

from redrive.access.senders import sender_of

FAILURES_MAX = 20
SPAN_SECONDS = 60
NOTED_MAX = 10_000
PREFIX_CHARS = 12
"""How much of a key stands for it: enough to tell keys apart, too little to be one."""


class WrongKeys:
    """What this process has seen; the oldest is forgotten where there is too much."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}

    def note(self, caller: str, secret: str) -> bool:
        """Note a wrong key; whether there were too many of this caller or of this beginning."""
        now = time.monotonic()
        both = [self._note(f"from {sender_of(caller)}", now), self._note(f"key {secret[:PREFIX_CHARS]}", now)]
        return any(both)

    def _note(self, what: str, now: float) -> bool:
        failures = self._failures.pop(what, None) or deque(maxlen=FAILURES_MAX + 1)
        if len(self._failures) >= NOTED_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[what] = failures  # put last: what is noted again is forgotten last
        failures.append(now)
        while now - failures[0] > SPAN_SECONDS:
            failures.popleft()
        return len(failures) > FAILURES_MAX
