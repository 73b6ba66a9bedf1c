"""Dead letters on a real broker: they are taken, judged, handed to the relay, and come back until people have them."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aio_pika
import httpx
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aiormq.abc import AbstractChannel as RawChannel
from aiormq.abc import DeliveredMessage
from prometheus_client import generate_latest

from redrive import Redrive
from redrive.errors import SettingsError
from redrive.events import Act
from redrive.lane import Actor
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay import broker as links
from redrive.systems.relay.dead_letters import DeadLetters
from redrive.systems.relay.message import PROTOBUF
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.rules import DeadLetterFacts, LetterVerdict, Rules, load_rules
from redrive.systems.relay.settings import DeadLetterSettings
from tests import forks

from .kit import Broker, rows, running, until
from .proxy import Proxy
from .test_intake import Strange

ORIGINAL = {
    "message_id": "m-1", "content_type": "text/x-order", "content_encoding": "gzip", "correlation_id": "c-1",
    "reply_to": "answers", "type": "order", "app_id": "shop", "priority": 3,
    "timestamp": datetime(2026, 1, 31, 9, tzinfo=UTC),
}  # fmt: skip
"""Whatever a message may have besides its headers."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again sooner than in real life."""
    monkeypatch.setattr(links, "PAUSE_CAP_SECONDS", 0.1)


@pytest.fixture
async def proxy(rabbitmq: str) -> AsyncIterator[Proxy]:
    async with Proxy(rabbitmq) as made:
        yield made


class Ground:
    """A dead-letter exchange of a test's own, and a queue for dead letters."""

    def __init__(self, broker: Broker, settings: RelaySettings) -> None:
        self.broker = broker
        self.settings = settings
        self.exchange = f"{broker.name}.dlx"
        self.queue = f"{broker.name}.dead"
        broker._made.add(self.queue)

    def letters(self, **given: Any) -> DeadLetters:
        """A handler of dead letters for them; the relay's settings are replaced by what is given."""
        source = {"dead_letter_exchange": self.exchange, "dead_letter_queue": self.queue}
        source = {name: given.pop(name, value) for name, value in source.items()}
        source |= {name: given.pop(name) for name in list(given) if name.startswith("dead_letter_")}
        made = DeadLetterSettings(
            _env_file=None, **{name: value for name, value in source.items() if value is not None}
        )
        return DeadLetters(self.settings.model_copy(update=given), made, load_rules(made.dead_letter_rules))

    async def work(self, name: str = "work", **arguments: Any) -> str:
        """A queue whose dead letters go there."""
        return await self.broker.queue(name, arguments={"x-dead-letter-exchange": self.exchange, **arguments})

    async def die(self, queue: str, body: bytes = b"order", **given: Any) -> None:
        """Send a message and reject it."""
        await self.broker.put(queue, body, **given)
        message = await (await self.broker.channel.get_queue(queue)).get()
        await message.reject()

    async def handed(self, amount: int = 1) -> list[tuple[RetryMessage, AbstractIncomingMessage]]:
        """So many messages that were handed to the relay."""
        came = await self.broker.take(self.settings.retry_queue, amount)
        assert {message.content_type for message in came} == {PROTOBUF}
        return [(RetryMessage.FromString(message.body), message) for message in came]

    async def is_empty(self) -> bool:
        return await self.broker.depth(self.queue) == 0


@pytest.fixture
async def ground(broker: Broker) -> AsyncIterator[Ground]:
    made = Ground(broker, broker.settings())
    yield made
    await broker.channel.exchange_delete(made.exchange)


@asynccontextmanager
async def handling(letters: DeadLetters, *, connected: bool = True) -> AsyncIterator[asyncio.Event]:
    """A handler of dead letters, until the end of the block."""
    stopped = asyncio.Event()
    run = asyncio.create_task(letters.run(stopped))
    try:
        if connected:
            await until(lambda: run.done() or letters.ready, "it has started")
        yield stopped
    finally:
        stopped.set()
        await run


