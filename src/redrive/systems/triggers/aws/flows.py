"""What happened to events in each minute, for charts and alarms: added after the writes that made it happen.

In them the minute would be the one item that all writes fight for. As many changes as come together are one addition, and nobody waits
for it: a process that is killed in between loses points of a chart, and nothing else.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from redrive.errors import LedgerAwayError
from redrive.items import MINUTE_SHARDS, Dynamo, minute_action
from redrive.systems.triggers.changes import flows_of
from redrive.systems.triggers.ledger import EVENTS
from redrive.systems.triggers.values import Change, StatusChanged

WORKER = "events"


class EventFlows:
    """Adds what happened to the minutes of events."""

    def __init__(self, dynamo: Dynamo) -> None:
        self._dynamo = dynamo
        self._waiting: dict[datetime, Counter[str]] = {}
        self._writing: asyncio.Task[None] | None = None

    def add(self, changes: Sequence[Change]) -> None:
        """Add these soon."""
        for one in changes:
            flows = flows_of(one) if isinstance(one, StatusChanged) else ()
            if flows:
                self._waiting.setdefault(one.at.replace(second=0, microsecond=0), Counter()).update(flows)
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write())

    async def flushed(self) -> None:
        """Come back when all that was added is written."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            for minute, amounts in waiting.items():
                with suppress(LedgerAwayError):
                    shard = random.randrange(MINUTE_SHARDS)
                    await self._dynamo.write([minute_action(minute, shard, EVENTS, WORKER, amounts)])
