"""The questions to the log that the docs have: each finds what it asks for in lines that were really written."""

import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from redrive.observe.logs import configure_logs
from redrive.systems.triggers.logs import DeliveryLog
from redrive.systems.triggers.values import Change, DeliveryFailed, StatusChanged

from .insights import asked_fields, rows_of, run

PAGE = Path(__file__).parents[4] / "docs" / "systems" / "triggers-aws.md"
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
DELAYS = (60, 300, 900)


def queries() -> dict[str, str]:
    """The questions of the page, by the sentence above each."""
    found = re.findall(r"^([^\n]+):\n\n```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {title: query for title, query in found if query.startswith(("fields", "filter"))}


def life(id: str, user: str, failures: int) -> list[Change]:
    """An event whose first deliveries fail, the fourth for good."""
    at, seconds = NOW, 0
    changes: list[Change] = [StatusChanged(id, user, "c", None, "received", 0, None, None, NOW, NOW)]
    changes.append(StatusChanged(id, user, "c", "received", "queued", 0, None, None, NOW, NOW))
    for number in range(1, failures + 1):
        at = NOW + timedelta(seconds=seconds)
        seconds += DELAYS[number - 1] if number < 4 else 0
        again = NOW + timedelta(seconds=seconds) if number < 4 else None
        changes.append(
            DeliveryFailed(id, user, "c", min(number, 3), f"answered {user}", again, at, timedelta(seconds=0.25))
        )
    end = "failed" if failures == 4 else "delivered"
    at = NOW + timedelta(seconds=seconds)
    changes.append(
        StatusChanged(id, user, "c", "queued", end, min(failures, 3), "boom", at if failures == 4 else None, NOW, at)
    )
    return changes


@pytest.fixture(scope="module")
def rows() -> Iterator[list[dict[str, Any]]]:
    """What the log has of three lives, as Insights sees it."""
    before, written = structlog.get_config(), io.StringIO()
    configure_logs(service="triggers")
    structlog.configure(
        **structlog.get_config()
        | {"logger_factory": structlog.PrintLoggerFactory(written), "cache_logger_on_first_use": False}
    )
    try:
        for id_, user, failures in (("one", "ada", 0), ("two", "bob", 2), ("three", "bob", 4)):
            DeliveryLog().tell(life(id_, user, failures))
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    yield rows_of(written.getvalue().splitlines(), ingested_at="2030-01-01T12:03:00+00:00")


def asked(title: str, rows: list[dict[str, Any]], **put: str) -> list[dict[str, Any]]:
    query = queries()[title]
    for name, value in put.items():
        query = query.replace(name, value)
    return run(query, rows)


def test_every_question_finds_something(rows: list[dict[str, Any]]) -> None:
    """No question of the page is left out here, and each names fields that lines which it finds really have."""
    assert len(queries()) == 7
    for title, query in queries().items():
        whole = query.replace("EVENT", "three")
        assert run(whole, rows), title
        [condition] = re.findall(r"filter ([^\n]+)", whole)
        found = run(f"filter {condition}", rows)
        had = {name for row in found for name in row}
        assert asked_fields(query) <= had, title


def test_retries_are_found_by_their_words(rows: list[dict[str, Any]]) -> None:
    """`retry scheduled` in the text of a line finds every retry with its plan, and nothing else."""
    found = asked("Retries that were scheduled, latest first", rows)
    assert sorted((row["shown"]["event_id"], row["shown"]["delay_seconds"]) for row in found) == [
        ("three", 60.0), ("three", 300.0), ("three", 900.0), ("two", 60.0), ("two", 300.0),
    ]  # fmt: skip
    assert all(None not in row["shown"].values() for row in found)


def test_statuses_are_counted(rows: list[dict[str, Any]]) -> None:
    """`status_transition` has one line for each change."""
    found = asked("How many events came to each status", rows)
    assert {row["new_status"]: row["events"] for row in found} == {
        "received": 3, "queued": 3, "delivered": 2, "failed": 1,
    }  # fmt: skip


def test_a_life_is_in_its_order(rows: list[dict[str, Any]]) -> None:
    """By the time of the changes themselves, whenever CloudWatch got the lines."""
    told = [row["shown"]["event"] for row in asked("The life of one event", rows, EVENT="two")]
    assert told == [
        "status_transition", "status_transition", "delivery_failure", "retry_scheduled", "delivery_failure",
        "retry_scheduled", "status_transition",
    ]  # fmt: skip


def test_failures_are_found_with_their_fields(rows: list[dict[str, Any]]) -> None:
    """Each failed delivery; by error, and of those that failed for good by user."""
    found = asked("Failed deliveries, latest first", rows)
    assert len(found) == 6
    assert sum(row["shown"]["next_retry_at"] is None for row in found) == 1, "the last one has no other try"
    [causes] = asked("What deliveries fail of, the most frequent first", rows)
    assert causes == {"error": "answered bob", "failures": 6}
    assert asked("Events that failed for good, by user", rows) == [{"user_id": "bob", "events": 1}]


def test_latency_in_bins(rows: list[dict[str, Any]]) -> None:
    """From the end of a try until its retry was stored."""
    [found] = asked("How long it takes until a retry is stored, in five minutes each", rows)
    assert (found["retries"], found["mean"], found["longest"]) == (5, 0.25, 0.25)