# --- the whole loop ---------------------------------------------------------------------------------------------------


async def test_the_whole_loop(app: Redrive, ground: Ground) -> None:
    """A consumer that rejects gets the message once and three times more, each time as it was, and then people have it."""
    relay = Relay(app, ground.settings)
    queue = await ground.work()
    tries: list[AbstractIncomingMessage] = []

    async def reject(message: AbstractIncomingMessage) -> None:
        tries.append(message)
        await message.reject()

    async with running(app, relay), handling(letters := ground.letters()):
        channel = await ground.broker._connection.channel()
        await (await channel.get_queue(queue)).consume(reject)
        await ground.broker.put(queue, b"\x00order", headers={"tenant": "a", "raw": bytearray(b"\xff")}, **ORIGINAL)
        [review] = await ground.broker.take(ground.settings.manual_review_queue)
        await until(lambda: _status(app, "failed"), "it is written down")
        [found] = await rows(app)
        assert await ground.is_empty()
    assert [message.headers.get("x-retry-count") for message in tries] == [None, 1, 2, 3]
    assert [message.headers.get("x-message-id") for message in tries] == [None, "m-1", "m-1", "m-1"]
    for message in tries:
        assert message.body == b"\x00order"
        assert {name: getattr(message, name) for name in ORIGINAL} == ORIGINAL
        theirs = {name: value for name, value in message.headers.items() if not name.startswith("x-")}
        assert theirs == {"tenant": "a", "raw": b"\xff"}
        assert not [
            name for name in message.headers if "death" in name or "dead-letter" in name or "properties" in name
        ]
    body = json.loads(review.body)
    assert (body["message_id"], body["retry_count"], body["max_retries"]) == ("m-1", 3, 3)
    assert (body["original_queue"], body["error_reason"]) == (queue, f"rejected in {queue}, without an error text")
    assert review.headers == {
        "x-max-retries-exceeded": True, "x-original-queue": queue,
        "x-dead-letter-class": "transient", "x-dead-letter-rule": "rejected-without-a-word",
    }  # fmt: skip
    assert (found["status"], found["retry_count"], found["message_id"]) == ("failed", 3, "m-1")
    assert f'relay_dead_letters_total{{class="transient",queue="{queue}"}} 4.0' in counted(letters)


async def test_what_will_not_pass_goes_to_people_at_once(app: Redrive, ground: Ground) -> None:
    """No retry, no wait: its row is failed, its count is true, its review message says which rule it was, and people can resubmit it."""
    relay = Relay(app, ground.settings)
    queue = await ground.work()
    async with running(app, relay), handling(ground.letters()):
        await ground.die(queue, headers={"x-error": "card declined", "tenant": "a"}, message_id="m-1")
        [review] = await ground.broker.take(ground.settings.manual_review_queue)
        await until(lambda: _status(app, "failed"), "it is written down")
        assert await ground.broker.depth(queue) == 0
        [found] = await rows(app)
        await relay.desk.act(Act.REDRIVE, [found["id"]], Actor(name="ann", reason="the card was changed"))
        [again] = await ground.broker.take(queue)
    body = json.loads(review.body)
    assert (body["retry_count"], body["max_retries"], body["error_reason"]) == (0, 0, "card declined")
    assert (body["message_id"], body["original_queue"]) == ("m-1", queue)
    assert (review.headers["x-dead-letter-class"], review.headers["x-dead-letter-rule"]) == (
        "business",
        "refused-by-the-business",
    )
    assert (again.body, again.message_id, again.headers["tenant"], again.headers["x-message-id"]) == (
        b"order", "m-1", "a", "m-1",
    )  # fmt: skip
    assert not {"x-error", "x-dead-letter-class", "x-dead-letter-rule", "x-original-properties"} & set(again.headers)


