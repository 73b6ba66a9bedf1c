"""Messages that nobody meant: on a queue of SQS and on RabbitMQ, read alone, and sent among others over the wire."""

import asyncio
import json
import logging
import random
import secrets
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pamqp.header import ContentHeader

from proof.ground import ground_on
from proof.scenario import Found, chance, scenario, sized
from redrive import Redrive, seconds
from redrive.core.task import Claim
from redrive.ledgers.aws.queue import SqsQueue, from_body
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay import system as relay_system
from redrive.systems.relay.frames import survive_strangers
from redrive.systems.relay.message import JSON, PROTOBUF, InvalidMessageError, read_delivery
from tests.ledgers.aws.homes import ItemGround, make_ledger
from tests.ledgers.aws.servers import aws_server
from tests.ledgers.homes import LEASE, settlement
from tests.servers import own_rabbitmq
from tests.systems.relay.kit import broker_at, delivered, retry, running, until

logging.getLogger("pamqp").setLevel(logging.CRITICAL)  # it tells of every name that it shortens
RECEIVED_MAX = 3
"""So often SQS hands out a message before it is put among the dead letters."""
PATIENCE_SECONDS = 600.0
AT_ONCE = 100
"""With so many on one table of moto, which looks through all of them for each claim."""
DEEP = 5_000
TEXTS = (
    "", "x", "\0", "\ud800", "é\u202e", "x" * 300, "x" * 5_000, "../../etc/passwd", "'; DROP TABLE retry_queue; --", "NaN",
    "9" * 400, "\U0001f4a5" * 70, "0001-01-01", "{}", "%s%n", "a\r\nb",
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 1.5, -0.0, float("inf"), float("nan"), 1e308)


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """Something that JSON can say."""
    sort = rng.randrange(6 if depth < 3 else 4)
    if sort == 0:
        return rng.choice(TEXTS)
    if sort == 1:
        return rng.choice(NUMBERS)
    if sort in (2, 3):
        return rng.choice([None, True, False, rng.randrange(-5, 5)])
    if sort == 4:
        return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): odd_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def spoilt(rng: random.Random, text: str) -> str:
    """The same text with some letters changed, gone or doubled; at times quite another."""
    odd = rng.randrange(8)
    if odd == 0:
        return "[" * DEEP + "]" * DEEP
    if odd == 1:
        return (
            '{"v": 1, "e": "a", "due": ' + rng.choice(["9" * 5_000, "1e999", "-1e999", "NaN", "Infinity", "[]"]) + "}"
        )
    letters = list(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(letters) + 1)
        letters[at : at + rng.randrange(3)] = rng.choice(["", "0", '"', "\\", "}", "\x7f", "é"])
    return "".join(letters)


# --- SQS -----------------------------------------------------------------------------------------------------------------


def sqs_body(rng: random.Random) -> str:
    """A body that says nothing about a head of ours, or says it oddly."""
    fields = {"v": 1, "e": f"event-{rng.randrange(9)}", "due": 1_893_456_000_000_007}
    sort = rng.randrange(3)
    if sort == 0:
        return spoilt(rng, json.dumps(fields))
    for name in rng.sample([*fields], rng.randrange(1, 3)):
        fields[name] = odd_value(rng)
    return json.dumps(fields) if sort == 1 else json.dumps(odd_value(rng))


@scenario("bad messages hurt nobody: SQS")
def odd_sqs_messages(short: bool) -> Iterator[Found]:
    """Read alone; and sent to a queue among the messages of events, all of which are claimed and settled."""
    rng, alone, sent = chance(), 2_000 if short else sized(250_000), 50 if short else sized(1_000)
    yield sqs_bodies_alone(rng, alone)
    among = _Among()
    with aws_server("moto") as url:
        for start in range(0, sent, AT_ONCE):
            asyncio.run(_among_events(url, rng, min(AT_ONCE, sent - start), among))
    yield Found(
        tried=f"SQS (moto): {sent:,} such messages among those of {sent:,} deliveries",
        figure=f"{among.claimed:,} of {sent:,} deliveries claimed once each, {len(among.errors)} claims failed; {among.unread:,} messages are "
        f"dead letters, {among.sent - among.unread:,} led nowhere and were forgotten, {among.left} are left",
        holds=among.claimed == sent and not (among.twice or among.errors or among.left),
    )


