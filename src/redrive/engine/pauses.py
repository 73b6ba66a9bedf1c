"""Which kinds a person has paused, as one worker knows it.

It asks before a claim if it has not asked for half a second: so a pause holds in every process within a second, though nobody told of
it, and costs a claim nothing. While something is paused, a wake-up makes it ask at once, so that a resume is seen as soon as it is told;
and whoever looks behind gates only now and then is told of it.
"""

import math
import time
from collections.abc import Callable, Sequence

from redrive.core.pauses import without_paused
from redrive.ports import Ledger

FRESH_SECONDS = 0.5


class Pauses:
    """The pauses of kinds of one ledger."""

    def __init__(
        self, ledger: Ledger, *, resumed: Callable[[], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._resumed = resumed
        self._clock = clock
        self._asked_at = -math.inf
        self._names: Sequence[str] = ()

    @property
    def fresh(self) -> bool:
        """Whether what is known may be gone by."""
        return self._clock() - self._asked_at < FRESH_SECONDS

    @property
    def any(self) -> bool:
        """Whether something was paused when somebody last asked."""
        return bool(self._names)

    async def look(self) -> None:
        """Ask the ledger."""
        asked_at = self._clock()
        before, self._names = self._names, await self._ledger.paused_kinds()
        self._asked_at = asked_at
        if self._resumed is not None and not set(before) <= set(self._names):
            self._resumed()

    def woken(self) -> None:
        """Something has happened in the ledger: it may be that a pause is over."""
        if self._names:
            self._asked_at = -math.inf

    def without(self, kinds: list[str]) -> list[str]:
        """Those of the kinds that nobody has paused."""
        return without_paused(kinds, self._names) if self._names else kinds