async def test_a_verdict_may_change_from_round_to_round(app: Redrive, ground: Ground) -> None:
    """Transient first, then not: it is the same story, with the count that it had."""
    relay = Relay(app, ground.settings)
    queue = await ground.work()
    async with running(app, relay), handling(ground.letters()):
        await ground.die(queue, message_id="m-1")
        [again] = await ground.broker.take(queue)
        headers = {**again.headers, "x-error": "KeyError: 'id'", "x-original-queue": queue}
        dlx = await ground.broker.channel.get_exchange(ground.exchange)
        await dlx.publish(aio_pika.Message(again.body, headers=headers), "any")
        [review] = await ground.broker.take(ground.settings.manual_review_queue)
        await until(lambda: _status(app, "failed"), "it is written down")
        [found] = await rows(app)
    body = json.loads(review.body)
    assert (body["message_id"], body["retry_count"], review.headers["x-dead-letter-class"]) == ("m-1", 1, "technical")
    assert found["message_id"] == "m-1"


# --- what the broker tells --------------------------------------------------------------------------------------------


async def _expired(ground: Ground) -> str:
    queue = await ground.work()
    await ground.broker.put(queue, b"order", message_id="m-1", expiration=0.01)
    return queue


async def _maxlen(ground: Ground) -> str:
    queue = await ground.work(**{"x-max-length": 1})
    await ground.broker.put(queue, b"order", message_id="m-1")
    await ground.broker.put(queue, b"other", message_id="m-2")
    return queue


async def _delivery_limit(ground: Ground) -> str:
    queue = await ground.work(**{"x-queue-type": "quorum", "x-delivery-limit": 1})
    await ground.broker.put(queue, b"order", message_id="m-1")
    for _ in range(2):
        await until(lambda: _has(ground, queue), "it is there")
        message = await (await ground.broker.channel.get_queue(queue)).get()
        await message.reject(requeue=True)
    return queue


async def _waited(ground: Ground) -> str:
    """Rejected, parked in a queue of the team's own until its time is up, and only then a dead letter of ours."""
    wait = await ground.work("wait", **{"x-message-ttl": 1})
    to_wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}
    queue = await ground.broker.queue(arguments=to_wait)
    await ground.die(queue, message_id="m-1")
    return queue


@pytest.mark.parametrize(
    ("make", "reason", "expected", "deaths"),
    [
        (_expired, "expired", "transient", 1),
        (_maxlen, "maxlen", "transient", 1),
        (_delivery_limit, "delivery_limit", "technical", 1),
        (_waited, "rejected", "transient", 2),
    ],
)  # fmt: skip
async def test_every_way_to_die(
    make: Callable[..., Any], reason: str, expected: str, deaths: int, ground: Ground
) -> None:
    """The reason, the queue it came from and the count over all queues are what the broker wrote down."""
    letters = ground.letters()
    judged = []
    tell = letters._log.dead_letter
    letters._log.dead_letter = lambda letter, verdict: (judged.append(letter.trouble), tell(letter, verdict))  # type: ignore[method-assign, assignment, func-returns-value]
    async with handling(letters):
        queue = await make(ground)
        [(handed, message)] = await ground.handed()
    assert (handed.message_id, handed.original_queue, handed.original_payload) == ("m-1", queue, b"order")
    assert (handed.retry_count, handed.max_retries) == (0, 0)
    assert message.headers["x-dead-letter-class"] == expected
    assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    await until(lambda: len(judged) == 1, "it is told")
    assert (judged[0].reason, judged[0].deaths) == (reason, deaths)


