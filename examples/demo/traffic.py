"""What all sample traffic shares: its pace, its chance, the outage that comes and heals, and what a part of it must bring.

`DEMO_SPEED` makes time run faster here: with 4, beats, waits and outages are a quarter as long.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from pydantic import Field
from sqlalchemy import Connection

from redrive import Exponential, Policy, jitter
from redrive.operator.words import describe_error
from redrive.settings import Section, load

OUTAGE_EVERY_SECONDS, OUTAGE_AFTER_SECONDS, OUTAGE_SECONDS = 120.0, 15.0, 25.0


class DemoSettings(Section):
    """How fast the demo is."""

    demo_speed: float = Field(default=1, ge=0.1, le=20, description="How much faster than usual the demo's time runs")


SPEED = load(DemoSettings).demo_speed
chance = random.Random()
_started = time.monotonic()
_log: Any = structlog.get_logger(system="demo")


def span(seconds: float) -> timedelta:
    """So many seconds of the demo's time."""
    return timedelta(seconds=seconds / SPEED)


PATIENTLY = Policy(Exponential(span(1), span(8)), retries=6, jitter=jitter.percent(20), name="patiently")
BRIEFLY = Policy(Exponential(span(1), span(4)), retries=3, jitter=jitter.percent(20), name="briefly")


def is_out(running_seconds: float | None = None) -> bool:
    """Whether the customer register is out, now or after so many seconds of the demo's time."""
    if running_seconds is None:
        running_seconds = (time.monotonic() - _started) * SPEED
    return 0 <= running_seconds % OUTAGE_EVERY_SECONDS - OUTAGE_AFTER_SECONDS < OUTAGE_SECONDS


async def work(least_seconds: float, most_seconds: float) -> None:
    """Take some time, as destinations do."""
    await asyncio.sleep(span(chance.uniform(least_seconds, most_seconds)).total_seconds())


class Traffic:
    """Sample traffic for one table or system. Everything but `beat` may be left as it is."""

    every_seconds = 1.0
    """How long a beat is, in the demo's time."""
    url: str | None = None
    """Where the service listens, if that is known. Only then can anything be posted to it."""
    _problem: str | None = None

    def prepare(self, connection: Connection) -> None:
        """Make what it needs in the database besides what the migrations make. Done at every start."""

    async def begin(self) -> None:
        """Set up what it needs while it runs."""

    async def beat(self, number: int) -> None:
        """Send some; the beats are numbered from one."""
        raise NotImplementedError

    async def end(self) -> None:
        """Let go of it."""

    async def sweep(self, before: datetime) -> None:
        """Forget what ended before this instant and is not forgotten with its tasks."""

    async def run(self, stopped: asyncio.Event) -> None:
        """Send until told to stop, whatever happens: a store that is away, or a visitor who deletes what we use."""
        try:
            if not await self._insist(self.begin, stopped):
                return
            for number in itertools.count(1):
                await self._survive(partial(self.beat, number))
                if await told(stopped, self.every_seconds):
                    return
        finally:
            await self._survive(self.end)

    async def _insist(self, call: Callable[[], Awaitable[None]], stopped: asyncio.Event) -> bool:
        while not await self._survive(call):
            if await told(stopped, self.every_seconds):
                return False
        return True

    async def _survive(self, call: Callable[[], Awaitable[None]]) -> bool:
        try:
            await call()
        except Exception as error:  # the service must not stop because its traffic has
            problem = describe_error(error)
            if problem != self._problem:  # told once for as long as it lasts
                _log.critical("demo_traffic_failed", traffic=type(self).__name__, error=problem)
            self._problem = problem
            return False
        self._problem = None
        return True


async def told(stopped: asyncio.Event, within_seconds: float) -> bool:
    """Whether to stop: told so now, or within so many seconds of the demo's time."""
    try:
        async with asyncio.timeout(span(within_seconds).total_seconds()):
            await stopped.wait()
    except TimeoutError:
        return False
    return True
