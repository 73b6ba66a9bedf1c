"""When a worker looks behind gates: a claim there is a statement of its own, sent only when something says that it may find work.

That is after a wake-up (an add, a settlement of a task that has a gate, a change of limits), after a claim behind gates that gave
something, at the instant at which the ledger said that a gate is to be looked at, and once a second.
"""

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from redrive.core.task import Claim
from redrive.ports import Ledger

EVERY_SECONDS = 1.0
LIVELY_SECONDS = 0.05
DISCOVER_SHARE = 50
DISCOVER_FREE_SECONDS = 0.02
"""A scan that takes no longer, as with a thousand gates, may be made whenever somebody asks."""
LOOK_AGAIN = timedelta(milliseconds=2)
"""How soon a worker looks again whose claims behind gates gave something: a gate is served by one claim at a time."""


class Discovery:
    """Looks for gates that nobody told of. That takes as long as there are gates with tasks: at most a fiftieth of the time goes into it."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._at = -math.inf

    async def look(self) -> int:
        """How many gates were found; none if the last look was too long and too short ago."""
        begun = self._clock()
        if begun < self._at:
            return 0
        found = await self._ledger.discover()
        ended = self._clock()
        if ended - begun > DISCOVER_FREE_SECONDS:
            self._at = ended + (ended - begun) * DISCOVER_SHARE
        return found


class GateLooks:
    """The looks of one worker."""

    def __init__(self, *, has_gates: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._has_gates = has_gates
        self._clock = clock
        self._at = -math.inf
        self._gave_at = -math.inf
        self._asked = False
        self._limit = 0

    def take(self, limit: int) -> bool:
        """Whether the claim of up to so many that is sent now is to look behind gates."""
        self._limit = limit
        self._asked = self._has_gates and self._clock() >= self._at
        return self._asked

    def answered(self, claims: Sequence[Claim]) -> None:
        """What that claim gave. One that was filled by what has no gate says nothing of gates."""
        if not self._asked:
            return
        if any(claim.task.gate is not None for claim in claims):
            self._gave_at = self._clock()
        elif len(claims) < self._limit:
            self._at = self._clock() + EVERY_SECONDS

    def soon(self) -> None:
        """Something may have come: look with the next claim."""
        self._at = -math.inf

    def told(self, span: timedelta) -> None:
        """Something is due so long from now, perhaps behind a gate."""
        self._at = min(self._at, self._clock() + span.total_seconds())

    @property
    def lively(self) -> bool:
        """Whether claims behind gates gave something just now."""
        return self._clock() - self._gave_at < LIVELY_SECONDS
