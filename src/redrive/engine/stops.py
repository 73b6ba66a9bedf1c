"""Runs that people want to be cancelled.

They ask through the ledger, from whatever process. A worker that runs something looks there once a second, and when it is woken, but
not for each of many wake-ups: most are for new tasks. An async handler is cancelled at its next await, a thread is told through `context.cancelled`. Whoever ends first has the last
word: what a handler came to before it was cancelled stays.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from redrive.core.outcome import Cancelled, Released
from redrive.core.stop import Stop
from redrive.core.task import Claim, TaskId
from redrive.ports import Ledger

EVERY_SECONDS = 1.0
WOKEN_EVERY_SECONDS = 0.2
"""How often wake-ups alone have it look."""


class Stops:
    """What one worker knows of them."""

    def __init__(self) -> None:
        self._asked: dict[tuple[TaskId, UUID], Stop] = {}
        self._told: set[tuple[TaskId, UUID]] = set()
        self._look = asyncio.Event()

    def note(self, stop: Stop) -> bool:
        """Take a wish; whether it is new."""
        key = stop.task_id, stop.claim_id
        new = key not in self._asked
        self._asked[key] = stop
        return new

    def tell(self, claim: Claim) -> bool:
        """Whether the run of this claim is to end. Whoever was told so and ends has obeyed. Thread-safe."""
        key = claim.task.id, claim.claim_id
        if key not in self._asked:
            return False
        self._told.add(key)
        return True

    def obeyed(self, claim: Claim) -> bool:
        """Whether the handler of this claim was told, and so ended because of it."""
        return bool(self._told) and (claim.task.id, claim.claim_id) in self._told

    def outcome(self, claim: Claim) -> Cancelled | Released:
        """What a run that was cut off came to: cancelled by whoever asked, or released by the worker."""
        stop = self._asked.get((claim.task.id, claim.claim_id)) if self._asked else None
        return Released() if stop is None else stop.outcome()

    def forget(self, claim: Claim) -> None:
        """The run has ended."""
        if self._asked:
            key = claim.task.id, claim.claim_id
            self._asked.pop(key, None)
            self._told.discard(key)

    def soon(self) -> None:
        """Something has happened in the ledger: look soon."""
        self._look.set()

    async def watch(self, ledger: Ledger, runs: Callable[[], bool], found: Callable[[Stop], None]) -> None:
        """Look for ever while something runs, and tell what was found for the first time."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_SECONDS):
                    await self._look.wait()
            self._look.clear()
            if runs():
                with suppress(Exception):  # the store is away: what runs goes on, and the next look may work
                    for stop in await ledger.stops_asked():
                        found(stop)
                await asyncio.sleep(WOKEN_EVERY_SECONDS)
