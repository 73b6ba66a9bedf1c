"""Metrics whose labels are bounded."""

from prometheus_client import CollectorRegistry

from redrive.systems.relay.logs import OTHER, QUEUES_MAX, RelayMetrics


def test_queues_beyond_the_limit_share_a_label() -> None:
    """However many queues strangers name, the number of labels is bounded."""
    metrics = RelayMetrics()
    metrics.register(CollectorRegistry())
    labels = {metrics._label(f"q-{n}") for n in range(QUEUES_MAX * 3)}
    assert len(labels) == QUEUES_MAX + 1
    assert OTHER in labels
    assert metrics._label("q-0") == "q-0"
