"""Messages that have come and are not claimed yet, and the question to the queue that brings them.

There is at most one long question at a time. While a person has paused what is kept here, nobody asks. It outlives a nap that is cut short: a question that is taken back may have been answered,
and what it took would be hidden from everybody for a while. As long as it is out nobody asks a second one: what is there comes by it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from redrive.core.durations import ZERO
from redrive.ledgers.aws.queue import BATCH_MAX, WAIT_MAX, ReceivedMessage

Receive = Callable[[int, timedelta], Awaitable[list[ReceivedMessage]]]


class Arrivals:
    """What has come to this process."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._arrived: list[ReceivedMessage] = []
        self._asking: asyncio.Task[list[ReceivedMessage]] | None = None
        self._waiters = 0
        self._wanted = BATCH_MAX
        self._woken = asyncio.Event()
        self._rests = False

    async def take(self, limit: int) -> list[ReceivedMessage]:
        """Messages to look at now, up to `limit`."""
        self._wanted, self._rests = limit, False
        self._collect()
        taken = self._arrived[:limit]
        del self._arrived[:limit]
        if taken or self._asking is not None:
            return taken
        return await self._receive(min(limit, BATCH_MAX), ZERO)

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for messages, or for whoever wakes us, at most `timeout`; whether there was anything."""
        self._collect()
        if self._rests:
            await self._hear(timeout)
        elif not self._arrived and not self._woken.is_set():
            if self._asking is None:
                # No more than was asked for last: what cannot be claimed at once would be hidden from others who could.
                self._asking = asyncio.ensure_future(self._receive(min(self._wanted, BATCH_MAX), WAIT_MAX))
            await self._hear(timeout, self._asking)
            self._collect()
        return self._woken.is_set() or (bool(self._arrived) and not self._rests)

    async def _hear(self, timeout: timedelta, *asking: "asyncio.Future[Any]") -> None:
        """Wait for an answer or to be woken."""
        woken: asyncio.Future[Any] = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({woken, *asking}, timeout=timeout.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def wake(self) -> None:
        """There may be something to claim that no message tells of."""
        self._woken.set()

    def heard(self) -> bool:
        """Whether somebody has woken us since this was last asked."""
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    def rest(self) -> None:
        """Take no messages until somebody takes some: they would be hidden, and be counted as received, for nothing."""
        self._rests = True

    def _collect(self) -> None:
        """Take the answer to the long question, if it has come. Raises what became of it."""
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            if not asked.cancelled():
                self._arrived += asked.result()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """As long as somebody waits here. Then nobody asks any more; what an answer under way has taken is seen again."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters and self._asking is not None:
                self._asking.cancel()
                self._asking = None


class QueueWaiter:
    """Waits at the queue itself. What comes is kept for the next claim."""

    hears_due = True

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def clear(self) -> bool:
        """Whether somebody woke us. A message stays until it is claimed."""
        return self._arrivals.heard()

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for messages, at most `timeout`; whether there were any."""
        return await self._arrivals.wait(timeout)
