"""The way of a message through the relay, with a real broker and a real database."""

import asyncio
import json
import os
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aio_pika.abc import AbstractIncomingMessage

from redrive import Redrive, State
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.relay import Relay

from .kit import Broker, amount_of, arrival, broker_at, retry, row, rows, running, until

LATE_SECONDS_MAX = 120.0
"""However busy the machine is, by then it has come, or it never will."""
"""The required bound; `python -m bench.relay` measures how far below it this stays on a quiet machine."""
HEADERS = {
    "tenant": "ada",
    "n": 7,
    "nested": {"deep": [1, "two"]},
    "raw": bytearray(b"\x00\xff"),
    "x-original-content-type": "text/csv",
}
PAYLOAD = bytes(range(256)) * 3


async def test_a_message_that_always_fails(app: Redrive, broker: Broker) -> None:
    """It goes out exactly three times, then exactly one review message follows: body byte for byte, headers as specified."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    out: list[AbstractIncomingMessage] = []

    async def fail(message: AbstractIncomingMessage) -> None:
        out.append(message)
        count = message.headers["x-retry-count"]
        assert isinstance(count, int)
        await broker.send(settings, retry("m-1", queue, message.body, retry_count=count), headers=HEADERS)

    async with running(app, relay):
        await broker.consume(queue, fail)
        ours = {"x-retry-count": 99, "x-message-id": "old", "x-death": [{"count": 1}], "CC": ["elsewhere"]}
        await broker.send(settings, retry("m-1", queue, PAYLOAD), headers=HEADERS | ours)
        [review] = await broker.take(settings.manual_review_queue)
        await until(lambda: _ended(app, "m-1"), "the row has ended")
        await asyncio.sleep(0.3)
        assert len(out) == 3
        assert await broker.depth(settings.manual_review_queue) == 0
        for number, message in enumerate(out, start=1):
            assert message.body == PAYLOAD
            assert message.content_type == "text/csv"
            assert message.delivery_mode == 2
            assert dict(message.headers) == {
                "tenant": "ada", "n": 7, "nested": {"deep": [1, "two"]}, "raw": bytearray(b"\x00\xff"),
                "x-retry-count": number, "x-message-id": "m-1", "x-original-error": "it broke",
                "x-retry-scheduler": "retry-scheduler",
            }  # fmt: skip
        body = json.loads(review.body)
        assert b64decode(body.pop("original_payload")) == PAYLOAD
        assert datetime.fromisoformat(body.pop("failed_at")) <= datetime.now(UTC)
        assert body == {
            "message_id": "m-1", "original_queue": queue, "error_reason": "it broke", "retry_count": 3, "max_retries": 3
        }  # fmt: skip
        assert dict(review.headers) == {"x-max-retries-exceeded": True, "x-original-queue": queue}
        assert review.message_id == json.loads(review.body)["message_id"]
        assert (review.content_type, review.delivery_mode) == ("application/json", 2)
        found = await row(app, "m-1")
        assert (found["status"], found["retry_count"], found["next_retry_at"]) == ("failed", 3, None)
        deeds = await relay.lane.deeds(found["id"])
        assert [(deed.act, deed.actor) for deed in deeds] == [("return", "relay")] * 3
        outcomes = [(one.outcome, one.state) for one in await relay.lane.attempts(found["id"])]
        assert outcomes == [("done", State.DONE)] * 3 + [("failed", State.DEAD)]


async def _ended(app: Redrive, message_id: str) -> bool:
    return (await row(app, message_id))["status"] in ("retried", "failed")


async def test_json_is_taken_too(app: Redrive, broker: Broker) -> None:
    """The same names in JSON, the payload in base64."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    body = json.dumps({"message_id": "j-1", "original_queue": queue, "original_payload": "AP8=", "unknown": None})
    async with running(app, relay):
        await broker.send(settings, body.encode(), content_type="application/json; charset=utf-8")
        [message] = await broker.take(queue)
    assert message.body == b"\x00\xff"
    assert message.headers["x-original-error"] == ""


async def test_a_spent_count_goes_to_people_at_once(app: Redrive, broker: Broker) -> None:
    """A message that arrives with its maximum reached is not published again and does not wait."""
    relay = Relay(app, settings := broker.settings(base_delay_ms=600_000, max_delay_ms=600_000))
    queue = await broker.queue()
    async with running(app, relay):
        await broker.send(
            settings, retry("m-1", queue, retry_count=3), retry("m-2", queue, retry_count=7, max_retries=5)
        )
        reviews = [json.loads(message.body) for message in await broker.take(settings.manual_review_queue, 2)]
        counts = {body["message_id"]: (body["retry_count"], body["max_retries"]) for body in reviews}
        assert counts == {"m-1": (3, 3), "m-2": (7, 5)}
        assert await broker.depth(queue) == 0


