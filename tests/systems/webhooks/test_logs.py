"""What is said and counted of webhooks."""

import asyncio
import re
from typing import Any

import pytest
import structlog

from redrive import PermanentError, Task, TransientError
from redrive.observe.logs import LogObserver

from .conftest import Make, at_work, has_status, until, webhook


async def test_a_library_user_hears_nothing(make: Make, capfd: pytest.CaptureFixture[str]):
    """Without an observer for logs there are none, also for what is refused."""
    _, webhooks = make(queue_maxsize=1)
    for number in range(4):
        await webhooks.accept("a", {}, idempotency_key=f"k{number}")
    await webhooks.accept("b", {}, idempotency_key="k0")
    said = capfd.readouterr()
    assert "webhook_" not in said.out + said.err


async def test_metrics_and_logs_by_their_names(make: Make, capfd: pytest.CaptureFixture[str]):
    """Every step is counted and said at the level that is promised, with the request's id; payloads are not logged."""
    logged: list[dict[str, Any]] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        logged.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, keep])
    try:
        app, webhooks = make(queue_maxsize=1, retry_base_delay=0.01)
        app.observers.append(LogObserver())
        gate = asyncio.Event()
        tries = iter([TransientError("not yet"), None])

        @webhooks.handler("flaky")
        async def flaky(task: Task) -> None:
            await gate.wait()
            if error := next(tries):
                raise error

        @webhooks.handler("poison")
        async def poison(task: Task) -> None:
            raise PermanentError("never")

        async with at_work(app) as client:
            first = await client.post("/webhooks", json=webhook("a", "flaky", card="4111-1111"))
            await client.post("/webhooks", json=webhook("a", "flaky"))
            await client.post("/webhooks", json=webhook("a", "other"))
            await client.post("/webhooks", content=b"{", headers={"Content-Type": "application/json"})
            await client.post("/webhooks", json=webhook("b", "poison"))
            await client.post("/webhooks", json=webhook("u1", "unknown"))
            await client.post("/webhooks", json=webhook("u2", "unknown"))
            gate.set()
            await until(lambda: has_status(client, "a", "completed"))
            await until(lambda: has_status(client, "b", "failed"))
            full = await client.post("/webhooks", json=webhook("c", "unknown"))
            assert full.status_code == 429
            metrics = (await client.get("/metrics")).text
    finally:
        structlog.reset_defaults()

    def measured(name: str) -> float:
        return float(re.search(rf"^{re.escape(name)} ([\d.e+-]+)$", metrics, re.MULTILINE)[1])

    assert measured('webhook_events_total{result="accepted"}') == 4
    assert measured('webhook_events_total{result="duplicate"}') == 2
    assert measured('webhook_events_total{result="rejected"}') == 2
    assert measured("webhook_queue_depth") == 2
    assert measured("webhook_processing_errors_total") == 2
    assert measured("webhook_processing_duration_seconds_count") == 3

    ours = [line for line in logged if line.get("system") == "webhooks"]
    said = {line["event"]: line for line in ours}
    for event, level in (
        ("webhook_accepted", "info"),
        ("webhook_duplicate", "info"),
        ("webhook_started", "info"),
        ("webhook_completed", "info"),
        ("webhook_retry_scheduled", "info"),
        ("webhook_queue_full", "warning"),
        ("webhook_key_reused", "warning"),
        ("webhook_dead", "error"),
    ):
        assert said[event]["level"] == level
        assert {"event_type", "idempotency_key"} <= set(said[event])
    accepted = [line for line in ours if line["event"] == "webhook_accepted"]
    assert len({line["request_id"] for line in accepted}) == 4
    assert accepted[0]["request_id"] == first.headers["X-Request-ID"]
    assert not [line for line in logged if line["event"] in ("task_added", "task_done", "task_dead")]
    assert "4111-1111" not in str(logged)
