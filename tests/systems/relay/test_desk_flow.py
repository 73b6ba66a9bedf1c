"""What people bring back really goes out: with a real broker and a real database."""

import json

from redrive import Redrive
from redrive.events import Act
from redrive.lane import Actor
from redrive.systems.relay import Relay
from redrive.systems.relay.desk import Asked

from .kit import Broker, outcome, retry, row, running, until

ADA = Actor(name="ada", reason="the bank is back")
PAYLOAD = bytes(range(256))


async def test_a_resubmitted_message_arrives(app: Redrive, broker: Broker) -> None:
    """In its queue, byte for byte, as its first retry, with who and when; what comes back from there has no mark any more."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    forged = {"tenant": "ada", "x-resubmitted-by": "mallory"}
    async with running(app, relay):
        await broker.send(settings, retry("m-1", queue, PAYLOAD, retry_count=3), headers=forged)
        await until(lambda: _is(app, "m-1", "failed"), "it is in review")
        [waiting] = (await relay.desk.page(Asked(queue=queue))).items
        assert (waiting.message_id, waiting.error_reason, waiting.payload_bytes) == ("m-1", "it broke", 256)
        assert "Last error: it broke" in waiting.last_error
        assert outcome(await relay.desk.act(Act.REDRIVE, [waiting.id], ADA)) == ([waiting.id], {})
        marked = (await row(app, "m-1"))["headers"]["x-resubmitted-at"]
        [message] = await broker.take(queue)
        assert message.body == PAYLOAD
        assert dict(message.headers) == {
            "tenant": "ada", "x-retry-count": 1, "x-message-id": "m-1", "x-original-error": "it broke",
            "x-retry-scheduler": "retry-scheduler", "x-resubmitted-by": "ada", "x-resubmitted-at": marked,
        }  # fmt: skip
        await until(lambda: _is(app, "m-1", "retried"), "it is confirmed")
        assert (await row(app, "m-1"))["retry_count"] == 1
        # The review message is the reviewers' own: it stays where it is until they take it off.
        [review] = await broker.take(settings.manual_review_queue)
        assert json.loads(review.body)["message_id"] == "m-1"
        await broker.send(settings, retry("m-1", queue, PAYLOAD, retry_count=1), headers=dict(message.headers))
        [again] = await broker.take(queue)
        assert again.headers["x-retry-count"] == 2
        assert not {"x-resubmitted-by", "x-resubmitted-at"} & set(again.headers)


async def test_it_goes_out_where_no_retry_is_allowed(app: Redrive, broker: Broker) -> None:
    """A message with no retries at all goes to people at once; one that they resubmit goes out once, then to them again."""
    relay = Relay(app, settings := broker.settings(default_max_retries=0))
    queue = await broker.queue()
    async with running(app, relay):
        await broker.send(settings, retry("m-1", queue))
        await broker.take(settings.manual_review_queue)
        await until(lambda: _is(app, "m-1", "failed"), "it is in review")
        assert await broker.depth(queue) == 0
        await relay.desk.act(Act.REDRIVE, [(await row(app, "m-1"))["id"]], ADA)
        [message] = await broker.take(queue)
        assert message.headers["x-resubmitted-by"] == "ada"
        await until(lambda: _is(app, "m-1", "retried"), "it is confirmed")
        await broker.send(settings, retry("m-1", queue, retry_count=1), headers=dict(message.headers))
        await broker.take(settings.manual_review_queue)
        assert await broker.depth(queue) == 0


async def test_what_is_resubmitted_without_a_relay_goes_out_when_there_is_one(app: Redrive, broker: Broker) -> None:
    """People can act while nothing runs and the broker is away: the act is in the database."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    async with running(app, relay):
        await broker.send(settings, retry("m-1", queue, retry_count=3))
        await until(lambda: _is(app, "m-1", "failed"), "it is in review")
        id_ = (await row(app, "m-1"))["id"]
    other = Redrive(app.database.url, durable=False)
    stands_still = Relay(other, settings)
    async with other:
        await stands_still.desk.act(Act.REDRIVE, [id_], ADA)
    third = Redrive(app.database.url, durable=False)
    async with running(third, Relay(third, settings)):
        [message] = await broker.take(queue)
    assert message.headers["x-resubmitted-by"] == "ada"


async def _is(app: Redrive, message_id: str, status: str) -> bool:
    try:
        return bool((await row(app, message_id))["status"] == status)
    except ValueError:  # not stored yet
        return False
