"""Metrics of OpenTelemetry, beside the spans: the counts of `observe.metrics` for those who collect by OTLP and not by scraping.

app = Redrive(url, observers=[OtelMetricsObserver()])
"""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

from redrive.core.states import State
from redrive.errors import needs_extra
from redrive.events import AttemptEnded, Event, SettleFailed, SettleLost, TaskAdded
from redrive.observe.metrics import KINDS_MAX, FewLabels

with needs_extra("redrive.observe.otel_metrics", "traces"):
    from opentelemetry import metrics


class OtelMetricsObserver:
    """Counts what happens with the meter provider that the application has set up; another one may be given."""

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter("redrive", meter_provider=provider)
        self._counters = {
            "added": meter.create_counter("redrive.tasks.added", "{task}", "Tasks stored"),
            "ended": meter.create_counter("redrive.attempts", "{attempt}", "Attempts ended, by outcome"),
            "retries": meter.create_counter("redrive.retries.scheduled", "{attempt}", "Retries planned"),
            "dead": meter.create_counter("redrive.tasks.dead", "{task}", "Tasks that will not be tried again"),
            "lost": meter.create_counter("redrive.settle.lost", "{attempt}", "Settlements refused by the fence"),
            "failed": meter.create_counter(
                "redrive.settle.failed", "{attempt}", "Settlements that could not be written"
            ),
        }
        self._run = meter.create_histogram("redrive.run.duration", "s", "How long handlers ran")
        self._drift = meter.create_histogram("redrive.drift", "s", "From due to started")
        self._kind = FewLabels(KINDS_MAX)

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`. One group costs a few additions however many facts it holds."""
        tally: Tally[tuple[str, tuple[tuple[str, str], ...]]] = Tally()

        def count(name: str, **labels: str) -> None:
            tally[name, tuple(labels.items())] += 1

        for event in events:
            match event:
                case TaskAdded(ledger, kind, _, _, new) if new:
                    count("added", ledger=ledger, kind=self._kind(kind, ledger))
                case AttemptEnded(ledger, settlement):
                    labels: dict[str, Any] = {"ledger": ledger, "kind": self._kind(settlement.claim.task.kind, ledger)}
                    count("ended", **labels, outcome=settlement.outcome)
                    if settlement.explanation is not None:
                        if settlement.state is State.WAITING:
                            count("retries", **labels)
                        else:
                            count("dead", **labels, verdict=settlement.explanation.verdict)
                    claim = settlement.claim
                    if claim.abandoned is None:  # otherwise it ended with its worker, nobody knows when
                        self._run.record(settlement.elapsed.total_seconds(), labels)
                        if claim.task.due_at is not None:
                            self._drift.record(max(0.0, (claim.claimed_at - claim.task.due_at).total_seconds()), labels)
                case SettleLost(ledger):
                    count("lost", ledger=ledger)
                case SettleFailed(ledger):
                    count("failed", ledger=ledger)
                case _:
                    pass
        for (name, pairs), amount in tally.items():
            self._counters[name].add(amount, dict(pairs))
