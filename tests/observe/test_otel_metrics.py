"""OpenTelemetry counts what Prometheus counts."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from redrive.core.outcome import Done, Failed
from redrive.errors import PermanentError
from redrive.events import AttemptEnded, SettleFailed, SettleLost, TaskAdded
from redrive.observe.otel_metrics import OtelMetricsObserver


def counted(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The value of each metric, or how many were recorded, with the labels that tell them apart."""
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[Any]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            labels = [str(value) for name, value in (point.attributes or {}).items() if name not in ("ledger", "kind")]
            found.setdefault(metric.name, []).append((getattr(point, "value", getattr(point, "count", None)), *labels))
    return found


def test_facts_become_metrics(make_settlement: Any) -> None:
    """Added once, ended by outcome, retried, dead by verdict, lost and failed settlements, and how long it took."""
    reader = InMemoryMetricReader()
    observer = OtelMetricsObserver(MeterProvider([reader]))
    done, failed, dead = (
        make_settlement(one) for one in (Done(), Failed(ValueError("no")), Failed(PermanentError("never")))
    )
    observer.observe([TaskAdded("mail", "mail", "a", 1, new) for new in (True, False)])
    observer.observe([AttemptEnded("mail", one) for one in (done, done, failed, dead)])
    observer.observe([SettleLost("mail", done), SettleFailed("mail", done, "away")])
    assert counted(reader) == {
        "redrive.tasks.added": [(1,)],
        "redrive.attempts": [(2, "done"), (2, "failed")],
        "redrive.retries.scheduled": [(1,)],
        "redrive.tasks.dead": [(1, "permanent")],
        "redrive.settle.lost": [(1,)],
        "redrive.settle.failed": [(1,)],
        "redrive.run.duration": [(4,)],
        "redrive.drift": [(4,)],
    }
