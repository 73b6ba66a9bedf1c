"""The clock of this suite: zero is not long ago."""

import asyncio
import time

from tests.clock_from_below_zero import STARTS_AT_NS

HOUR_SECONDS = 3600


async def test_every_clock_that_code_asks_starts_there():
    """Code and event loops see the run's own clock: a rate or a cache that takes 0 for "long ago" fails here, always."""
    starts_at = STARTS_AT_NS / 10**9
    for now in (time.monotonic(), time.monotonic_ns() / 10**9, asyncio.get_running_loop().time()):
        assert starts_at < now < starts_at + 12 * HOUR_SECONDS


async def test_it_still_goes_on_at_its_usual_pace():
    """A wait of a hundredth of a second takes at least that."""
    began = time.monotonic()
    await asyncio.sleep(0.01)
    assert time.monotonic() - began >= 0.009