def sqs_bodies_alone(rng: random.Random, amount: int) -> Found:
    """Whether each is read, or is none of ours."""
    broken = Counter[str]()
    for _ in range(amount):
        body = sqs_body(rng)
        try:
            from_body(body)
        except Exception as error:
            broken[f"{error!r:.100} of {body[:80]!r}"] += 1
    for one in [*broken][:10]:
        print("  ", one)
    return Found(tried=f"{amount:,} bodies, read alone", figure=f"{broken.total()} raised an error", holds=not broken)


@dataclass(slots=True)
class _Among:
    """What came of odd messages, and of the deliveries among which they were."""

    sent: int = 0
    claimed: int = 0
    twice: int = 0
    unread: int = 0
    left: int = 0
    errors: list[str] = field(default_factory=list)


async def _among_events(url: str, rng: random.Random, amount: int, among: _Among) -> None:
    """So many odd messages and so many deliveries, on a table and a queue of their own."""
    ground = await ItemGround.at(url)
    home = await ground.home()
    try:
        dead, queue = await _queues(ground.clients.sqs)
        ledger = home.ledger = make_ledger(home.ledger.dynamo, queue, home.clock)
        bodies = [body for body in (_sendable(sqs_body(rng)) for _ in range(amount)) if body]
        for start in range(0, len(bodies), 10):
            entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[start : start + 10])]
            await ground.clients.sqs.send_message_batch(QueueUrl=queue.url, Entries=entries)
        ids = {*await home.put(amount)}
        claimed = Counter[Any]()
        ends = time.monotonic() + PATIENCE_SECONDS
        while (left := await queue.depth()) and time.monotonic() < ends:
            try:
                claims: list[Claim] = await ledger.claim(100, LEASE)
            except Exception as error:
                print("  ", told := f"{error!r:.200}")
                among.errors.append(told)
                claims = []
            claimed.update(claim.task.id for claim in claims)
            await ledger.settle([settlement(claim) for claim in claims], worker="w")
            if not claims:
                await asyncio.sleep(0.2)
        among.sent += len(bodies)
        among.claimed += len(ids & claimed.keys())
        among.twice += sum(often > 1 for often in claimed.values())
        among.unread += await SqsQueue(ground.clients.sqs, dead).depth()
        among.left += left
    finally:
        await home.leave()
        await ground.close()


def _sendable(body: str) -> str:
    """SQS takes no empty text, no surrogates and few control characters."""
    return "".join(letter for letter in body if letter in "\t\n\r" or letter >= " ").encode(errors="ignore").decode()