async def test_a_hint_raises_the_due_time_and_never_lowers_it(app: Redrive, broker: Broker) -> None:
    """Ten minutes ahead is waited for; an instant in the past is no reason to come early."""
    relay = Relay(app, settings := broker.settings(base_delay_ms=60_000, max_delay_ms=60_000))
    now = datetime.now(UTC)
    hints = {"ahead": now + timedelta(minutes=10), "past": now - timedelta(hours=1)}
    given = {name: int(instant.timestamp() * 1000) for name, instant in hints.items()} | {"none": 0}
    async with running(app, relay):
        await broker.send(settings, *(retry(name, "q", next_retry_at_ms=hint) for name, hint in given.items()))
        await until(lambda: _amount(app, 3), "all are stored")
        took = (datetime.now(UTC) - now).total_seconds()
        waits = {each["message_id"]: (each["next_retry_at"] - now).total_seconds() for each in await rows(app)}
    assert waits["ahead"] == pytest.approx(600, abs=3)
    assert 59 < waits["past"] < 61 + took
    assert 59 < waits["none"] < 61 + took


async def _amount(app: Redrive, amount: int) -> bool:
    return await amount_of(app) == amount


async def test_a_missing_queue(app: Redrive, broker: Broker) -> None:
    """Returned as unroutable, a message stays pending and says so, costs no retry, delays nobody, and goes out when its queue is there."""
    relay = Relay(app, settings := broker.settings())
    queue, gone = await broker.queue(), f"{broker.name}.gone"
    async with running(app, relay):
        await broker.send(settings, *(retry(f"lost-{n}", gone) for n in range(20)))
        await until(lambda: _unroutable(app, 20), "all are known to be unroutable")
        await broker.send(settings, *(retry(f"fine-{n}", queue) for n in range(20)))
        await broker.take(queue, 20)
        found = await row(app, "lost-0")
        assert (found["status"], found["retry_count"]) == ("pending", 0)
        tried = await relay.lane.attempts(found["id"])
        assert {one.state for one in tried} == {State.WAITING}
        assert "unroutable" in (tried[-1].error or "")
        assert tried[-1].delay is not None
        assert timedelta(milliseconds=20) <= tried[-1].delay <= timedelta(milliseconds=60)
        await broker.queue("gone")
        came = await broker.take(gone, 20)
        assert {message.headers["x-retry-count"] for message in came} == {1}
        await until(lambda: _ended(app, "lost-0"), "it is written down")
        assert (await row(app, "lost-0"))["retry_count"] == 1


async def test_a_missing_queue_for_one_of_two_that_share_an_id(app: Redrive, broker: Broker) -> None:
    """Copies have one AMQP id, by which the driver knows what comes back: neither passes for the other."""
    relay = Relay(app, settings := broker.settings(base_delay_ms=300, max_delay_ms=300))
    queue, gone = await broker.queue(), f"{broker.name}.gone"
    async with running(app, relay):
        for number in range(20):
            headers = {"x-original-properties": {"message_id": str(number)}}
            pair = (retry(f"gone:{number}", gone), retry(f"here:{number}", queue))
            await broker.send(settings, *pair, headers=headers)
        came = await broker.take(queue, 20)
        await until(lambda: _unroutable(app, 20), "those without a queue are known")
        await until(lambda: _retried(app, 20), "the others are written down")
        found = await rows(app)
    assert {message.message_id for message in came} == {str(number) for number in range(20)}
    assert {each["message_id"].split(":")[0]: each["status"] for each in found} == {
        "gone": "pending",
        "here": "retried",
    }
    assert {each["status"] for each in found if each["message_id"].startswith("gone")} == {"pending"}
    assert await broker.depth(queue) == 0, "none went out twice"


async def _retried(app: Redrive, amount: int) -> bool:
    return sum(each["status"] == "retried" for each in await rows(app)) == amount


async def _unroutable(app: Redrive, amount: int) -> bool:
    return sum("unroutable" in (each["last_error"] or "") for each in await rows(app)) == amount


async def test_a_full_queue(app: Redrive, broker: Broker) -> None:
    """A queue that refuses messages is tried again later, without a charge, like one that is missing."""
    relay = Relay(app, settings := broker.settings())
    full = await broker.queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await broker.put(full, b"in the way")
    async with running(app, relay):
        await broker.send(settings, retry("m-1", full))
        await until(lambda: _refused(app), "it was refused")
        assert (await row(app, "m-1"))["retry_count"] == 0
        [first, second] = await broker.take(full, 2)
        assert (first.body, second.headers["x-message-id"]) == (b"in the way", "m-1")


async def _refused(app: Redrive) -> bool:
    found = await rows(app)
    return bool(found) and "refused" in (found[0]["last_error"] or "")


