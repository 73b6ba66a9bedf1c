"""What arrives is stored once, acknowledged after that, and never dropped; with a real broker and a real database."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import aio_pika
import pytest
from sqlalchemy import Connection, text, update

from redrive import Filter, Redrive, State
from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.errors import LedgerAwayError
from redrive.systems.relay import Relay, intake
from redrive.systems.relay import broker as links
from redrive.systems.relay.deliveries import ChannelSession
from redrive.systems.relay.intake import RelayIntake
from redrive.systems.relay.logs import RelayMetrics
from redrive.systems.relay.system import LEASE
from redrive.systems.relay.tables import retry_queue
from redrive.systems.relay.values import Stored

from .kit import Broker, Recorder, amount_of, arrival, retry, row, rows, running, until
from .test_frames import Deep
from .test_message import POISON


@pytest.fixture
async def relay(app: Redrive, broker: Broker) -> Any:
    """A relay whose loops do not run: the test makes each step itself."""
    made = Relay(app, broker.settings(base_delay_ms=1, max_delay_ms=1))
    async with app:
        yield made


async def claim(relay: Relay) -> Any:
    """Claim the one row when it is due, as a worker does before it publishes."""
    ledger = await relay.lane.ledger()
    while not (claimed := await ledger.claim(1, LEASE)):
        await asyncio.sleep(0.005)
    return claimed[0]


async def settle(relay: Relay, claimed: Any) -> None:
    """Write that it was published."""
    await (await relay.lane.ledger()).settle([decide(claimed, Done(), relay.policy)], worker="w")


async def test_a_message_that_comes_back_before_its_settlement(app: Redrive, broker: Broker) -> None:
    """It is neither acknowledged nor dropped while its row is being published, and is stored when the claim has ended.

    A consumer may fail the republished message and send it back before our settlement is written. Taken for a duplicate it would
    be lost: the settlement still to come ends the row.
    """
    relay = Relay(app, settings := broker.settings(base_delay_ms=1, max_delay_ms=1))
    async with app:
        await relay._intake.store([arrival("m-1")])
        claimed = await claim(relay)
        stopped = asyncio.Event()
        intake = asyncio.create_task(relay.run(stopped))  # the intake alone: no worker settles anything here
        try:
            await until(lambda: relay.ready, "the queues are there")
            await broker.send(settings, retry("m-1", "q", b"newer", retry_count=1), retry("m-2", "q"))
            await until(lambda: _stored(app, 2), "the other message is stored meanwhile")
            await asyncio.sleep(0.3)
            assert await broker.depth(settings.retry_queue) == 0
            found = await row(app, "m-1")
            assert (found["status"], found["original_payload"]) == ("pending", b"p")
            assert found["lease_until"] is not None
            await settle(relay, claimed)
            await until(lambda: _is(app, "m-1", "pending", 1), "it waits again")
            assert (await row(app, "m-1"))["original_payload"] == b"newer"
        finally:
            stopped.set()
            await intake
            await relay.close()
        await until(lambda: _depth(broker, settings.retry_queue, 0), "nothing was left unacknowledged")


async def test_what_is_held_is_not_acknowledged(app: Redrive, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that ends while it holds a message leaves it to the broker."""
    monkeypatch.setattr(links, "FINISH_SECONDS_MAX", 0.2)
    relay = Relay(app, settings := broker.settings(base_delay_ms=1, max_delay_ms=1))
    async with app:
        await relay._intake.store([arrival("m-1")])
        await claim(relay)
        stopped = asyncio.Event()
        intake = asyncio.create_task(relay.run(stopped))
        await until(lambda: relay.ready, "the queues are there")
        await broker.send(settings, retry("m-1", "q", retry_count=1), retry("m-2", "q"))
        await until(lambda: _stored(app, 2), "the other message is stored")
        stopped.set()
        await intake
        await relay.close()
        await until(lambda: _depth(broker, settings.retry_queue, 1), "the broker has it again")


