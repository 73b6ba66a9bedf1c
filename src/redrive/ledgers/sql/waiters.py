"""Who waits for which ledger in this process, and how to wake them.

A waiter is registered for as long as its worker lives: a wake-up that comes while the worker is still looking for work
is kept for its next wait, so none is ever missed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta


class WakeUps:
    """One worker's place to wait for new work."""

    hears_due = False

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def set(self) -> None:
        """There may be new work."""
        self._woken.set()

    def clear(self) -> bool:
        """Forget the wake-ups so far: call it before looking for work. Whether there were any."""
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    async def wait(self, timeout: timedelta) -> bool:
        """Wait for a wake-up, at most `timeout`; whether there was one."""
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


class Waiters:
    """All waiters of a process, by ledger."""

    def __init__(self) -> None:
        self._of: dict[str, set[WakeUps]] = defaultdict(set)

    @contextmanager
    def registered(self, ledger: str, waiter: WakeUps) -> Iterator[WakeUps]:
        """The waiter, woken with its ledger until the block ends."""
        self._of[ledger].add(waiter)
        try:
            yield waiter
        finally:
            self._of[ledger].discard(waiter)

    def wake(self, ledger: str) -> None:
        """Wake all who wait for the ledger."""
        for waiter in self._of[ledger]:
            waiter.set()

    def wake_all(self) -> None:
        """Wake everybody: something may have been missed."""
        for ledger in list(self._of):
            self.wake(ledger)
