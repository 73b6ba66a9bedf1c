"""Metrics of CloudWatch: written as lines of the log, from the same changes as all others, and asked for by the template."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from redrive.systems.triggers.aws.metrics import METRICS, EmfMetrics
from redrive.systems.triggers.logs import TriggerMetrics
from redrive.systems.triggers.values import DeliveryFailed, StatusChanged

from .stack import parameters, resolved, resources
from .test_template import NAMES, dashboard

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OURS = parameters()["MetricsNamespace"]


def change(old: str | None, new: str, *, retries: int = 0, after: float = 0) -> StatusChanged:
    return StatusChanged("e", "ada", "c", old, new, retries, None, None, NOW, NOW + timedelta(seconds=after))


LIFE = [
    change(None, "received"),
    change("received", "queued"),
    DeliveryFailed("e", "ada", "c", 1, "boom", NOW, NOW, None),
    change("queued", "delivered", retries=1, after=60.5),
    change(None, "received"),
    change("queued", "failed", retries=3, after=1260),
]


def metrics() -> EmfMetrics:
    return EmfMetrics(namespace=OURS, service=parameters()["ServiceName"])


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_line_of_a_life(capsys: pytest.CaptureFixture[str]) -> None:
    """Each change adds to what it concerns, and one line has all of it, as CloudWatch reads it."""
    told = metrics()
    told.count(LIFE)
    told.count_query()
    told.tell_totals({"received": 7, "queued": 2, "failed": 9})
    told.flush()
    [line] = lines(capsys)
    values = {name: value for name, value in line.items() if name not in ("_aws", "service")}
    assert values == {
        "EventsCreated": [1.0, 1.0],
        "EventsDelivered": [1.0, 0.0],
        "EventsFailed": [0.0, 1.0],
        "TimeToDelivery": [60.5],
        "RetryAttempts": [1.0, 3.0],
        "EventStatusQueries": [1.0],
        "EventsReceived": [7.0],
        "EventsQueued": [2.0],
    }
    [about] = line["_aws"]["CloudWatchMetrics"]
    assert (about["Namespace"], about["Dimensions"], line["service"]) == ("Triggers", [["service"]], "triggers")
    assert {(one["Name"], one["Unit"]) for one in about["Metrics"]} == {
        (one.name, one.unit) for one in METRICS.values()
    }
    told.flush()
    assert lines(capsys) == [], "what was written is not written again"


def test_the_share_of_failures_is_known_when_nothing_is_delivered(capsys: pytest.CaptureFixture[str]) -> None:
    """The alarm divides by both: an hour in which all fails must not be an hour without figures."""
    told = metrics()
    told.count([change("queued", "failed", retries=3)])
    told.flush()
    [line] = lines(capsys)
    assert (line["EventsFailed"], line["EventsDelivered"]) == ([1.0], [0.0])


def test_a_full_line_is_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A line holds up to a hundred values; none is lost."""
    told = metrics()
    for _ in range(250):
        told.count([change(None, "received")])
    told.flush()
    assert [len(line["EventsCreated"]) for line in lines(capsys)] == [100, 100, 50]