async def _stored(app: Redrive, amount: int) -> bool:
    return await amount_of(app) == amount


async def _is(app: Redrive, message_id: str, status: str, count: int) -> bool:
    found = await row(app, message_id)
    return (found["status"], found["retry_count"], found["lease_until"]) == (status, count, None)


async def _depth(broker: Broker, queue: str, amount: int) -> bool:
    return await broker.depth(queue) == amount


@pytest.mark.every_store
async def test_each_state_of_a_row(relay: Relay, app: Redrive) -> None:
    """New, waiting, being published, published, failed and closed by a person: each kind of row takes its message in its own way."""
    ids = ("new", "waiting", "held", "retried", "failed", "resolved")
    await relay._intake.store([arrival(one, retry_count=1) for one in ids if one != "new"])
    ledger = await relay.lane.ledger()
    async with ledger.transaction() as transaction:
        for statement in (
            "UPDATE retry_queue SET status = 'retried', retry_count = 2, next_retry_at = NULL WHERE message_id = 'retried'",
            "UPDATE retry_queue SET status = 'failed', retry_count = 9, next_retry_at = NULL WHERE message_id = 'failed'",
            "UPDATE retry_queue SET status = 'resolved', next_retry_at = NULL, last_error = 'old' WHERE message_id = 'resolved'",
            "UPDATE retry_queue SET next_retry_at = NULL WHERE message_id = 'held'",
        ):
            await transaction.connection.execute(text(statement))
    held = await ledger.claim(1, LEASE)
    assert [one.task.key for one in held] == ["held"]
    back = [arrival(one, retry_count=1, payload=b"again", error_reason="again", queue="other") for one in ids]
    stored = await relay._intake.store(back)
    assert [one.message_id for _, one, _ in stored.new] == ["new"]
    assert [one.message_id for one in stored.known] == ["waiting"]
    assert [one.message_id for one in stored.held] == ["held"]
    assert sorted(one.message_id for _, one, _ in stored.returned) == ["failed", "resolved", "retried"]
    now = {each["message_id"]: each for each in await rows(app)}
    assert {name: each["status"] for name, each in now.items()} == dict.fromkeys(ids, "pending")
    counts = {name: each["retry_count"] for name, each in now.items()}
    assert counts == {"new": 1, "waiting": 1, "held": 1, "retried": 2, "failed": 9, "resolved": 1}
    contents = {
        name: (each["original_payload"], each["error_reason"], each["original_queue"]) for name, each in now.items()
    }
    for name in ids:
        fresh = name not in ("waiting", "held")
        assert contents[name] == ((b"again", "again", "other") if fresh else (b"p", "", "q")), name
    assert now["resolved"]["last_error"] is None
    due = {name: each["next_retry_at"] for name, each in now.items()}
    assert due["failed"] <= datetime.now(UTC), "its retries are spent: no wait"