async def test_a_message_that_nobody_rejected(ground: Ground) -> None:
    """Published to the exchange by hand: with the queue in a header it is judged as any other; without, people look."""
    async with handling(letters := ground.letters()):
        dlx = await ground.broker.channel.get_exchange(ground.exchange)
        told = aio_pika.Message(b"1", headers={"x-original-queue": "orders", "x-error": "timeout"}, message_id="m-1")
        await dlx.publish(told, "any")
        await dlx.publish(aio_pika.Message(b"2", headers={"x-error": "timeout"}, message_id="m-2"), "orders.created")
        handed = {one.original_payload: (one, message.headers) for one, message in await ground.handed(2)}
    known, headers = handed[b"1"]
    assert (known.message_id, known.original_queue, headers["x-dead-letter-class"]) == (
        "orders:m-1",
        "orders",
        "transient",
    )
    unknown, headers = handed[b"2"]
    assert (unknown.original_queue, headers["x-dead-letter-class"]) == ("orders.created", "unknown")
    assert headers["x-dead-letter-rule"] == "no-queue-known"
    assert 'relay_dead_letters_total{class="unknown",queue="other"} 1.0' in counted(letters), "a key is no queue"


async def test_copies_of_one_message_are_stories_of_their_own(ground: Ground) -> None:
    """An exchange gave one message to two queues and both rejected it: neither passes for the other."""
    copies = f"{ground.broker.name}.copies"
    fanout = await ground.broker.channel.declare_exchange(copies, "fanout", auto_delete=True)
    queues = [await ground.work("a"), await ground.work("b")]
    for queue in queues:
        await (await ground.broker.channel.get_queue(queue)).bind(fanout)
    async with handling(ground.letters()):
        await fanout.publish(aio_pika.Message(b"order", message_id="m-1"), "")
        for queue in queues:
            await (await (await ground.broker.channel.get_queue(queue)).get()).reject()
        assert {one.message_id for one, _ in await ground.handed(2)} == {f"{queue}:m-1" for queue in queues}


async def _bcc(ground: Ground, a: str, b: str) -> None:
    await ground.broker.put(a, b"order", message_id="m-1", headers={"BCC": [b]})


async def _cc(ground: Ground, a: str, b: str) -> None:
    await ground.broker.put(a, b"order", message_id="m-1", headers={"CC": [b]})


@pytest.mark.parametrize("send", [_bcc, _cc])
async def test_copies_that_a_sender_asked_for(send: Callable[..., Any], ground: Ground) -> None:
    """By CC or BCC, where the broker has dropped the header on the way: neither passes for the other."""
    queues = [await ground.work(name, **{"x-dead-letter-routing-key": "dead"}) for name in "ab"]
    async with handling(ground.letters()):
        await send(ground, *queues)
        for queue in queues:
            await (await (await ground.broker.channel.get_queue(queue)).get()).reject()
        ids = [one.message_id for one, _ in await ground.handed(2)]
    assert len(set(ids)) == 2
    assert f"{queues[1]}:m-1" in ids


# --- poison -----------------------------------------------------------------------------------------------------------


class Fragile(Rules):
    """Rules with a defect that one message finds."""

    def classify(self, trouble: DeadLetterFacts) -> LetterVerdict:
        if trouble.error == "boom":
            raise RecursionError("too deep")
        return super().classify(trouble)


async def test_poison_goes_to_quarantine(ground: Ground) -> None:
    """What cannot go on is kept with its bytes and the reason; it neither comes again nor stops what is behind it."""
    queue = await ground.work()
    own = await ground.broker.queue("review", arguments={"x-dead-letter-exchange": ground.exchange})
    assert own == ground.settings.manual_review_queue
    poison = {
        "too_large": (queue, b"x" * 3000, {}),
        "bad_headers": (queue, b"headers", {"h": "x" * 70_000}),
        "bad_properties": (queue, b"time", {"when": Strange(2020, 1, 1, tzinfo=UTC)}),
        "own_queue": (own, b"review", {}),
        "unparsable": (queue, b"judge", {"x-error": "boom"}),
    }
    letters = ground.letters(relay_max_message_bytes=3000)
    letters.rules = Fragile.model_construct(**dict(letters.rules))
    async with handling(letters):
        for where, body, headers in poison.values():
            await ground.die(where, body, headers=headers, message_id="p")
        await ground.die(queue, b"good", message_id="m-1")
        [(handed, _)] = await ground.handed()
        assert handed.message_id == "m-1"
        bad = await ground.broker.take(ground.settings.invalid_queue, len(poison))
        assert {message.headers["x-invalid-reason"]: message.body for message in bad} == {
            reason: body for reason, (_, body, _) in poison.items()
        }
        await asyncio.sleep(0.1)
        assert await ground.is_empty()
        assert await ground.broker.depth(ground.settings.retry_queue) == 0
        assert 'retry_invalid_messages_total{reason="own_queue"} 1.0' in counted(letters)


