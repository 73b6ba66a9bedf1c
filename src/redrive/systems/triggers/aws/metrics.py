"""Metrics as lines of the log, in the form from which CloudWatch makes metrics (EMF): no call, and nothing to wait for.

They count the same changes as the metrics of Prometheus (`logs.measures`). Each line has one dimension, `service`; the dashboard and
the alarms of `deploy/aws/template.yaml` ask for these names and this dimension, which a test holds.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from redrive.systems.triggers.logs import measures
from redrive.systems.triggers.values import Change

FLUSH_EVERY_SECONDS = 10.0


class EmfMetric(NamedTuple):
    """A metric of CloudWatch."""

    name: str
    unit: str = "Count"


METRICS: Mapping[str, EmfMetric] = {
    "created": EmfMetric("EventsCreated"),
    "delivered": EmfMetric("EventsDelivered"),
    "failed": EmfMetric("EventsFailed"),
    "received": EmfMetric("EventsReceived"),
    "queued": EmfMetric("EventsQueued"),
    "time_to_delivery": EmfMetric("TimeToDelivery", "Seconds"),
    "retry_attempts": EmfMetric("RetryAttempts"),
    "queries": EmfMetric("EventStatusQueries"),
}
"""Ours by the names that they have elsewhere. `received` and `queued` are how many there are, all others what has happened."""


ENDS = {"delivered": "failed", "failed": "delivered"}
"""Where there is one of them there is a point of the other: a share of two metrics is unknown while one of them has no point."""


class EmfMetrics:
    """Gathers what happened, and writes it to standard output when told to, or when a line is full."""

    def __init__(self, *, namespace: str, service: str) -> None:
        self._emf = AmazonCloudWatchEMFProvider(namespace=namespace, service=service)

    def count(self, changes: Iterable[Change]) -> None:
        """Count what has changed."""
        for name, amount in measures(changes):
            self._add(name, amount)
            if name in ENDS:
                self._add(ENDS[name], 0)

    def count_query(self) -> None:
        """Somebody has looked at the status of an event."""
        self._add("queries", 1)

    def tell_totals(self, totals: Mapping[str, int]) -> None:
        """How many events there are in each status, of which those that are open are told."""
        for name in ("received", "queued"):
            self._add(name, totals.get(name, 0))

    def flush(self) -> None:
        """Write what was gathered."""
        if self._emf.metric_set:
            self._emf.flush_metrics()

    async def run(self, stopped: asyncio.Event) -> None:
        """Write what was gathered from time to time, until told to stop: for processes; a function flushes when it ends."""
        while not stopped.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), FLUSH_EVERY_SECONDS)
            self.flush()

    def _add(self, name: str, amount: float) -> None:
        metric = METRICS[name]
        self._emf.add_metric(name=metric.name, unit=metric.unit, value=amount)
