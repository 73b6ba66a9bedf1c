"""One session of the consumer, step by step: when it acknowledges, what it quarantines, and what makes it wait."""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aio_pika
import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from sqlalchemy import Connection, text

from redrive import Redrive
from redrive.systems.relay import Relay, RelaySettings, intake
from redrive.systems.relay import quarantine as quarantining
from redrive.systems.relay.broker import Published
from redrive.systems.relay.frames import survive_strangers, unreadable
from redrive.systems.relay.intake import Intake, _Session
from redrive.systems.relay.message import InvalidMessageError
from redrive.systems.relay.store import Stored

from .kit import Broker, arrival, retry, rows

SETTINGS = RelaySettings(_env_file=None)
PROPERTIES = {"message_id": "m-1", "correlation_id": "c-1", "reply_to": "answers", "content_encoding": "gzip"}
DEEP = 1000


def nested(depth: int) -> bytes:
    """The properties of a message, as bytes: one header that holds an array in an array in an array."""
    inside = b""
    for _ in range(depth):
        inside = b"A" + struct.pack(">I", len(inside)) + inside
    table = b"\x04deep" + inside
    return struct.pack(">HI", 1 << 13, len(table)) + table


class Deep(aio_pika.Message):
    """A message that our driver could not write: a stranger's may have it all the same."""

    @property
    def properties(self) -> Basic.Properties:
        made = super().properties
        made.marshal = lambda: nested(DEEP)  # type: ignore[method-assign]
        return made


class Recorder:
    """Who is told, and writes it down."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def stored(self, stored: Stored) -> None:
        self.told.append(stored)

    def invalid(self, reason: str, detail: str) -> None:
        self.told.append((reason, detail))

    def unstored(self, error: str) -> None:
        self.told.append(error)


def delivered(body: bytes, tag: int = 1, **properties: Any) -> DeliveredMessage:
    """A message as the driver hands it on."""
    header = ContentHeader(body_size=len(body), properties=Basic.Properties(**properties))
    return DeliveredMessage(Basic.Deliver(delivery_tag=tag), header, body, None)  # type: ignore[arg-type]


# --- properties that cannot be decoded --------------------------------------------------------------------------------


def test_properties_nested_too_deep_are_unreadable() -> None:
    """The decoder survives what its own recursion does not, and keeps the bytes."""
    survive_strangers()
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQ", 60, 0, 4) + nested(DEEP))
    strange = unreadable(header)
    assert strange is not None
    assert (header.body_size, strange.raw) == (4, nested(DEEP))
    assert strange.why


async def quarantine(publish: Callable[[Any], Awaitable[Published]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put one message into quarantine; what was published."""
    monkeypatch.setattr(quarantining, "PAUSE_CAP_SECONDS", 0.001)
    sent: list[Any] = []

    class Publisher:
        async def publish(self, message: Any, queue: str) -> Published:
            sent.append(message)
            return await publish(message)

    taking = Intake(SETTINGS, None, Publisher(), Recorder())  # type: ignore[arg-type]
    message = delivered(b"bad", headers={"theirs": 1}, content_type="text/x", **PROPERTIES)
    await taking.quarantine(message, InvalidMessageError("unparsable", "no"))
    return sent


async def test_a_passing_error_costs_the_quarantine_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once may succeed: the second try still has all that came."""
    tries = 0

    async def publish(message: Any) -> Published:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("a moment")
        return Published.CONFIRMED

    last = (await quarantine(publish, monkeypatch))[-1]
    assert (last.headers["theirs"], last.content_type, tries) == (1, "text/x", 2)
    assert {name: getattr(last, name) for name in PROPERTIES} == PROPERTIES


async def test_what_cannot_even_be_built_goes_without_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers that break the making of the message are left out after two tries; the body arrives and the session lives."""
    build, tries = quarantining.quarantined_message, 0

    def fragile(body: bytes, headers: Any, *given: Any, **named: Any) -> Any:
        nonlocal tries
        tries += 1
        if headers:
            raise RecursionError("too deep")
        return build(body, headers, *given, **named)

    async def publish(message: Any) -> Published:
        return Published.CONFIRMED

    monkeypatch.setattr(quarantining, "quarantined_message", fragile)
    [only] = await quarantine(publish, monkeypatch)
    assert (only.body, only.headers["x-invalid-reason"], tries) == (b"bad", "unparsable", 3)
    assert "theirs" not in only.headers
    assert {getattr(only, name) for name in PROPERTIES} == {None}


# --- acknowledging ----------------------------------------------------------------------------------------------------


class Narrow:
    """A channel as the driver has it, with room for ten words on their way, and a broker that knows each delivery once."""

    def __init__(self, amount: int) -> None:
        self.open = set(range(1, amount + 1))
        self.unknown: list[int] = []
        self._words: asyncio.Queue[Any] = asyncio.Queue(10)

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        written = asyncio.get_running_loop().create_future()
        await self._words.put((tag, multiple, written))
        if wait:
            await written

    async def broker(self) -> None:
        while True:
            tag, multiple, written = await self._words.get()
            if tag not in self.open:
                self.unknown.append(tag)
            self.open -= {each for each in self.open if each <= tag} if multiple else {tag}
            written.set_result(None)
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(5))
async def test_no_delivery_is_acknowledged_twice(seed: int) -> None:
    """However many end at once and in whatever order, over a wire that is slower than they are: the broker would close the channel."""
    rng, amount = random.Random(seed), 300
    channel, arrived = Narrow(amount), asyncio.Queue[Any]()
    for tag in range(amount):
        arrived.put_nowait(tag)
    tags, parts = rng.sample(range(1, amount + 1), amount), []
    while tags:
        size = rng.choice([1, 1, 5, 30])
        parts.append(tags[:size])
        tags = tags[size:]
    broker = asyncio.create_task(channel.broker())
    async with asyncio.TaskGroup() as helpers:
        session = _Session(None, channel, arrived, helpers)  # type: ignore[arg-type]
        for part in parts:
            helpers.create_task(session._acknowledge(part))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
    broker.cancel()
    assert channel.unknown == []
    assert channel.open == set()
    await asyncio.wait_for(arrived.join(), 60)


