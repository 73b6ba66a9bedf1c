"""Queues that are missing: the longer they are, the rarer they are tried, and never less than once a minute."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace

from redrive import Redrive, TransientError, minutes, seconds
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.wire import Published
from redrive.systems.relay.work import QUEUES_MAX, MissingQueues, retry_message

HOUR_MS = 3_600_000


@pytest.fixture
def app(tmp_path: Path) -> Redrive:
    """An application whose database nobody asks."""
    return Redrive(f"sqlite:///{tmp_path / 'unused.db'}")


def due(queue: str = "gone", failures: int = 0) -> Any:
    """A message that is due."""
    row = {
        "original_queue": queue, "max_retries": 100, "error_reason": "", "headers": {}, "content_type": None,
        "original_payload": b"",
    }  # fmt: skip
    return SimpleNamespace(key="m-1", failures=failures, payload=row)


def test_a_retry_continues_the_trace_that_it_runs_in() -> None:
    """With tracing the header names the span that published it, without it is handed on as it came."""
    came = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    task = due()
    task.payload["headers"] = {"traceparent": came}
    assert retry_message(task, "relay").headers["traceparent"] == came
    ours = trace.SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(ours)):
        published = retry_message(task, "relay").headers["traceparent"]
    assert published == "00-0af7651916cd43dd8448eb211c80319c-00000000000000b7-01"


class Answers:
    """A broker that answers as the test says, with a clock that the test moves."""

    def __init__(self, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.missing = {"gone"}
        self._relay = relay
        relay._work._missing = MissingQueues(now=lambda: self.now)
        monkeypatch.setattr(relay._publisher, "publish", self._publish)

    async def _publish(self, _message: Any, queue: str) -> Published:
        return Published.UNROUTABLE if queue in self.missing else Published.CONFIRMED

    async def wait(self, task: Any) -> float:
        """How long a message waits that was tried now."""
        with pytest.raises(TransientError, match="unroutable") as caught:
            await self._relay._work.publish(task)
        assert caught.value.retry_after is not None
        return caught.value.retry_after.total_seconds()


async def test_tries_become_rarer_while_a_queue_is_missing(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is as long as the queue has been missing, from the backoff of the count up to a minute; a confirm ends it."""
    relay = Relay(app, RelaySettings(_env_file=None))
    broker = Answers(relay, monkeypatch)
    waits = []
    for _ in range(9):
        waits.append(await broker.wait(due()))
        broker.now += waits[-1]
    assert waits == pytest.approx([2, 2, 4, 8, 16, 32, 60, 60, 60], abs=1)
    broker.missing = {"other"}
    assert await broker.wait(due("other")) < 4, "another queue is not delayed by it"
    await relay._work.publish(due())
    broker.missing = {"gone"}
    assert await broker.wait(due()) < 4, "it was there: what is missing now has only begun"


@pytest.mark.parametrize(("most_ms", "longest"), [(HOUR_MS, minutes(1)), (5000, seconds(5))])
async def test_no_two_tries_are_more_than_a_minute_apart(
    app: Redrive, monkeypatch: pytest.MonkeyPatch, most_ms: int, longest: Any
) -> None:
    """Also where retries may wait longer, and less where they may not wait so long."""
    relay = Relay(app, RelaySettings(_env_file=None, max_delay_ms=most_ms))
    broker = Answers(relay, monkeypatch)
    assert await broker.wait(due(failures=50)) == longest.total_seconds()
    broker.now += 10_000
    assert await broker.wait(due()) == longest.total_seconds()


def test_only_so_many_queues_are_remembered() -> None:
    """However many queues strangers name; the oldest are forgotten."""
    now = 0.0
    queues = MissingQueues(now=lambda: now)
    for number in range(2 * QUEUES_MAX):
        queues.missed(f"q-{number}")
    now = 7.0
    assert len(queues._since) == QUEUES_MAX
    assert queues.missed(f"q-{2 * QUEUES_MAX - 1}") == seconds(7)
    assert queues.missed("q-0") == seconds(0)
