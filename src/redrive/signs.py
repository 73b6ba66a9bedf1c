"""Signs of life: a process that works says now and then that it is there, which build it runs, what it holds, and what it has counted."""

import asyncio
import math
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from redrive.engine.worker import Worker
from redrive.ledgers.build import build
from redrive.operator.roster import SIGN_EVERY, WorkerSign
from redrive.stores.port import Store

COUNTS_EVERY = timedelta(seconds=2)
"""How often what is counted of kinds is written, where there is anything new."""
SECONDS_COUNTED = 60.0
SECONDS_TO_PART = 5.0
"""How long a process that stops tries to say so: a store that is away must not keep it."""


class LastMinute:
    """By how much a count that only grows has grown within the last minute."""

    def __init__(self) -> None:
        self._counts = deque([(-math.inf, 0)])

    def grown(self, count: int, at: float) -> int:
        """The count is this now, at so many seconds."""
        self._counts.append((at, count))
        while len(self._counts) > 1 and self._counts[1][0] <= at - SECONDS_COUNTED:
            self._counts.popleft()
        return count - self._counts[0][1]


class Signs:
    """The signs of some workers of one process, which share a name."""

    def __init__(self, store: Store, name: str, workers: Callable[[], Iterable[Worker]]) -> None:
        self._store = store
        self._name = name
        self._workers = workers
        self._started_at: datetime | None = None
        self._tries = LastMinute()

    async def give(self) -> None:
        """Give signs until cancelled. What goes wrong here is told by whoever works on the same store."""
        while True:
            with suppress(Exception):
                await self._give(stops=False)
            # Never in step with other processes.
            await asyncio.sleep(SIGN_EVERY.total_seconds() * random.uniform(0.8, 1.0))

    async def count(self) -> None:
        """Write down what is counted of each kind, until cancelled: what a killed process takes with it is not older than this."""
        while True:
            await asyncio.sleep(COUNTS_EVERY.total_seconds() * random.uniform(0.8, 1.0))
            with suppress(Exception):  # kept, and written with the next
                await write_counts(self._store, self._name, self._workers())

    async def part(self) -> None:
        """The last one, and what is counted by now."""
        with suppress(Exception):
            async with asyncio.timeout(SECONDS_TO_PART):
                await write_counts(self._store, self._name, self._workers())
        if self._started_at is not None:
            with suppress(Exception):
                async with asyncio.timeout(SECONDS_TO_PART):
                    await self._give(stops=True)

    async def _give(self, *, stops: bool) -> None:
        if self._started_at is None:
            self._started_at = await self._store.present()
        workers = list(self._workers())
        holds = {worker.ledger_name: kinds for worker in workers if (kinds := worker.holds())}
        held_since = min((since for worker in workers if (since := worker.held_since())), default=None)
        tries = self._tries.grown(sum(worker.tally.tries for worker in workers), time.monotonic())
        sign = WorkerSign(
            name=self._name, host=socket.gethostname(), pid=os.getpid(), started_at=self._started_at,
            version=build(), slots=sum(worker.slots for worker in workers), holds=holds, stops=stops,
            lease=max((worker.lease for worker in workers), default=None),
            tries_a_minute=tries, held_since=held_since,
        )  # fmt: skip
        await self._store.roster.sign(sign)


async def write_counts(store: Store, name: str, workers: Iterable[Worker]) -> None:
    """Write down what these workers have counted since they were last asked."""
    taken = [(worker.tally, worker.tally.take()) for worker in workers]
    written = False
    try:
        if counts := [one for _, one in taken if one]:
            await store.kinds.write(counts, worker=name, version=build())
        written = True
    finally:
        for tally, counts_ in taken:
            (tally.wrote if written else tally.not_written)(counts_)
