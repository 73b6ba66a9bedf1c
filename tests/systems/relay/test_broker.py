"""A broker that goes away at the worst moments, behind a door that the test shuts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import CapturingLoggerFactory  # type: ignore[attr-defined]

from redrive import Redrive
from redrive.observe.logs import LogObserver
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay import broker as links
from redrive.systems.relay.quarantine import quarantined_message
from redrive.systems.relay.work import retry_message, review_message

from .kit import Broker, amount_of, retry, row, rows, running, until
from .proxy import Proxy


@pytest.fixture
async def proxy(rabbitmq: str) -> AsyncIterator[Proxy]:
    async with Proxy(rabbitmq) as made:
        yield made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again sooner than in real life."""
    monkeypatch.setattr(links, "PAUSE_CAP_SECONDS", 0.1)


def through(proxy: Proxy, broker: Broker, **given: object) -> RelaySettings:
    """The relay goes through the door, the test does not."""
    return broker.settings(rabbitmq_url=proxy.url, **given)


async def test_a_confirm_that_is_cut(app: Redrive, broker: Broker, proxy: Proxy) -> None:
    """The message is sent again until it is confirmed: never lost, perhaps there twice, charged once."""
    relay = Relay(app, settings := through(proxy, broker, base_delay_ms=300, max_delay_ms=300))
    queue = await broker.queue()
    async with running(app, relay):
        await broker.send(settings, *(retry(f"m-{n}", queue) for n in range(20)))
        await until(lambda: _amount(app, 20), "all are stored")
        proxy.hush()
        await until(lambda: _more_than_confirmed(broker, queue, relay), "the broker has one that it cannot confirm")
        await proxy.cut()
        await proxy.mend()
        await until(lambda: _all(app, "retried"), "all are confirmed")
        came = await broker.take(queue, await broker.depth(queue))
        ids = [message.headers["x-message-id"] for message in came]
        assert set(ids) == {f"m-{n}" for n in range(20)}
        assert len(ids) > 20, "nothing was cut: this test shows nothing"
        assert {each["retry_count"] for each in await rows(app)} == {1}
        assert {message.headers["x-retry-count"] for message in came} == {1}


