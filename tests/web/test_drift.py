"""How late tasks are started, lately."""

import time

import pytest
from prometheus_client import CollectorRegistry, Histogram

from redrive.web import drift
from redrive.web.drift import Drift


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    at = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


@pytest.fixture
def histogram() -> Histogram:
    """As the metrics have it."""
    return Histogram("drift", "", ["ledger", "kind"], buckets=(0.1, 1, 10), registry=CollectorRegistry())


def test_percentiles_over_kinds_of_the_ledgers_asked_for(histogram: Histogram, now: list[float]):
    """Kinds are added up, other ledgers are not; without any try there is nothing to say."""
    measured = Drift(histogram)
    assert measured.of(["a"]) is None
    for kind in ("x", "y"):
        for _ in range(5):
            histogram.labels("a", kind).observe(0.05)
    histogram.labels("b", "x").observe(5)
    now[0] += 30
    assert measured.of(["a"]) == {"p50": pytest.approx(0.05), "p95": pytest.approx(0.095), "over_seconds": 30}
    assert measured.of(["a", "b"])["p95"] > 1
    assert measured.of(["c"]) is None


def test_only_the_last_minutes_count(histogram: Histogram, now: list[float]):
    """A bad night does not colour the morning."""
    measured = Drift(histogram)
    histogram.labels("a", "x").observe(9)
    for _ in range(20):
        now[0] += drift.SNAPSHOT_EVERY_SECONDS
        last = measured.of(["a"])
    assert last is None
    histogram.labels("a", "x").observe(0.05)
    found = measured.of(["a"])
    assert found["p95"] <= 0.1
    assert found["over_seconds"] <= drift.WINDOW_SECONDS + drift.SNAPSHOT_EVERY_SECONDS


def test_beyond_the_last_bound(histogram: Histogram, now: list[float]):
    """What is later than the metrics tell apart is at least that late."""
    histogram.labels("a", "x").observe(500)
    assert Drift(histogram).of(["a"])["p50"] == 10
