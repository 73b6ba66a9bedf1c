"""The nap of a worker that has nothing to do: not beyond the next retry that the worker itself has written."""

import asyncio
import math
from datetime import timedelta

from redrive.ports import Waiter


class Nap:
    """Until a wake-up, for a span at most; a retry that was written meanwhile and is due sooner ends it then."""

    def __init__(self) -> None:
        self._ends = math.inf
        self._taken: asyncio.Timeout | None = None

    def begin(self) -> None:
        """A look is about to begin, which finds what is due by then."""
        self._ends = math.inf

    async def take(self, waiter: Waiter, span: timedelta) -> bool:
        """Wait so long at most; whether there was a wake-up."""
        ends = min(asyncio.get_running_loop().time() + span.total_seconds(), self._ends)
        try:
            async with asyncio.timeout_at(ends) as self._taken:
                return await waiter.wait(span)
        except TimeoutError:
            return False
        finally:
            self._taken = None

    def end_in(self, delay: timedelta) -> None:
        """Be awake then, now or at the next nap."""
        self._ends = min(self._ends, asyncio.get_running_loop().time() + delay.total_seconds())
        nap = self._taken
        if nap is not None and not nap.expired() and self._ends < (nap.when() or math.inf):
            nap.reschedule(self._ends)
