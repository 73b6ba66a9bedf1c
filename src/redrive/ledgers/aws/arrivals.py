"""Messages that have come and are not claimed yet, and the question to the queue that brings them.

There is at most one long question at a time. It outlives a nap that is cut short: a question that is taken back may have been answered,
and what it took would be hidden from everybody for a while. As long as it is out nobody asks a second one: what is there comes by it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

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

    async def take(self, limit: int) -> list[ReceivedMessage]:
        """Messages to look at now, up to `limit`."""
        self._wanted = limit
        self._collect()
        taken = self._arrived[:limit]
        del self._arrived[:limit]
        if taken or self._asking is not None:
            return taken
        return await self._receive(min(limit, BATCH_MAX), ZERO)

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for messages, at most `timeout`; whether there are any."""
        self._collect()
        if not self._arrived:
            if self._asking is None:
                # No more than was asked for last: what cannot be claimed at once would be hidden from others who could.
                self._asking = asyncio.ensure_future(self._receive(min(self._wanted, BATCH_MAX), WAIT_MAX))
            await asyncio.wait({self._asking}, timeout=timeout.total_seconds())
            self._collect()
        return bool(self._arrived)

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
        """Nothing to forget: a message stays until it is claimed."""
        return False

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for messages, at most `timeout`; whether there were any."""
        return await self._arrivals.wait(timeout)
