"""The log: each change of status with its fields, in order, and never a payload, a key or a secret."""

import io
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from redrive import Redrive
from redrive.observe.logs import configure_logs
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.logs import InOrder
from redrive.systems.triggers.values import StatusChanged
from redrive.testing import VirtualClock, drain
from redrive.wiring import observe_with_logs

from .conftest import House, settings
from .receiver import Receiver, status

SECRET = "s3cret-payload-value"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Any:
    """What was logged as JSON, as the service writes it."""
    before = structlog.get_config()
    configure_logs(service="shop")
    written = io.StringIO()
    structlog.configure(
        **structlog.get_config()
        | {"logger_factory": structlog.PrintLoggerFactory(written), "cache_logger_on_first_use": False}
    )
    request.addfinalizer(structlog.contextvars.clear_contextvars)
    request.addfinalizer(lambda: structlog.configure(**before))

    def read() -> list[dict[str, Any]]:
        said = written.getvalue()
        assert SECRET not in said
        assert "whsec_" not in said
        assert "rdk_" not in said
        return [json.loads(line) for line in said.splitlines()]

    return read


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    frame = {"@timestamp", "service", "event", "message", "level", "system"}
    assert all(frame <= set(line) for line in lines if line["event"] == event)
    return [{k: v for k, v in line.items() if k not in frame} for line in lines if line["event"] == event]


async def test_the_story_of_a_failed_event(house: House, receiver: Receiver, lines: Any) -> None:
    """Every transition, failure, retry and the end, each with the fields of the contract and the correlation id."""
    observe_with_logs(house.app)
    receiver.answer = lambda _: status(500)
    await house.endpoint(receiver.url)
    async with house.client(await house.key()) as client:
        body = {"event_type": "a", "payload": {"password": SECRET}}
        made = await client.post("/v1/events", json=body, headers={"X-Request-ID": "corr-7"})
    id_ = made.json()["event_id"]
    for after in (0, 1, 5, 15):
        await house.run(after=timedelta(minutes=after))
    said = lines()
    who = {"event_id": id_, "user_id": "ada"}
    assert of(said, "status_transition") == [
        {**who, "old_status": None, "new_status": "received", "retry_attempts": 0, "correlation_id": "corr-7"},
        {**who, "old_status": "received", "new_status": "queued", "retry_attempts": 0, "correlation_id": "corr-7"},
        {**who, "old_status": "queued", "new_status": "failed", "retry_attempts": 3, "correlation_id": "corr-7"},
    ]
    failures = of(said, "delivery_failure")
    assert [line["retry_attempts"] for line in failures] == [1, 2, 3, 3]
    assert [line["next_retry_at"] and line["next_retry_at"][14:16] for line in failures] == ["01", "06", "21", None]
    assert all(line["error"] == "TransientError: the endpoint answered 500" for line in failures)
    assert [line["status"] for line in failures] == ["queued", "queued", "queued", "failed"]
    fields = {*who, "retry_attempts", "error", "next_retry_at", "status", "correlation_id"}
    assert all(set(line) == fields for line in failures)
    assert of(said, "retry_scheduled") == [
        {
            **who, "retry_attempts": number, "correlation_id": "corr-7", "next_retry_at": failures[number - 1]["next_retry_at"],
            "delay_seconds": seconds, "latency_seconds": 0.0,
        }
        for number, seconds in ((1, 60.0), (2, 300.0), (3, 900.0))
    ]  # fmt: skip
    assert [line["event"] for line in said if line["event"] not in ("retry_attempted", "request")][-3:] == [
        "delivery_failure", "status_transition", "event_failed",
    ]  # fmt: skip
    changed = [line["@timestamp"][11:19] for line in said if line["event"] == "status_transition"]
    assert changed == ["00:00:00", "00:00:00", "00:21:00"]
    assert of(said, "retry_attempted") == [
        {**who, "retry_attempts": attempts, "correlation_id": "corr-7"} for attempts in (1, 2, 3)
    ]
    [failed] = of(said, "event_failed")
    assert failed == {
        **who, "failed_at": "2030-01-01T00:21:00.000000Z", "last_error": "TransientError: the endpoint answered 500",
        "retry_attempts": 3, "correlation_id": "corr-7",
    }  # fmt: skip
    assert {line["service"] for line in said} == {"shop"}