@pytest.mark.every_store
async def test_headers_and_content_type_are_kept_over_all_rounds(relay: Relay, app: Redrive) -> None:
    """An upstream that sends the bare message again loses neither; what it does send is newer. The trace goes on with them."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    first = {"tenant": "a", "step": 1, "traceparent": trace}
    await relay._intake.store([arrival("m-1", headers=first, content_type="text/csv")])
    for round_, (headers, content_type) in enumerate(
        [({}, None), ({"step": 2}, None), ({"step": 2}, "text/plain")], start=1
    ):
        claimed = await claim(relay)
        assert claimed.task.trace == trace
        await settle(relay, claimed)
        await relay._intake.store([arrival("m-1", retry_count=round_, headers=headers, content_type=content_type)])
        found = await row(app, "m-1")
        assert (found["status"], found["retry_count"]) == ("pending", round_)
        assert found["headers"] == first | headers
        assert found["content_type"] == (content_type or "text/csv")


@pytest.mark.every_store
async def test_the_same_message_many_times_at_once(app: Redrive, broker: Broker) -> None:
    """From two producers at once it is one row and goes out once; a forgotten count does not start it anew."""
    settings = broker.settings(base_delay_ms=300, max_delay_ms=300)
    relay = Relay(app, settings)
    queue = await broker.queue()
    out: list[int] = []

    async def fail_and_forget(message: Any) -> None:
        out.append(message.headers["x-retry-count"])
        await asyncio.gather(*(broker.send(settings, retry("m-1", queue, retry_count=0)) for _ in range(5)))

    async with running(app, relay):
        await broker.consume(queue, fail_and_forget)
        async with await aio_pika.connect(broker.url) as second:
            channel = await second.channel()
            twin = retry("m-1", queue).SerializeToString()
            await asyncio.gather(
                *(broker.send(settings, retry("m-1", queue)) for _ in range(50)),
                *(channel.default_exchange.publish(aio_pika.Message(twin), settings.retry_queue) for _ in range(50)),
            )
        [review] = await broker.take(settings.manual_review_queue)
        assert b'"m-1"' in review.body
        await asyncio.sleep(0.5)
        assert len(await rows(app)) == 1
        found = await row(app, "m-1")
        assert found["retry_count"] == 3
    assert out == [1, 2, 3]


@pytest.mark.every_store
@pytest.mark.long_on("postgres")
async def test_two_relays_side_by_side(url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two relays on one queue and one database share the work: each message, sent twice, is one row and goes out once.

    None is due before all have arrived: a twin that comes when the first has gone out is a new failure.
    """
    settings = broker.settings(base_delay_ms=3_600_000, max_delay_ms=3_600_000)
    queue = await broker.queue()
    one, two = Redrive(url, durable=False), Redrive(url, durable=False)
    amount, arrived = 300, 0
    store = RelayIntake.store

    async def counted(self: RelayIntake, arrivals: Sequence[Any], *given: Any) -> Any:
        nonlocal arrived
        stored = await store(self, arrivals, *given)
        arrived += len(arrivals)
        return stored

    monkeypatch.setattr(RelayIntake, "store", counted)
    async with running(one, Relay(one, settings)), running(two, Relay(two, settings)):
        await broker.send(settings, *(retry(f"m-{n // 2}", queue) for n in range(2 * amount)))
        await until(lambda: arrived >= 2 * amount, "all have arrived")
        due = update(retry_queue).values(next_retry_at=datetime.now(UTC))
        await one.database.write(lambda connection: connection.execute(due))
        for app in (one, two):
            app.database.wake("retry_queue")
        came = await broker.take(queue, amount)
        assert len({message.headers["x-message-id"] for message in came}) == amount
        await until(lambda: _all_retried(one, amount), "all are written down")
        assert await broker.depth(queue) == 0


async def _all_retried(app: Redrive, amount: int) -> bool:
    return (await app.lanes["retry_queue"].counts())[State.DONE] == amount


