"""When a worker looks behind gates: a claim there is a statement of its own, sent only when something says that it may find work.

That is after a wake-up (an add, a settlement of a task that has a gate, a change of limits), after a claim behind gates that gave
something, after a kind was resumed, at the instant at which the ledger said that a gate is to be looked at, and twice a second: so a
change that nobody told of holds within a second, too. Where there is no gate at all it is never sent: then all that gates cost is one look
a second whether there are some now (`Ledger.uses_gates`).
"""

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from redrive.core.gate_order import mostly_gated
from redrive.core.task import Claim
from redrive.ports import Ledger

EVERY_SECONDS = 0.5
LIVELY_SECONDS = 0.05
DISCOVER_SHARE = 50
DISCOVER_SECONDS_MAX = 60.0
"""How long nobody looks at most, though one look took long: a database may be slow once."""
DISCOVER_FREE_SECONDS = 0.02
"""A scan that takes no longer, as with a thousand gates, may be made whenever somebody asks."""
WOKEN_EVERY_SECONDS = 0.02
"""How often wake-ups alone have a worker look behind gates that gave nothing just now: most are for what has none."""
LOOK_AGAIN = timedelta(milliseconds=2)
"""How soon a worker looks again whose claims behind gates gave something: a gate is served by one claim at a time."""


class Discovery:
    """Looks for gates that nobody told of. That takes as long as there are gates with tasks: at most a fiftieth of the time goes into it."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._at = -math.inf

    async def look(self) -> int:
        """How many gates were found. If the last look was too long and too short ago, among those alone that fell asleep just now."""
        begun = self._clock()
        if begun < self._at:
            return await self._ledger.discover(lately=True)
        found = await self._ledger.discover()
        ended = self._clock()
        if ended - begun > DISCOVER_FREE_SECONDS:
            self._at = ended + min((ended - begun) * DISCOVER_SHARE, DISCOVER_SECONDS_MAX)
        return found


class GateLooks:
    """The looks of one worker."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self.in_use = False
        """Whether there are gates."""
        self._at = -math.inf
        self._looked_at = -math.inf
        self._gave_at = -math.inf
        self._asked = False
        self._limit = 0
        self._ungated_first = False

    async def prepare(self) -> None:
        """Find out whether there are gates, as far as that costs nothing to speak of. Call it before a claim."""
        if not self.in_use:
            self.in_use = await self._ledger.uses_gates()

    def take(self, limit: int) -> bool:
        """Whether the claim of up to so many that is sent now is to look behind gates."""
        self._limit = limit
        self._asked = self.in_use and self._clock() >= self._at
        return self._asked

    def skip(self) -> None:
        """The claim that is sent now is for something else."""
        self._asked = False

    def answered(self, claims: Sequence[Claim]) -> bool:
        """What that claim gave; whether some of it has a gate.

        After one that was mostly gated what has no gate went first, and may have left no room to look.
        """
        if not self._asked:
            return False
        self._looked_at = self._clock()
        gave = any(claim.task.gate is not None for claim in claims)
        if gave:
            self._gave_at = self._looked_at
        elif not self._ungated_first:
            self._at = self._looked_at + EVERY_SECONDS
        self._ungated_first = gave and mostly_gated((claim.task.gate for claim in claims), self._limit)
        return gave

    def again(self) -> None:
        """That claim was for one half of the kinds, and says nothing of the other: look with the next one, too."""
        if self._asked:
            self._at = -math.inf

    def soon(self) -> None:
        """Something may have come: look with the next claim, or where looks gave nothing just now with one soon after."""
        self._at = -math.inf if self.lively else min(self._at, self._looked_at + WOKEN_EVERY_SECONDS)

    def told(self, span: timedelta) -> None:
        """Something is due so long from now, perhaps behind a gate."""
        self._at = min(self._at, self._clock() + span.total_seconds())

    @property
    def lively(self) -> bool:
        """Whether claims behind gates gave something just now."""
        return self._clock() - self._gave_at < LIVELY_SECONDS