async def test_a_confirm_that_never_comes(
    app: Redrive, broker: Broker, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it counts as cut and the message steps back, uncharged; the connection stays, for others use it."""
    monkeypatch.setattr(links, "CONFIRM_SECONDS_MAX", 0.3)
    relay = Relay(app, settings := through(proxy, broker, base_delay_ms=300, max_delay_ms=300))
    queue = await broker.queue()
    cut: list[object] = []
    async with running(app, relay):
        monkeypatch.setattr(relay._publisher, "_cut", lambda message, _: cut.append(message.headers["x-message-id"]))
        connections = proxy.connections
        await broker.send(settings, retry("m-1", queue))
        await until(lambda: _amount(app, 1), "it is stored")
        proxy.hush()
        await until(lambda: _says(app, "unconfirmed"), "its slot is free again")
        found = await row(app, "m-1")
        assert (found["status"], found["retry_count"], set(cut)) == ("pending", 0, {"m-1"})
        await proxy.mend()
        await until(lambda: _all(app, "retried"), "it is confirmed at last")
        assert proxy.connections == connections
        assert len(await broker.take(queue, 2)) == 2, "it may arrive twice, and that was counted"


async def _says(app: Redrive, word: str) -> bool:
    return word in ((await row(app, "m-1"))["last_error"] or "")


async def test_a_driver_that_cancels_what_it_gives_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A declaration that the driver cancels with its connection ends nobody; that somebody is to end is heard."""
    given_up = asyncio.Event()

    async def declare(*_: object) -> None:
        if given_up.is_set():
            raise asyncio.CancelledError("the connection is given up")
        await asyncio.sleep(60)

    monkeypatch.setattr(links, "declare", declare)
    publisher = links.Publisher(broker.url, "p", lambda *_: None, queues=[], cut=lambda *_: None)
    publisher._connection = object()  # type: ignore[assignment]
    ending = asyncio.create_task(publisher.declare_again("q"))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    given_up.set()
    await asyncio.create_task(publisher.declare_again("q"))


@pytest.mark.parametrize("then", ["goes on", "fails"])
async def test_a_driver_that_keeps_a_cancellation_to_itself(broker: Broker, then: str) -> None:
    """A link that is stopped while the driver makes the connection ends, though the driver says nothing of it."""
    opening = asyncio.Event()

    class Deaf(links.Link):
        async def _open(self, *_: object) -> None:
            opening.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            if then == "fails":
                raise ConnectionError

    said: list[bool] = []
    running = asyncio.create_task(Deaf(broker.url, "deaf", lambda _, up, __: said.append(up)).run())
    await opening.wait()
    running.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([running])
    assert running.cancelled()
    assert not said


async def test_a_broker_that_is_away(app: Redrive, broker: Broker, proxy: Proxy) -> None:
    """What is due waits for it inside its slot: nothing is charged, nothing is tried in vain, and it all goes out when it is back."""
    relay = Relay(app, settings := through(proxy, broker))
    queue = await broker.queue()
    async with running(app, relay):
        assert await relay.checks() == {"rabbitmq": True}
        await broker.send(settings, *(retry(f"m-{n}", queue) for n in range(10)))
        await until(lambda: _amount(app, 10), "all are stored")
        await proxy.cut()
        await until(lambda: _unwell(relay), "it is noticed")
        await broker.send(settings, retry("later", queue))
        await asyncio.sleep(0.5)
        assert await amount_of(app) == 10, "what arrives meanwhile stays with the broker"
        waiting = [each for each in await rows(app) if each["status"] == "pending"]
        attempts = [one for each in waiting for one in await relay.lane.attempts(each["id"])]
        assert attempts == []
        await proxy.mend()
        await until(lambda: _all(app, "retried", 11), "all went out")
        assert await relay.checks() == {"rabbitmq": True}


async def test_a_broker_that_is_not_there_yet(app: Redrive, broker: Broker, proxy: Proxy) -> None:
    """A relay that starts before its broker is not ready, says so, and begins when it comes."""
    relay = Relay(app, settings := through(proxy, broker))
    queue = await broker.queue()
    await proxy.cut()
    async with running(app, relay, connected=False):
        await asyncio.sleep(0.2)
        assert not relay.ready
        assert await relay.checks() == {"rabbitmq": False}
        await proxy.mend()
        await until(lambda: relay.ready, "it is ready")
        await broker.send(settings, retry("m-1", queue))
        await broker.take(queue)


async def test_one_line_for_each_change(url: str, broker: Broker, proxy: Proxy) -> None:
    """Going and coming back are told once for each connection, however often it was tried, and without secrets."""
    factory = CapturingLoggerFactory()
    structlog.configure(logger_factory=factory, processors=[], cache_logger_on_first_use=False)
    try:
        app = Redrive(url, observers=[LogObserver()], durable=False)
        relay = Relay(app, through(proxy, broker))
        async with running(app, relay):
            await proxy.cut()
            await until(lambda: _unwell(relay), "it is noticed")
            await asyncio.sleep(0.6)
            await proxy.mend()
            await until(lambda: _well(relay), "it is back")
    finally:
        structlog.reset_defaults()
    told = [call.kwargs for call in factory.logger.calls]
    for link in ("retry-scheduler-consumer", "retry-scheduler-publisher"):
        assert [one["event"] for one in told if one.get("link") == link] == [
            "broker_connected",
            "broker_away",
            "broker_connected",
        ]
    assert {one["system"] for one in told if "link" in one} == {"relay"}
    assert "guest" not in str(told)


async def test_a_stop_while_the_broker_is_away(app: Redrive, broker: Broker, proxy: Proxy) -> None:
    """What waits for the broker is released when the worker stops: due at once, nothing charged."""
    relay = Relay(app, settings := through(proxy, broker, base_delay_ms=300, max_delay_ms=300))
    queue = await broker.queue()
    async with running(app, relay):
        await broker.send(settings, retry("m-1", queue))
        await until(lambda: _amount(app, 1), "it is stored")
        await proxy.cut()
        await until(lambda: _claimed(app), "it is due and held")
    async with app:
        found = await row(app, "m-1")
        assert (found["status"], found["retry_count"], found["lease_until"]) == ("pending", 0, None)
        assert [one.outcome for one in await relay.lane.attempts(found["id"])] == ["released"]


async def _amount(app: Redrive, amount: int) -> bool:
    return await amount_of(app) == amount


async def _claimed(app: Redrive) -> bool:
    return (await row(app, "m-1"))["lease_until"] is not None


async def _all(app: Redrive, status: str, amount: int | None = None) -> bool:
    found = await rows(app)
    return {each["status"] for each in found} == {status} and amount in (None, len(found))


async def _more_than_confirmed(broker: Broker, queue: str, relay: Relay) -> bool:
    outgoing = relay._publisher._outgoing
    assert outgoing is not None
    return await broker.depth(queue) > outgoing._tag - len(outgoing._waiting)


async def _well(relay: Relay) -> bool:
    return (await relay.checks())["rabbitmq"]


async def _unwell(relay: Relay) -> bool:
    return not (await relay.checks())["rabbitmq"]


async def test_a_lost_confirm_names_its_message(url: str, broker: Broker) -> None:
    """A retry and a review message are told with their id; a review message whose id AMQP cannot carry, and bad input, without."""
    factory = CapturingLoggerFactory()
    structlog.configure(logger_factory=factory, processors=[], cache_logger_on_first_use=False)
    try:
        app = Redrive(url, observers=[LogObserver()], durable=False)
        relay = Relay(app, broker.settings())
        row = {"original_queue": "q", "max_retries": 3, "error_reason": "", "headers": {}, "content_type": None}
        for key in ("m-1", "ü" * 200):
            task = SimpleNamespace(key=key, failures=3, payload=row | {"original_payload": b""})
            for made in (retry_message(task, "s"), review_message(task)):  # type: ignore[arg-type]
                relay._confirm_lost(made, "q")
        relay._confirm_lost(quarantined_message(b"", {}, None, reason="r", detail="d"), "q")
        await app.close()
    finally:
        structlog.reset_defaults()
    told = [call.kwargs.get("message_id") for call in factory.logger.calls]
    assert told == ["m-1", "m-1", "ü" * 200, None, None]
