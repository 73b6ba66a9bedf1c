"""Histograms that can be added up: how many tries ended tasks took, how long it took them to be done, and how long handlers ran.

A minute keeps one number for each bucket, so that any span of time, any set of ledgers and any number of workers is a sum.
Percentiles are read from the buckets: exact to the bucket, interpolated inside it.
"""

from bisect import bisect_right
from collections.abc import Sequence

TOOK_SECONDS = (
    0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0,
    1_000.0, 3_000.0, 10_000.0, 30_000.0, 100_000.0, 300_000.0,
)  # fmt: skip
"""The bounds between the buckets from stored to done; what took longer than the last goes into one more."""
RAN_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0)
"""The same for how long a handler ran."""
TRIES_MAX = 5
"""Tasks that took more tries than this share one bucket."""

TOOK = tuple(f"took_{position:02}" for position in range(len(TOOK_SECONDS) + 1))
"""The columns of the first histogram."""
TRIES = (*(f"tries_{tries}" for tries in range(1, TRIES_MAX + 1)), "tries_more")
"""The columns of the second."""
RAN = tuple(f"ran_{position:02}" for position in range(len(RAN_SECONDS) + 1))
"""The columns of how long handlers ran."""


def took_bucket(seconds: float) -> str:
    """The column that counts what took so long."""
    return TOOK[bisect_right(TOOK_SECONDS, seconds)]


def tries_bucket(tries: int) -> str:
    """The column that counts tasks that ended at this try."""
    return TRIES[tries - 1] if 1 <= tries <= TRIES_MAX else TRIES[0 if tries < 1 else -1]


def percentile(amounts: Sequence[int], share: float, bounds: Sequence[float] = TOOK_SECONDS) -> float | None:
    """The seconds within which this share of the tasks was done, from the amounts in the buckets between these bounds.

    Interpolated evenly inside the bucket; in the last one, which has no upper bound, its lower bound. None without tasks.
    """
    total = sum(amounts)
    if total == 0:
        return None
    wanted, before = total * share, 0
    for position, amount in enumerate(amounts):
        if amount and before + amount >= wanted:
            low = bounds[position - 1] if position else 0.0
            if position == len(bounds):
                return low
            return low + (bounds[position] - low) * max(0.0, wanted - before) / amount
        before += amount
    return bounds[-1]