def change(old: str | None, new: str, id_: str = "e") -> StatusChanged:
    return StatusChanged(id_, "ada", "c", old, new, 0, None, None, NOW, NOW)


def test_an_event_is_received_before_it_is_queued() -> None:
    """Whatever commit is heard of first: what happens to an event waits until its intake was told, or has failed."""
    said: list[Any] = []
    order = InOrder(said.extend)
    received, queued, other = change(None, "received"), change("received", "queued"), change("queued", "failed", "o")
    order.expect(["e", "lost"])
    order.tell([queued, other])
    assert said == [other]
    order.tell([received])
    order.heard(["e"])
    assert said == [other, received, queued]
    order.tell([change("received", "queued", "lost")])
    order.heard(["lost"])
    assert said[3:] == [change("received", "queued", "lost")]
    order.tell([queued])
    assert said[4:] == [queued]


@pytest.mark.on_sql
async def test_an_intake_that_fails_holds_nothing_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody knows whether it was stored: what is heard of its event later is told."""
    status = house.triggers.inbox._status

    def broken(*_: Any) -> None:
        raise RuntimeError("the answer was lost")

    monkeypatch.setattr(status, "took", broken)
    with pytest.raises(RuntimeError, match="lost"):
        await house.post()
    assert status.order._held == {}


@pytest.mark.every_store
async def test_two_services_write_one_story(url: str, clock: VirtualClock, receiver: Receiver, lines: Any) -> None:
    """One takes events in, the other delivers them: sorted by their times, the lines of each event are in the order of its life."""
    other = Redrive(url, durable=False)
    Triggers(other, settings())
    observe_with_logs(other)
    receiver.answer = lambda got: status(404 if b"bad" in got.body else 200)
    own = Redrive(url, durable=False)
    taking = House(own, Triggers(own, settings()), clock)
    observe_with_logs(own)
    async with own, other:
        await taking.endpoint(receiver.url)
        ids = [await taking.post(event_type) for event_type in ("good", "bad") * 5]
        await drain(other)
        await other.systems["triggers"].outgoing.close()  # type: ignore[attr-defined]
    told = [line for line in lines() if line["event"] == "status_transition"]
    random.Random(7).shuffle(told)
    told.sort(key=lambda line: line["@timestamp"])
    for number, id_ in enumerate(ids):
        assert [line["new_status"] for line in told if line["event_id"] == id_] == [
            "received", "queued", "failed" if number % 2 else "delivered",
        ]  # fmt: skip


async def test_metrics(house: House, receiver: Receiver) -> None:
    """The names of the contract, counted once each."""
    registry = CollectorRegistry()
    house.triggers.measure(registry)
    receiver.answer = lambda got: status(404 if b"bad" in got.body else 200)
    await house.endpoint(receiver.url, "sent.*")
    for event_type in ("sent.good", "sent.bad", "inbox"):
        await house.post(event_type)
    house.clock.advance(timedelta(seconds=3))
    await house.run()
    await house.triggers.refresh()
    shown = generate_latest(registry).decode()
    for line in (
        "events_created_total 3.0", "events_delivered_total 1.0", "events_failed_total 1.0", "events_received 1.0",
        "events_queued 0.0", "time_to_delivery_seconds_sum 3.0", "time_to_delivery_seconds_count 1.0",
        "event_status_queries_total 0.0", 'retry_attempts_bucket{le="0.0"} 1.0', "retry_attempts_count 2.0",
    ):  # fmt: skip
        assert f"\n{line}" in shown, line


async def test_delivered_events_are_forgotten_after_a_while(house: House, receiver: Receiver) -> None:
    """What was delivered long ago goes with its deliveries and their history; what has failed stays for ever."""
    receiver.answer = lambda got: status(404 if b"bad" in got.body else 200)
    await house.endpoint(receiver.url)
    good, bad = await house.post("good"), await house.post("bad")
    await house.run()
    assert await house.triggers.inbox.forget_delivered(house.clock.now()) == 0
    house.clock.advance(timedelta(days=30))
    assert await house.triggers.inbox.forget_delivered(house.clock.now()) == 1
    assert await house.event(good) is None
    assert (await house.event(bad)).status == "failed"
    totals = await house.triggers.inbox.totals()
    assert {word: amount for word, amount in totals.items() if amount} == {"failed": 1}
