"""How late tasks are started after they were due, lately, in this service.

The workers of this process count it for the metrics, from the start on. What is asked for here is the last minutes: the
counts of a while ago are kept, and taken off those of now.
"""

import time
from collections import Counter, deque
from collections.abc import Collection
from typing import Any

from fastapi import Request
from prometheus_client import Histogram

WINDOW_SECONDS = 300.0
SNAPSHOT_EVERY_SECONDS = 60.0
SNAPSHOTS_MAX = 10
SHARES = {"p50": 0.5, "p95": 0.95}

Counts = Counter[tuple[str, float]]
"""How many tries of a ledger started within so many seconds."""


class Drift:
    """The histogram of a service, over the last minutes."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._snapshots: deque[tuple[float, Counts]] = deque([(time.monotonic(), Counter())], maxlen=SNAPSHOTS_MAX)

    def of(self, ledgers: Collection[str]) -> dict[str, Any] | None:
        """Percentiles in seconds over these ledgers and how far back they look; None where nothing was started."""
        now, counts = time.monotonic(), self._counts()
        # The latest that is old enough; while none is, the oldest there is.
        since, before = next(
            ((at, kept) for at, kept in reversed(self._snapshots) if now - at >= WINDOW_SECONDS), self._snapshots[0]
        )
        if now - self._snapshots[-1][0] >= SNAPSHOT_EVERY_SECONDS:
            self._snapshots.append((now, counts))
        within: Counter[float] = Counter()
        for (ledger, bound), amount in counts.items():
            if ledger in ledgers:
                within[bound] += amount - before[ledger, bound]
        total = max(within.values(), default=0)
        if not total:
            return None
        return {name: _percentile(within, total, share) for name, share in SHARES.items()} | {
            "over_seconds": round(now - since)
        }

    def _counts(self) -> Counts:
        counts: Counts = Counter()
        for metric in self._histogram.collect():
            for sample in metric.samples:
                if sample.name.endswith("_bucket"):
                    counts[sample.labels["ledger"], float(sample.labels["le"])] += int(sample.value)
        return counts


def drift_of(request: Request) -> Drift:
    """The drift of the service that the request is for."""
    drift: Drift = request.app.state.drift
    return drift


def _percentile(within: Counter[float], total: int, share: float) -> float:
    """Interpolated inside the bucket; in the last one, which has no end, its beginning."""
    low, before = 0.0, 0
    for bound, amount in sorted(within.items()):
        if amount >= total * share:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (total * share - before) / max(1, amount - before)
        low, before = bound, amount
    return low
