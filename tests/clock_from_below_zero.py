"""Importing this starts the monotonic clock a day below zero, for the whole run.

What that clock counts from is undefined; on Linux it is the start of the machine. Code that takes its zero for "long ago"
works on a machine that has been up for days and fails on a fresh one. Here zero lies in the future for every test, so such
code fails on every machine. `REDRIVE_TEST_CLOCK_STARTS_AT` is another second to start at, such as 0 for a machine that has
just been started. asyncio's clock is this one; processes that a test starts have the machine's own.
"""

import os
import time

STARTS_AT_NS = int(float(os.environ.get("REDRIVE_TEST_CLOCK_STARTS_AT") or -86_400) * 10**9)

_real_ns = time.monotonic_ns
_began_ns = _real_ns()


def monotonic_ns() -> int:
    """Nanoseconds of a clock that starts where the run wants it."""
    return STARTS_AT_NS + _real_ns() - _began_ns


def monotonic() -> float:
    """The same in seconds."""
    return monotonic_ns() / 10**9


time.monotonic_ns, time.monotonic = monotonic_ns, monotonic