async def test_a_database_that_is_away(app: Redrive, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored and nothing acknowledged while it is away; it goes on where it was."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    store = relay._intake.store
    away = True
    asked = 0

    async def maybe(arrivals: Any, *given: Any) -> Stored:
        nonlocal asked
        asked += 1
        if away:
            raise LedgerAwayError("gone for a moment")
        return await store(arrivals, *given)

    acknowledged: list[int] = []
    acknowledge = ChannelSession._acknowledge

    async def spied(session: ChannelSession, tags: Any) -> None:
        acknowledged.extend(told := list(tags))
        await acknowledge(session, told)

    monkeypatch.setattr(ChannelSession, "_acknowledge", spied)
    monkeypatch.setattr(relay._intake, "store", maybe)
    async with running(app, relay):
        await broker.send(settings, *(retry(f"m-{n}", queue) for n in range(30)))
        await until(lambda: asked >= 3, "it is asked again")
        assert await rows(app) == []
        assert acknowledged == []
        away = False
        assert len(await broker.take(queue, 30)) == 30
        assert len(acknowledged) == 30


@pytest.mark.every_store
async def test_one_that_cannot_be_stored(app: Redrive, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that the database refuses is quarantined, and keeps none of its batch from being stored."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    row_of = relay._intake._row
    monkeypatch.setattr(
        relay._intake,
        "_row",
        lambda one: row_of(one) | ({"retry_count": -1} if one.message_id == "m-7" else {}),
    )
    async with running(app, relay):
        await broker.send(settings, *(retry(f"m-{n}", queue) for n in range(20)))
        assert len(await broker.take(queue, 19)) == 19
        [refused] = await broker.take(settings.invalid_queue)
        assert refused.headers["x-invalid-reason"] == "cannot_be_stored"
        assert refused.body == retry("m-7", queue).SerializeToString()


@pytest.mark.every_store
async def test_what_is_stored_is_told_though_the_rest_is_tried_again(
    app: Redrive, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away between what is new and what was there: the new are new also when it is back, so somebody wakes up for them."""
    monkeypatch.setattr(intake, "PAUSE_CAP_SECONDS", 0.001)
    relay = Relay(app, broker.settings())
    store_again, tries = relay._intake._store_again, 0

    def away_at_first(*given: Any) -> Stored:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise LedgerAwayError("gone for a moment")
        return store_again(*given)

    monkeypatch.setattr(relay._intake, "_store_again", away_at_first)
    async with app:
        await relay._intake.store([arrival("there")])
        stored, refused = await relay._intake.keep([arrival("new-1"), arrival("there"), arrival("new-2")])
        assert [one.message_id for _, one, _ in stored.new] == ["new-1", "new-2"]
        assert [one.message_id for one in stored.known] == ["there"]
        assert (refused, tries) == ({}, 2)


class Strange(datetime):
    """An instant that no calendar has, and that a broker hands on all the same."""

    def timestamp(self) -> float:
        return 2.0**62


async def test_poison_is_quarantined_with_its_bytes_and_its_reason(app: Redrive, broker: Broker) -> None:
    """Every kind of bad input, properties that the driver cannot decode among them, ends in its own queue; good messages pass."""
    relay = Relay(app, settings := broker.settings())
    queue, copies = await broker.queue(), await broker.queue("copies")
    odd = Strange(2020, 1, 1, tzinfo=UTC)
    kinds = [
        (reason, body, {"content_type": "application/x-protobuf", "headers": {}, "content_encoding": None} | given)
        for reason, body, given in POISON.values()
    ]
    kinds.append(("bad_properties", b"time out of mind", {"headers": {"when": odd}, "content_type": "x"}))
    expected = {}
    async with running(app, relay):
        for at, (reason, body, given) in enumerate(kinds):
            if reason == "bad_headers":
                given = given | {"headers": {"x": "y" * 70_000}}
            given = given | {
                "headers": given["headers"] | ({} if "when" in given["headers"] else {"at": at, "CC": [copies]})
            }
            if reason != "bad_properties":
                expected[at] = (reason, body)
            await broker.put(settings.retry_queue, body, **given)
            await broker.send(settings, retry(f"fine-{at}", queue))
        await broker.channel.default_exchange.publish(Deep(b"too deep"), settings.retry_queue)
        await broker.take(queue, len(kinds))
        bad = await broker.take(settings.invalid_queue, len(kinds) + 1)
        [deep] = [message for message in bad if message.body == b"too deep"]
        assert deep.headers["x-invalid-reason"] == "bad_properties"
        bad.remove(deep)
        found = {message.headers.get("at"): (message.headers["x-invalid-reason"], message.body) for message in bad}
        assert found.pop(None) == ("bad_properties", b"time out of mind")
        assert found == expected
        [strange] = [message for message in bad if message.headers["x-invalid-reason"] == "bad_properties"]
        assert b"when" in bytes(strange.headers["x-invalid-properties"])  # type: ignore[arg-type]
        assert all(message.headers["x-invalid-detail"] for message in bad)
        assert await broker.depth(settings.retry_queue) == 0
        assert await broker.depth(copies) == len(expected), "the quarantine sends no further copies"


async def test_a_quarantine_that_hangs_holds_nobody(
    app: Redrive, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While bad messages wait for their quarantine the good ones behind them are stored and acknowledged."""
    relay = Relay(app, settings := broker.settings(base_delay_ms=60_000, max_delay_ms=60_000, rabbitmq_prefetch=10))
    opened = asyncio.Event()
    publish = relay._publisher.publish

    async def late(message: Any, queue: str) -> Any:
        await opened.wait()
        return await publish(message, queue)

    monkeypatch.setattr(relay._publisher, "publish", late)
    async with running(app, relay):
        await broker.send(settings, *(b"\xff" for _ in range(5)))
        await broker.send(settings, *(retry(f"m-{n}", "q") for n in range(100)))
        await until(lambda: _stored(app, 100), "ten at a time they all pass, around the five that are stuck")
        await until(lambda: _depth(broker, settings.retry_queue, 0), "and all are acknowledged")
        opened.set()
        await broker.take(settings.invalid_queue, 5)


async def test_the_operators_view(app: Redrive, broker: Broker) -> None:
    """Redriven by a person a failed message starts anew, and one that was closed comes back when it fails again."""
    relay = Relay(app, settings := broker.settings())
    queue = await broker.queue()
    async with running(app, relay):
        await broker.send(settings, retry("m-1", queue, retry_count=3))
        await broker.take(settings.manual_review_queue)
        await until(lambda: _is(app, "m-1", "failed", 3), "it is failed")
        await relay.lane.redrive(Filter(state=State.DEAD), actor="ada", reason="mended")
        [again] = await broker.take(queue)
        assert again.headers["x-retry-count"] == 1
        await until(lambda: _is(app, "m-1", "retried", 1), "it is retried")
        await broker.send(settings, retry("m-1", queue, retry_count=5))
        await until(lambda: _is(app, "m-1", "failed", 5), "it is failed again")
        [task] = (await relay.lane.find(Filter(state=State.DEAD))).items
        await relay.lane.resolve([task.id], State.CANCELLED, actor="ada", reason="refunded")
        assert (await row(app, "m-1"))["status"] == "resolved"
        await broker.send(settings, retry("m-1", queue, retry_count=5))
        await broker.take(settings.manual_review_queue, 2)
        deeds = [deed.act for deed in await relay.lane.deeds(task.id)]
        assert deeds == ["redrive", "return", "resolve", "return"]


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
    relay = Relay(app, broker.settings())
    async with app:
        errors = {
            (waits, name): await failing(app, statements)
            for waits, kinds in ((False, REFUSED[store]), (True, WAITS[store]))
            for name, statements in kinds.items()
        }
    found = {}
    for (waits, name), error in errors.items():
        told, tries = Recorder(), 0

        class Failing(RelayIntake):
            async def store(self, _: Any, __: Any = None, error: Exception = error) -> Stored:
                nonlocal tries
                tries += 1
                if tries <= 3:
                    raise error
                return Stored()

        failing_intake = Failing(app.database, relay.lane, relay.policy, told, RelayMetrics())  # type: ignore[arg-type]
        _, refused = await failing_intake.keep([arrival("m-1")])
        found[waits, name] = (tries, list(refused), len(told.told))
    assert found == {key: (4, [], 1) if key[0] else (1, ["m-1"], 0) for key in errors}, errors


async def test_a_value_that_the_driver_cannot_encode_is_refused(app: Redrive, store: str, broker: Broker) -> None:
    """The driver of PostgreSQL calls it an error of the interface; it is the message's all the same."""
    relay = Relay(app, broker.settings())
    async with app:
        strange = arrival("m-1", retry_count="many" if store == "postgres" else -1)
        delay = relay._intake.delay
        relay._intake.delay = lambda one, _: delay(one, 0)  # type: ignore[method-assign]
        stored, refused = await relay._intake.keep([strange, arrival("m-2")])
        assert list(refused) == ["m-1"]
        assert [one.message_id for _, one, _ in stored.new] == ["m-2"]
