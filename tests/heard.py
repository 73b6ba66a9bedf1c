"""An observer that keeps every fact, to be waited for."""

import asyncio

from redrive.events import AttemptEnded

PATIENCE_SECONDS = 60


class Heard:
    """An observer that keeps every fact."""

    def __init__(self):
        self.events = []
        self.changed = asyncio.Event()

    def observe(self, events):
        self.events += events
        self.changed.set()

    async def ended(self, amount):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len([event for event in self.events if isinstance(event, AttemptEnded)]) < amount:
                self.changed.clear()
                await self.changed.wait()