async def _queues(sqs: Any) -> tuple[str, SqsQueue]:
    """A queue with dead letters; what was handed out is seen again after a second."""
    name = f"q-{secrets.token_hex(4)}"
    dead = (await sqs.create_queue(QueueName=f"{name}-dead"))["QueueUrl"]
    arn = (await sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"]))["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVED_MAX})
    attributes = {"VisibilityTimeout": "1", "RedrivePolicy": policy}
    return dead, SqsQueue(sqs, (await sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"])


# --- RabbitMQ ------------------------------------------------------------------------------------------------------------


def amqp_body(rng: random.Random) -> tuple[bytes, str]:
    """A body with its content type: a message of the contract with something odd in it, or nothing of the kind."""
    right = retry(f"odd-{rng.randrange(10**9)}", "nowhere", b"p" * rng.randrange(9), max_retries=1)
    sort = rng.randrange(4)
    if sort == 0:
        raw = bytearray(right.SerializeToString())
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(raw), PROTOBUF
    if sort == 1:
        names = [field.name for field in right.DESCRIPTOR.fields]
        return json.dumps(
            {name: odd_value(rng) for name in rng.sample(names, rng.randrange(len(names)))}
        ).encode(), JSON
    if sort == 2:
        return spoilt(rng, '{"message_id": "a", "original_queue": "nowhere"}').encode(errors="replace"), JSON
    return rng.randbytes(rng.choice([0, 1, 7, 100, 70_000])), rng.choice([PROTOBUF, JSON, "text/plain", "", "x/y; z"])


def amqp_properties(rng: random.Random) -> bytes:
    """Properties as bytes, as a stranger's driver may write them."""
    name = rng.choice([b"a", b"x-death", b"x-retry-count", b"", b"\xff", b"n" * 200])
    sorts = {
        b"A": struct.pack(">I", 3) + b"I\x00\x00", b"F": struct.pack(">I", rng.choice([0, 4, 2**31])), b"S": struct.pack(">I", 9) + b"abc",
        b"T": struct.pack(">Q", rng.choice([0, 2**40, 2**63])), b"D": b"\xff" + struct.pack(">i", -1), b"I": b"\x00\x00\x00\x01",
        b"V": b"", b"d": struct.pack(">d", float("nan")), b"?": b"", b"x": struct.pack(">I", 2) + b"\xff\x00",
    }  # fmt: skip
    sort = rng.choice([*sorts])
    table = bytes([len(name)]) + name + sort + sorts[sort]
    if rng.random() < 0.1:
        inside = b""
        for _ in range(rng.choice([5, 100, 1_000])):
            inside = b"A" + struct.pack(">I", len(inside)) + inside
        table = b"\x04deep" + inside
    written = struct.pack(">HI", 1 << 13, len(table)) + table
    return written if rng.random() < 0.7 else rng.randbytes(rng.randrange(2, 40))


@scenario("bad messages hurt nobody: RabbitMQ")
def odd_amqp_messages(short: bool) -> Iterator[Found]:
    """Read alone, with properties as no driver writes them; and sent to the relay among others, all of which are published again."""
    rng, alone, sent = chance(), 2_000 if short else sized(250_000), 100 if short else sized(5_000)
    yield amqp_messages_alone(rng, alone)
    with own_rabbitmq() as node, ground_on("sqlite", ["relay"], in_memory=True) as ground:
        told, holds = asyncio.run(_among_retries(node.url, ground.url, rng, sent))
    yield Found(tried=f"RabbitMQ: {sent:,} such messages among {sent:,} others", figure=told, holds=holds)


def amqp_messages_alone(rng: random.Random, amount: int) -> Found:
    """Whether each is a message, or has a reason why it is not."""
    survive_strangers()
    settings = RelaySettings(_env_file=None, rabbitmq_url="amqp://127.0.0.1:1/")
    broken, fit = Counter[str](), 0
    for _ in range(amount):
        (body, content_type), raw = amqp_body(rng), amqp_properties(rng)
        message = delivered(body, content_type=content_type, headers={})
        if rng.random() < 0.5:
            read = ContentHeader()
            try:
                read.unmarshal(struct.pack(">HHQ", 60, 0, len(body)) + raw)
            except Exception as error:
                broken[f"{error!r:.100} of {raw[:40]!r}"] += 1
                continue
            message = replace(message, header=read)
        try:
            read_delivery(message, settings)
            fit += 1
        except InvalidMessageError:
            pass
        except Exception as error:
            broken[f"{error!r:.100} of {body[:40]!r}"] += 1
    for one in [*broken][:10]:
        print("  ", one)
    return Found(
        tried=f"{amount:,} messages, read alone",
        figure=f"{broken.total()} raised an error; {fit:,} are messages all the same, the others were refused with a reason",
        holds=not broken,
    )


async def _among_retries(broker_url: str, url: str, rng: random.Random, amount: int) -> tuple[str, bool]:
    app = Redrive(url, durable=False)
    relay_system.JITTER = seconds(0.01)
    async with broker_at(broker_url) as broker:
        settings = broker.settings()
        relay = Relay(app, settings)
        work, came = await broker.queue(), Counter[str]()
        async with running(app, relay):

            async def take(message: Any) -> None:
                came[message.body.decode()] += 1

            await broker.consume(work, take)
            wanted = {f"good-{number}" for number in range(amount)}
            for number in range(amount):
                body, content_type = amqp_body(rng)
                await broker.put(settings.retry_queue, body, content_type=content_type, headers=_odd_headers(rng))
                await broker.send(settings, retry(f"good-{number}", work, f"good-{number}".encode(), max_retries=1))
            await until(lambda: came.keys() >= wanted, "all others were published again", seconds=PATIENCE_SECONDS)
            left = 1
            ends = time.monotonic() + PATIENCE_SECONDS
            while left and time.monotonic() < ends:
                left = await broker.depth(settings.retry_queue)
                await asyncio.sleep(0.1)
            refused = await broker.depth(settings.invalid_queue)
    strange = came.keys() - wanted
    twice = sum(often > 1 for often in came.values())
    told = (
        f"all {amount:,} others were published again, {twice} of them twice; of the odd ones {refused:,} are in quarantine and "
        f"{amount - refused:,} are messages all the same; {left} left in the queue"
    )
    return told, not (strange or left or twice)


def _odd_headers(rng: random.Random) -> dict[str, Any]:
    """Headers that our own driver can write."""
    values = ("", "x" * 500, bytearray(b"\xff\x00"), 2**40, -1, 1.5, True, None, [1, "a", [2]], {"a": {"b": []}})
    return {f"h{number}": rng.choice(values) for number in range(rng.randrange(4))}