# --- when something breaks --------------------------------------------------------------------------------------------


async def test_a_cut_before_the_acknowledgement(app: Redrive, ground: Ground) -> None:
    """Handed over and not acknowledged, it comes again under the same id, and the relay knows it: one story."""
    queue = await ground.work()
    letters = ground.letters()

    class Deaf:
        async def basic_ack(self, *_: Any, **__: Any) -> None:
            raise ConnectionError("gone")

    take = letters.take

    async def take_in_vain(_: RawChannel, arrived: "asyncio.Queue[DeliveredMessage]") -> None:
        await take(Deaf(), arrived)  # type: ignore[arg-type]

    letters._consumer._take = take_in_vain
    async with handling(letters):
        await ground.die(queue, message_id="m-1")
        await until(lambda: "relay_dead_letters_total{" in counted(letters), "it was handed over")
    relay = Relay(app, ground.settings.model_copy(update={"base_delay_ms": 60_000, "max_delay_ms": 60_000}))
    async with handling(again := ground.letters()):
        await until(lambda: "relay_dead_letters_total{" in counted(again), "it was handed over again")
        assert await ground.broker.depth(ground.settings.retry_queue) == 2
    assert await ground.is_empty()
    async with running(app, relay):
        await until(lambda: _none_left(ground), "the relay has both")
        [found] = await rows(app)
        assert (found["message_id"], found["status"], found["retry_count"]) == ("m-1", "pending", 0)


async def test_what_cannot_be_told_is_acknowledged_all_the_same(ground: Ground) -> None:
    """Without an id it would come again as another message, for as long as the disk under the logs is full."""
    queue = await ground.work()
    letters = ground.letters()
    told: list[Any] = []
    ups: list[bool] = []
    letters._consumer._tell = lambda _, up, __: ups.append(up)

    def full(*given: Any) -> None:
        told.append(given)
        raise OSError("no space left on device")

    letters._log.dead_letter = letters._log.quarantined = full  # type: ignore[method-assign, assignment]
    async with handling(letters):
        await ground.die(queue)
        await until(lambda: len(told) == 1, "it was told in vain")
        await until(lambda: ups == [True, False, True], "it takes again")
        await ground.die(queue, headers={"h": "x" * 70_000})
        await until(lambda: len(told) == 2, "that one too")
        await until(ground.is_empty, "nothing is left")
        await ground.handed()
        await ground.broker.take(ground.settings.invalid_queue)
        await asyncio.sleep(0.3)
        assert len(told) == 2
        assert await _none_left(ground)
    assert await ground.is_empty()


async def test_a_full_disk_under_the_logs_stops_nothing(ground: Ground) -> None:
    """What is told stands already: its lines are lost, the work is not done twice, and the connections stay."""
    queue = await ground.work()
    letters = ground.letters()

    class Full:
        def info(self, *_: Any, **__: Any) -> None:
            raise OSError("no space left on device")

    async with handling(letters):
        letters._log._log = Full()
        for _ in range(5):
            await ground.die(queue)
        assert len({one.message_id for one, _ in await ground.handed(5)}) == 5
        await until(lambda: f'queue="{queue}"}} 5.0' in counted(letters), "all are counted")
        assert letters.checks() == {"rabbitmq": True}
        assert await _none_left(ground)