async def test_the_review_queue_is_deleted(app: Redrive, broker: Broker) -> None:
    """No row dies without its review message: a review queue that was deleted is declared again."""
    relay = Relay(app, settings := broker.settings())
    async with running(app, relay):
        await broker.delete(settings.manual_review_queue)
        await broker.send(settings, retry("m-1", "q", retry_count=3))
        await until(lambda: _reviewed(app), "it is reviewed")
        assert (await row(app, "m-1"))["status"] == "failed"
        assert await broker.depth(settings.manual_review_queue) == 1


async def _reviewed(app: Redrive) -> bool:
    found = await rows(app)
    return bool(found) and found[0]["status"] == "failed"


async def test_the_retry_queue_is_deleted(app: Redrive, broker: Broker) -> None:
    """A consumer whose queue was deleted under it declares it again and goes on."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    async with running(app, relay):
        await broker.delete(settings.retry_queue)
        await until(lambda: _sent(broker, relay, retry("m-1", queue)), "the queue is there again")
        await broker.take(queue)


async def _sent(broker: Broker, relay: Relay, message: object) -> bool:
    if not (await relay.checks())["rabbitmq"]:
        return False
    try:
        await broker.depth(relay.settings.retry_queue)
    except Exception:
        return False
    await broker.send(relay.settings, message)  # type: ignore[arg-type]
    return True


async def test_queues_that_exist_are_used_as_they_are(app: Redrive, broker: Broker) -> None:
    """Other arguments than ours are no error."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    await broker.channel.declare_queue(settings.retry_queue, durable=False, arguments={"x-max-length": 5000})
    await broker.channel.declare_queue(settings.manual_review_queue, durable=True, arguments={"x-max-priority": 3})
    async with running(app, relay):
        await broker.send(settings, retry("m-1", queue), retry("m-2", queue, retry_count=3))
        await broker.take(queue)
        await broker.take(settings.manual_review_queue)


async def test_in_real_time(tmp_path: Path, rabbitmq: str, postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defaults no wait is shorter than 2, 4 and 8 s; and what waited before a restart goes out after it, without another.

    Three relays side by side, since all they do is wait.
    """
    monkeypatch.undo()  # the jitter is the real one here
    database = open_database(server := await postgres.create())
    await migrate(database, ["relay"])
    await database.close()
    waits, _, _ = await asyncio.gather(
        waits_of_the_defaults(f"sqlite:///{tmp_path / 'waits.db'}", rabbitmq),
        thousands_at_a_start(f"sqlite:///{tmp_path / 'restart.db'}", rabbitmq),
        thousands_at_a_start(server, rabbitmq),
    )
    assert len(waits) == 3
    late = [wait - 2 * 2**at for at, wait in enumerate(waits)]
    assert min(late) >= 0, waits


async def waits_of_the_defaults(url: str, rabbitmq: str) -> list[float]:
    """How long a message that always fails waits each time."""
    app = Redrive(url)
    asked: list[float] = []
    waits: list[float] = []
    async with broker_at(rabbitmq) as broker:
        relay = Relay(app, settings := broker.settings(base_delay_ms=2000, max_delay_ms=60_000))
        queue = await broker.queue()

        async def fail(message: AbstractIncomingMessage) -> None:
            waits.append(time.monotonic() - asked[-1])
            count = message.headers["x-retry-count"]
            assert isinstance(count, int)
            asked.append(time.monotonic())
            await broker.send(settings, retry("m-1", queue, retry_count=count))

        async with running(app, relay):
            await broker.consume(queue, fail)
            asked.append(time.monotonic())
            await broker.send(settings, retry("m-1", queue))
            await broker.take(settings.manual_review_queue, seconds=LATE_SECONDS_MAX)
    return waits


async def thousands_at_a_start(url: str, rabbitmq: str) -> None:
    """Rows that waited before a restart, published by the relay that starts; none needs another restart."""
    amount = int(os.environ.get("REDRIVE_TEST_ROWS", "600"))  # more than a batch
    before, app = Redrive(url, durable=False), Redrive(url, durable=False)
    late: list[float] = []
    async with broker_at(rabbitmq) as broker:
        settings = broker.settings(base_delay_ms=2000, max_delay_ms=2000)
        queue = await broker.queue()
        relay = Relay(before, settings)
        async with before:
            for start in range(0, amount, 500):
                await relay._intake.store(
                    [arrival(f"m-{n}", queue=queue) for n in range(start, min(start + 500, amount))]
                )
            due = {each["message_id"]: each["next_retry_at"].timestamp() for each in await rows(before)}
        async with running(app, Relay(app, settings)):
            began = time.time()

            async def take(message: AbstractIncomingMessage) -> None:
                late.append(time.time() - max(began, due[str(message.headers["x-message-id"])]))

            await broker.consume(queue, take)
            await until(lambda: len(late) == amount, "all went out", seconds=LATE_SECONDS_MAX + amount / 20)
    late.sort()
    print(
        f"{amount} rows: drift p50 {late[amount // 2]:.3f} s, p99 {late[amount * 99 // 100]:.3f} s, most {late[-1]:.3f} s"
    )