async def test_the_acknowledgement_comes_after_the_commit(app: Redrive, url: str, broker: Broker) -> None:
    """At the moment in which it is sent, somebody else can read every row of its batch."""
    relay = Relay(app, broker.settings())
    arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
    for number in range(1, 4):
        arrived.put_nowait(delivered(retry(f"m-{number}", "q").SerializeToString(), number))
    seen: list[tuple[int, bool, list[str]]] = []
    other = Redrive(url)

    class Channel:
        async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
            seen.append((tag, multiple, [each["message_id"] for each in await rows(other)]))

    async with app, other:
        taking = asyncio.create_task(relay._intake.take(Channel(), arrived))  # type: ignore[arg-type]
        await asyncio.wait_for(arrived.join(), 60)
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
    assert seen == [(3, True, ["m-1", "m-2", "m-3"])]


async def test_a_quarantine_is_told_after_its_acknowledgement() -> None:
    """What cannot be told, under a full disk, must not come again."""
    steps: list[str] = []

    class Publisher:
        async def publish(self, message: Any, queue: str) -> Published:
            steps.append("published")
            return Published.CONFIRMED

    class Channel:
        async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
            steps.append("acknowledged")

    class Told(Recorder):
        def invalid(self, reason: str, detail: str) -> None:
            steps.append(f"told {reason}")

    arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
    arrived.put_nowait(delivered(b"\xff"))
    taking = asyncio.create_task(
        Intake(SETTINGS, None, Publisher(), Told()).take(Channel(), arrived)  # type: ignore[arg-type]
    )
    await asyncio.wait_for(arrived.join(), 60)
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking
    assert steps == ["published", "acknowledged", "told unparsable"]


# --- what the database says -------------------------------------------------------------------------------------------

ROW = "INSERT INTO retry_queue (message_id, original_payload, original_queue, headers, retry_count, created_at, updated_at)"
VALUES = f"{ROW} VALUES ('m', '', 'q', '{{}}', %s, '2030-01-01T00:00:00Z', '2030-01-01T00:00:00Z')"
REFUSED = {
    "postgres": {"check": VALUES % "-1", "range": VALUES % "99999999999", "limit": "SELECT repeat('x', 2000000000)"},
    "sqlite": {"check": VALUES % "-1"},
}
WAITS = {
    "postgres": {
        "statement timeout": "SET LOCAL statement_timeout = 1; SELECT pg_sleep(1)",
        "lock timeout": "SET LOCAL lock_timeout = 1; LOCK TABLE retry_queue",
        "missing table": "SELECT 1 FROM nowhere",
        "missing right": "SET LOCAL ROLE pg_monitor; DELETE FROM retry_queue",
        "serialization": "DO $$ BEGIN RAISE serialization_failure; END $$",
    },
    "sqlite": {"missing table": "SELECT 1 FROM nowhere"},
}


async def failing(app: Redrive, statements: str) -> Exception:
    """The error of the real database for these statements, as the relay would get it."""

    def run(connection: Connection) -> None:
        for statement in statements.split("; ") if "$$" not in statements else [statements]:
            connection.execute(text(statement)).close()

    try:
        if "lock_timeout" in statements:
            async with (await app.lanes["retry_queue"].ledger()).transaction() as held:
                await held.connection.execute(text("LOCK TABLE retry_queue"))
                await app.database.write(run)
        else:
            await app.database.write(run)
    except Exception as error:
        return error
    raise AssertionError(f"the database did it: {statements}")


async def test_only_what_a_message_holds_can_be_refused(
    app: Redrive, store: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time limits, locks and what is missing make good messages wait; only what can never be stored comes back as refused."""
    monkeypatch.setattr(intake, "PAUSE_CAP_SECONDS", 0.001)
    Relay(app, broker.settings())
    async with app:
        errors = {
            (waits, name): await failing(app, statements)
            for waits, kinds in ((False, REFUSED[store]), (True, WAITS[store]))
            for name, statements in kinds.items()
        }
    found = {}
    for (waits, name), error in errors.items():
        told, tries = Recorder(), 0

        class Store:
            async def store(self, _: Any, error: Exception = error) -> Stored:
                nonlocal tries
                tries += 1
                if tries <= 3:
                    raise error
                return Stored()

        _, refused = await Intake(SETTINGS, Store(), None, told).store([arrival("m-1")])  # type: ignore[arg-type]
        found[waits, name] = (tries, list(refused), len(told.told))
    assert found == {key: (4, [], 1) if key[0] else (1, ["m-1"], 0) for key in errors}, errors


async def test_a_value_that_the_driver_cannot_encode_is_refused(app: Redrive, store: str, broker: Broker) -> None:
    """The driver of PostgreSQL calls it an error of the interface; it is the message's all the same."""
    relay = Relay(app, broker.settings())
    async with app:
        strange = arrival("m-1", retry_count="many" if store == "postgres" else -1)
        delay = relay._store.delay
        relay._store.delay = lambda one, _: delay(one, 0)  # type: ignore[method-assign]
        stored, refused = await relay._intake.store([strange, arrival("m-2")])
        assert list(refused) == ["m-1"]
        assert [one.message_id for _, one, _ in stored.new] == ["m-2"]