async def test_a_process_writes_from_time_to_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And when it stops, what is left."""
    told, stopped = metrics(), asyncio.Event()
    running = asyncio.create_task(told.run(stopped))
    await asyncio.sleep(0)
    told.count_query()
    stopped.set()
    await running
    assert [line["EventStatusQueries"] for line in lines(capsys)] == [[1.0]]


def test_both_kinds_of_metrics_count_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """What Prometheus is told and what CloudWatch is told are the same sums."""
    registry = CollectorRegistry()
    TriggerMetrics(registry).count(LIFE)
    told = metrics()
    told.count(LIFE)
    told.flush()
    [line] = lines(capsys)
    for ours, series in (
        ("EventsCreated", "events_created_total"),
        ("EventsDelivered", "events_delivered_total"),
        ("EventsFailed", "events_failed_total"),
        ("TimeToDelivery", "time_to_delivery_seconds_sum"),
        ("RetryAttempts", "retry_attempts_sum"),
    ):
        assert sum(line[ours]) == registry.get_sample_value(series), ours


# --- what the template asks for -------------------------------------------------------------------------------------------


def asked_by_alarms() -> list[tuple[str, str, str, dict[str, str]]]:
    """Who asks, the namespace, the name and the dimensions."""
    known = parameters() | NAMES | {"EventsTable": "t"}
    asked = []
    for name, alarm in resources("AWS::CloudWatch::Alarm").items():
        made = resolved(alarm["Properties"], known)
        for one in [made, *(each["MetricStat"]["Metric"] for each in made.get("Metrics", ()) if "MetricStat" in each)]:
            if "MetricName" in one:
                dimensions = {each["Name"]: each["Value"] for each in one["Dimensions"]}
                asked.append((name, one["Namespace"], one["MetricName"], dimensions))
    return asked


def asked_by_the_dashboard() -> list[tuple[str, str, str, dict[str, str]]]:
    asked = []
    for widget in dashboard():
        for metric in widget["properties"]["metrics"]:
            if isinstance(metric[0], str):
                namespace, name, *rest = [one for one in metric if isinstance(one, str)]
                asked.append(
                    (widget["properties"]["title"], namespace, name, dict(zip(rest[::2], rest[1::2], strict=True)))
                )
    return asked


AWS_METRICS = {
    ("AWS/SQS", "ApproximateAgeOfOldestMessage"): {"QueueName"},
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible"): {"QueueName"},
    ("AWS/SQS", "ApproximateNumberOfMessagesDelayed"): {"QueueName"},
    ("AWS/SQS", "ApproximateNumberOfMessagesNotVisible"): {"QueueName"},
    ("AWS/DynamoDB", "ReadThrottleEvents"): {"TableName", "GlobalSecondaryIndexName"},
    ("AWS/DynamoDB", "WriteThrottleEvents"): {"TableName", "GlobalSecondaryIndexName"},
}
"""What the services themselves tell, with the dimensions that there are."""


def test_alarms_and_dashboard_ask_for_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Every metric is one that the code really writes, under this namespace and these dimensions, or one of AWS itself."""
    told = metrics()
    told.count(LIFE)
    told.count_query()
    told.tell_totals({})
    told.flush()
    [line] = lines(capsys)
    [about] = line["_aws"]["CloudWatchMetrics"]
    written = {(about["Namespace"], one["Name"]) for one in about["Metrics"]}
    dimensions = {name: line[name] for name in about["Dimensions"][0]}
    asked = asked_by_alarms() + asked_by_the_dashboard()
    for who, namespace, name, given in asked:
        if namespace.startswith("AWS/"):
            assert set(given) <= AWS_METRICS[namespace, name], who
        else:
            assert (namespace, name) in written, who
            assert given == dimensions, who
    shown = {name for _, namespace, name, _ in asked if namespace == OURS}
    assert shown == {one.name for one in METRICS.values()} - {"EventStatusQueries"}


def test_expressions_name_what_stands_beside_them() -> None:
    """Each name in the arithmetic of a widget or an alarm is the id of a metric there."""

    def check(where: str, expressions: list[str], ids: set[str]) -> None:
        for expression in expressions:
            names = set(re.findall(r"[a-z][a-z0-9_]*", re.sub(r"[A-Z]+\(", "(", expression)))
            assert names, where
            assert names <= ids, where

    for widget in dashboard():
        about = [one for metric in widget["properties"]["metrics"] for one in metric if isinstance(one, dict)]
        expressions = [one["expression"] for one in about if "expression" in one]
        check(
            widget["properties"]["title"],
            expressions,
            {one["id"] for one in about if "id" in one and "expression" not in one},
        )
    for name, alarm in resources("AWS::CloudWatch::Alarm").items():
        metrics_ = alarm["Properties"].get("Metrics", [])
        check(
            name,
            [one["Expression"] for one in metrics_ if "Expression" in one],
            {one["Id"] for one in metrics_ if "MetricStat" in one},
        )