async def test_a_broker_that_goes_away(ground: Ground, proxy: Proxy) -> None:
    """Nothing is acknowledged meanwhile, nothing is lost, and it goes on by itself when the broker is back."""
    letters = ground.letters(rabbitmq_url=proxy.url)
    queue = await ground.work()
    async with handling(letters):
        assert letters.checks() == {"rabbitmq": True}
        await proxy.cut()
        await until(lambda: letters.checks() == {"rabbitmq": False}, "it knows")
        for number in range(5):
            await ground.die(queue, message_id=f"m-{number}")
        assert await ground.broker.depth(ground.queue) == 5
        await proxy.mend()
        assert {one.message_id for one, _ in await ground.handed(5)} == {f"m-{number}" for number in range(5)}
        await until(ground.is_empty, "all are acknowledged")


async def test_a_retry_queue_that_takes_nothing(ground: Ground) -> None:
    """Full, it is tried again until it has room; deleted, it is made again. Nothing is acknowledged before."""
    refuses = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await ground.broker.channel.declare_queue(ground.settings.retry_queue, durable=True, arguments=refuses)
    queue = await ground.work()
    async with handling(letters := ground.letters()):
        await ground.die(queue, message_id="m-1")
        await until(lambda: "relay_dead_letters_total{" in counted(letters), "the first has room")
        await ground.die(queue, message_id="m-2")
        [(first, _)] = await ground.handed()
        await until(lambda: f'queue="{queue}"}} 2.0' in counted(letters), "the second has room")
        [(second, _)] = await ground.handed()
        # With nothing under way: what is being published while its queue is deleted may be confirmed by the broker, and lost.
        await ground.broker.delete(ground.settings.retry_queue)
        await ground.die(queue, message_id="m-3")
        await until(lambda: f'queue="{queue}"}} 3.0' in counted(letters), "the third is there")
        [(third, _)] = await ground.handed()
        assert [one.message_id for one in (first, second, third)] == ["m-1", "m-2", "m-3"]


async def test_a_stop_finishes_what_has_arrived(ground: Ground) -> None:
    """Each dead letter is handed over once: none is left unacknowledged to be handed over again."""
    queue = await ground.work()
    async with handling(ground.letters()) as stopped:
        for number in range(30):
            await ground.die(queue, message_id=f"m-{number:02}")
        stopped.set()
    left = await ground.broker.depth(ground.queue)
    came = [one.message_id for one, _ in await ground.handed(30 - left)]
    assert len(came) == len(set(came)) == 30 - left
    assert await ground.broker.depth(ground.settings.retry_queue) == 0


def test_the_relays_own_queues_are_no_source(ground: Ground) -> None:
    """What is taken from the retry queue and put there again would go in a circle for ever: it is refused at the start."""
    for own in (ground.settings.retry_queue, ground.settings.invalid_queue, ground.settings.manual_review_queue):
        with pytest.raises(SettingsError, match="DEAD_LETTER_QUEUE"):
            ground.letters(dead_letter_queue=own)


# --- where dead letters come from -------------------------------------------------------------------------------------


async def test_only_a_queue(ground: Ground) -> None:
    """Given without an exchange it is taken as it is, and waited for while it is not there; nothing is bound or made."""
    letters = ground.letters(dead_letter_exchange=None)
    async with handling(letters, connected=False):
        await until(lambda: letters._publisher.is_up, "the broker is there")
        await asyncio.sleep(0.2)
        assert not letters.ready
        await ground.broker.channel.declare_queue(ground.queue, durable=True, arguments={"x-max-priority": 3})
        await ground.broker.put(ground.queue, b"order", headers={"x-original-queue": "orders"}, message_id="m-1")
        [(handed, _)] = await ground.handed()
        assert handed.message_id == "orders:m-1"


