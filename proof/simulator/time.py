"""Virtual time: a loop that never waits, and chance that comes from one seed."""

import asyncio
import os
import random
import secrets
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from heapq import heappop
from typing import Any
from unittest.mock import patch

from redrive.engine.gate_looks import Discovery, GateLooks
from redrive.engine.pauses import Pauses
from redrive.engine.reserve import Reserve

CLOCKED: tuple[Any, ...] = (Discovery, GateLooks, Pauses, Reserve)
"""They have kept the clock that they found when they were imported."""
RESOLUTION = 1e-9
"""Timers that lie so near together go off together."""
START = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which an hour takes no time. Nothing comes from outside: where others wait, the clock moves to the next timer."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        """As asyncio does it, without files, signals and slow callbacks: a third of a world's time is spent here."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heappop(scheduled)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            assert scheduled, "everybody waits, and nothing is to come"
            self.now = max(self.now, scheduled[0].when())
        until = self.now + RESOLUTION
        while scheduled and scheduled[0].when() < until:
            ready.append(heappop(scheduled))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001


class Clock:
    """What the ledger believes. It goes with the loop, and jumps."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time() + self.offset)


@contextmanager
def virtual(seed: int) -> Iterator[VirtualLoop]:
    """A loop, with all clocks and all chance of this process in its hand."""
    loop, bits, before = VirtualLoop(), random.Random(f"bits {seed}"), random.getstate()
    random.seed(seed)
    try:
        with (
            ExitStack() as clocks,
            patch.object(time, "monotonic", loop.time),
            patch.object(time, "monotonic_ns", lambda: int(loop.time() * 1e9)),
            patch.object(os, "urandom", bits.randbytes),
            patch.object(secrets, "token_hex", lambda amount: bits.randbytes(amount).hex()),
            patch.object(secrets, "randbits", bits.getrandbits),
        ):
            for one in CLOCKED:
                clocks.enter_context(patch.dict(one.__init__.__kwdefaults__, clock=loop.time))
            yield loop
    finally:
        random.setstate(before)
        loop.close()


def run(loop: VirtualLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run it, and end whatever it leaves behind."""
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda _loop, _context: None)  # processes that are gone leave tasks behind
    try:
        loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        while left:
            for one in left:
                one.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=60))
            left = asyncio.all_tasks(loop)
        asyncio.set_event_loop(None)
