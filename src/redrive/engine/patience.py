"""Waiting out a ledger that is away: jittered backoff, one announcement when it goes and one when it is back."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from redrive.core.failure import describe_error
from redrive.errors import LedgerAwayError
from redrive.events import Event, LedgerAway, LedgerBack

R = TypeVar("R")

FIRST_SECONDS = 0.05
CAP_SECONDS = 2.0
"""After an outage of any length the first answer is not waited for longer than this."""


class Patience:
    """Shared by all that talk to one ledger, so that an outage is announced once.

    Many ask at the same time, and their answers come in any order. What was asked before the last change says nothing
    about the time since: an answer that was under way when the others failed does not mean that the ledger is back.
    """

    def __init__(self, ledger: str, tell: Callable[[list[Event]], None]) -> None:
        self._ledger = ledger
        self._tell = tell
        self._away = False
        self._changed_at = time.monotonic()

    async def until_answered(self, call: Callable[[], Awaitable[R]]) -> R:
        """The answer of the call, however long the ledger is away. Any other error is raised."""
        tries = 0
        while True:
            asked_at = time.monotonic()
            try:
                answer = await call()
            except LedgerAwayError as error:
                self.away(error, asked_at=asked_at)
                tries += 1
                await self.pause(tries)
            else:
                self.back(asked_at=asked_at)
                return answer

    def away(self, error: Exception, *, asked_at: float) -> None:
        """Note that the ledger did not answer what it was asked at this monotonic time."""
        if not self._away and asked_at >= self._changed_at:
            self._away, self._changed_at = True, time.monotonic()
            self._tell([LedgerAway(self._ledger, describe_error(error))])

    def back(self, *, asked_at: float) -> None:
        """Note that the ledger answered what it was asked at this monotonic time."""
        if self._away and asked_at >= self._changed_at:
            after = timedelta(seconds=time.monotonic() - self._changed_at)
            self._away, self._changed_at = False, time.monotonic()
            self._tell([LedgerBack(self._ledger, after)])

    @staticmethod
    async def pause(tries: int) -> None:
        """Wait before the next try: longer each time, never in step with others."""
        ceiling = min(CAP_SECONDS, FIRST_SECONDS * 2 ** min(tries, 10))
        await asyncio.sleep(random.uniform(ceiling / 2, ceiling))