async def test_a_direct_exchange_needs_its_keys(ground: Ground) -> None:
    """It would give nothing to a queue bound with #: that is said, instead of waiting in silence for ever."""
    await ground.broker.channel.declare_exchange(ground.exchange, "direct", durable=False)
    letters = ground.letters()
    said: list[str] = []
    letters._consumer._tell = lambda _, up, error: said.append(error)
    async with handling(letters, connected=False):
        await until(lambda: bool(said), "it is told")
    assert "is direct" in said[0] and "DEAD_LETTER_ROUTING_KEYS" in said[0]
    queue = await ground.work()
    async with handling(ground.letters(dead_letter_routing_keys=("unused", queue))):
        await ground.die(queue, message_id="m-1")
        [(handed, _)] = await ground.handed()
        assert handed.original_queue == queue


@pytest.mark.parametrize("kind", ["fanout", "headers", "topic"])
async def test_other_exchanges_are_used_as_they_are(kind: str, ground: Ground) -> None:
    """Whatever it is, what dies into it arrives."""
    await ground.broker.channel.declare_exchange(ground.exchange, kind, durable=True)
    queue = await ground.work()
    async with handling(ground.letters()):
        await ground.die(queue, message_id="m-1")
        await ground.handed()


# --- help -------------------------------------------------------------------------------------------------------------


def counted(letters: DeadLetters) -> str:
    """The metrics as they are scraped."""
    return generate_latest(letters.metrics.registry).decode()


async def _status(app: Redrive, status: str) -> bool:
    return {row["status"] for row in await rows(app)} == {status}


async def _has(ground: Ground, queue: str) -> bool:
    return await ground.broker.depth(queue) > 0


async def _none_left(ground: Ground) -> bool:
    return await ground.broker.depth(ground.settings.retry_queue) == 0


# --- the command ------------------------------------------------------------------------------------------------------


async def test_the_command(ground: Ground, tmp_path: Path) -> None:
    """It says what it does, is ready, hands over, counts, tells without payloads and secrets, and ends with 0; no database is made."""
    queue = await ground.work()
    environment = os.environ | {
        "RABBITMQ_URL": ground.settings.rabbitmq_url, "RETRY_QUEUE": ground.settings.retry_queue,
        "MANUAL_REVIEW_QUEUE": ground.settings.manual_review_queue, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    }  # fmt: skip
    options = ["--exchange", ground.exchange, "--queue", ground.queue, "--port", "0"]
    process = forks.run(
        "relay", "dead-letters", *options, folder=tmp_path, log=tmp_path / "log", environment=environment
    )
    said: Callable[[], str] = (tmp_path / "log").read_text
    try:
        await until(lambda: "Ctrl-C stops" in said() or process.poll() is not None, "it has started", seconds=120)
        address = re.search(r"http://[\d.:]+/", said())
        assert address, said()
        async with httpx.AsyncClient(base_url=address[0], timeout=60) as client:

            async def is_ready() -> bool:
                return (await client.get("/ready")).status_code == 200

            await until(is_ready, "it is ready", seconds=120)
            await ground.die(
                queue, b"my payload", message_id="m-1", headers={"x-error": "timeout, token=hunter2hunter2"}
            )
            [(handed, _)] = await ground.handed()
            assert handed.original_payload == b"my payload"
            health = (await client.get("/health")).json()
            assert (health["status"], health["checks"]) == ("ok", {"rabbitmq": "ok"})
            counted = f'relay_dead_letters_total{{class="transient",queue="{queue}"}} 1.0'

            async def is_counted() -> bool:
                return counted in (await client.get("/metrics")).text

            await until(is_counted, "it is counted once it is acknowledged")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, said()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    lines = [json.loads(line) for line in said().splitlines() if line.startswith("{")]
    [told] = [line for line in lines if line["event"] == "dead_letter"]
    assert (told["message_id"], told["rule"], told["service"]) == ("m-1", "it-will-pass", "dead-letters")
    for secret in ("my payload", "hunter2", "guest:guest", "Traceback"):
        assert secret not in said()
    assert {file.name for file in tmp_path.iterdir()} == {"log"}
