"""What is sent, how it is signed, and what each answer means."""

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import standardwebhooks
import svix
from sqlalchemy import Connection, select

from redrive import Redrive, TransientError
from redrive.systems.triggers import Triggers, endpoints
from redrive.systems.triggers.endpoints import matches, new_secret
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.values import NewEvent
from redrive.systems.triggers.work import retry_after
from redrive.testing import VirtualClock
from tests.breadth import WIDE

from .conftest import House, make_app, settings
from .receiver import Receiver, status

MINUTE = timedelta(minutes=1)
AMOUNT = 700 if WIDE else 100


async def test_what_is_sent(house: House, receiver: Receiver) -> None:
    """A Standard Webhooks body and headers; the same id and bytes on every try, a fresh timestamp."""
    receiver.answer = lambda _: status(500)
    endpoint = await house.endpoint(receiver.url)
    id_ = await house.post(payload='{"n": 1}')
    await house.run()
    await house.run(after=MINUTE)
    first, second = receiver.received
    assert first.json == {"type": "order.made", "timestamp": "2030-01-01T00:00:00.000000Z", "data": {"n": 1}}
    assert first.body == second.body
    for got in (first, second):
        assert got.headers["webhook-id"] == id_
        assert got.headers["content-type"] == "application/json"
        assert got.headers["x-correlation-id"] == "c-1"
        assert abs(int(got.headers["webhook-timestamp"]) - time.time()) < 60
        standardwebhooks.Webhook(endpoint.secret).verify(got.body, got.headers)
        svix.Webhook(endpoint.secret).verify(got.body, got.headers)


@pytest.mark.parametrize("store", ["sqlite"])
async def test_signatures_over_many_deliveries(url: str) -> None:
    """Two independent libraries verify every one, through the real worker, also while secrets are changed."""
    app = Redrive(url, durable=False)
    triggers = Triggers(app, settings())
    secrets: list[str] = []
    verified = Counter[str]()
    failed: list[Exception] = []

    def answer(got: Any) -> str:
        try:
            good = [secret for secret in secrets if _verifies(secret, got)]
            verified[f"{len(good)} of {len(got.headers['webhook-signature'].split())}"] += 1
            assert secrets[-1] in good
            json.loads(got.body)
        except Exception as error:
            failed.append(error)
        return status(200)

    async with app, Receiver(answer) as receiver:
        secrets.append(new_secret())
        values = {"url": receiver.url, "event_types": ["*"], "secret": secrets[0], "policy": {}, "enabled": True}
        endpoint = await triggers.endpoints.create({"user_id": "ada", **values})
        working = asyncio.create_task(app.work())
        for rotation in range(3):
            if rotation:
                secrets.append(new_secret())
                new = {"secret": secrets[-1]}
                assert await triggers.endpoints.change("ada", endpoint.id, new, rotate=True)
            events = [
                NewEvent(
                    user_id="ada",
                    event_type="a",
                    payload=json.dumps({"n": n, "text": "é" * (n % 50)}),
                    correlation_id="c",
                )
                for n in range(AMOUNT)
            ]
            for start in range(0, len(events), 100):
                await triggers.intake.take(events[start : start + 100])
            while len(receiver.received) < AMOUNT * (rotation + 1) and not failed:
                await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await triggers.outgoing.close()
    assert failed == []
    assert verified == {"1 of 1": AMOUNT, "2 of 2": 2 * AMOUNT}


def _verifies(secret: str, got: Any) -> bool:
    """Whether both libraries say so; they never disagree."""
    said = []
    for library in (standardwebhooks, svix):
        try:
            library.Webhook(secret).verify(got.body, got.headers)  # type: ignore[attr-defined]
            said.append(True)
        except (standardwebhooks.WebhookVerificationError, svix.webhooks.WebhookVerificationError):
            said.append(False)
    assert said[0] == said[1]
    return said[0]


async def test_the_old_secret_signs_for_a_day(house: House, receiver: Receiver) -> None:
    """A change of secret leaves time to change over, and the old one ends by itself."""
    endpoint = await house.endpoint(receiver.url)
    new = new_secret()
    await house.triggers.endpoints.change("ada", endpoint.id, {"secret": new}, rotate=True)
    for after, signatures in ((timedelta(0), 2), (timedelta(hours=23), 2), (timedelta(hours=1), 1)):
        house.clock.advance(after)
        await house.post()
        await house.run()
        got = receiver.received[-1]
        assert len(got.headers["webhook-signature"].split()) == signatures
        assert _verifies(new, got)
        assert _verifies(endpoint.secret, got) is (signatures == 2)


ANSWERS = [
    *((code, "delivered") for code in (200, 201, 204, 299)),
    *((code, "retried") for code in (408, 425, 429, 500, 502, 503, 504, 599)),
    *((code, "final") for code in (301, 302, 304, 400, 401, 403, 404, 405, 409, 413, 422, 451)),
]


async def test_what_each_answer_means(house: House, receiver: Receiver, store: str) -> None:
    """2xx is delivered; 408, 425, 429 and 5xx are tried again; anything else is final."""
    answers = (
        ANSWERS if store == "sqlite" else ANSWERS[::4]
    )  # some of each: what an answer means is no matter of the store
    base = receiver.url.removesuffix("/hook")
    receiver.answer = lambda got: status(int(got.path[1:]))
    meaning = {}
    for code, _ in answers:
        endpoint = await house.endpoint(f"{base}/{code}")
        id_ = await house.post()
        await house.run()
        event = await house.event(id_)
        meaning[code] = {"delivered": "delivered", "queued": "retried", "failed": "final"}[event.status]
        assert event.status == "delivered" or str(code) in event.last_error
        await house.triggers.endpoints.delete("ada", endpoint.id)
    assert meaning == dict(answers)


async def test_connection_errors_are_tried_again(house: House, receiver: Receiver) -> None:
    """Nobody there, a connection that is cut, an answer that is not HTTP, a name that has no address."""

    async def fails(url: str) -> str:
        endpoint = await house.endpoint(url)
        id_ = await house.post()
        await house.run()
        event = await house.event(id_)
        assert (event.status, event.retry_attempts) == ("queued", 1), url
        await house.triggers.endpoints.delete("ada", endpoint.id)
        return str(event.last_error)

    assert "ConnectError" in await fails("http://127.0.0.1:1/")
    assert "cannot be resolved" in await fails("http://no-such-name.invalid/")
    for said in (b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"):

        def cut(_: Any, said: bytes = said) -> bytes:
            raise ConnectionError  # after what is written, the receiver closes

        receiver.answer = cut if not said else lambda _, said=said: said
        if said.startswith(b"HTTP"):
            continue
        await fails(receiver.url)
    receiver.answer = lambda _: status(200)
    async with asyncio.timeout(60):
        id_ = await house.post()
    endpoint = await house.endpoint("http://10.0.0.1/")  # refused at connection, final: it will not become public
    id_ = await house.post()
    await house.run()
    event = await house.event(id_)
    assert (event.status, "not a public address" in event.last_error) == ("failed", True)
    assert endpoint.enabled


async def test_retry_after_is_a_floor(house: House, receiver: Receiver) -> None:
    """A longer wait is kept, up to the longest delay; a shorter one changes nothing, in seconds and as a date."""
    for header, wait in (
        ("Retry-After: 600", 600.0), ("Retry-After: 7200", 900.0), ("Retry-After: 5", 60.0), ("Retry-After: soon", 60.0),
    ):  # fmt: skip
        receiver.answer = lambda _, header=header: status(429, header)
        endpoint = await house.endpoint(
            receiver.url
        )  # another one each time: what it asks for holds for all that goes there
        event = await house.event(await _posted(house))
        assert (event.next_retry_at - event.last_retry_at).total_seconds() == wait
        await house.triggers.endpoints.delete("ada", endpoint.id)
    later = retry_after(format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True))
    assert later is not None
    assert timedelta(minutes=59) < later <= timedelta(hours=1)
    assert retry_after("-5") is None
    assert retry_after("Mon, 99 Foo") is None
    assert retry_after("9" * 400) is None


async def test_an_endpoint_may_say_how_long_a_retry_after_may_be(house: House, receiver: Receiver) -> None:
    """`retry_after_max_seconds` of its policy takes the place of the longest delay, in both directions."""
    receiver.answer = lambda _: status(503, "Retry-After: 7200")
    for limit, wait in ((86_400, 7200.0), (3600, 3600.0), (120, 120.0), (0, 60.0)):
        endpoint = await house.endpoint(receiver.url, policy={"retry_after_max_seconds": limit})
        event = await house.event(await _posted(house))
        assert (event.next_retry_at - event.last_retry_at).total_seconds() == wait
        await house.triggers.endpoints.delete("ada", endpoint.id)


async def test_jitter_draws_both_ways(url: str, clock: VirtualClock, receiver: Receiver) -> None:
    """With RETRY_JITTER_PERCENT=10 a minute is 54 to 66 s; some deliveries come earlier than it, and some later."""
    app, triggers = make_app(url, clock, retry_jitter_percent=10, endpoint_breaker_failures=0)
    house = House(app, triggers, clock)
    receiver.answer = lambda _: status(500)
    async with app:
        await house.endpoint(receiver.url)
        ids = await house.post_many(30)
        await house.run()
        events = [await house.event(id_) for id_ in ids]
        await house.triggers.outgoing.close()
    waits = [(event.next_retry_at - event.last_retry_at).total_seconds() for event in events]
    assert 54 <= min(waits) < 60 < max(waits) <= 66


@pytest.mark.every_store
async def test_410_disables_the_endpoint(house: House, receiver: Receiver) -> None:
    """Gone for good: switched off, its owner told, and no later event goes there."""
    receiver.answer = lambda _: status(410)
    endpoint = await house.endpoint(receiver.url)
    id_ = await house.post()
    await house.run()
    assert (await house.event(id_)).status == "failed"
    [now] = await house.triggers.endpoints.of_user("ada")
    assert (now.enabled, now.disabled_reason, now.disabled_at) == (False, "it answered 410 Gone", house.clock.now())
    [notice] = await house.triggers.endpoints.notices("ada")
    assert notice.endpoint_id == endpoint.id
    later = await house.post()
    await house.run()
    assert (await house.event(later)).status == "received"
    # Switched on again, the failed one can be brought back.
    receiver.answer = lambda _: status(200)
    await house.triggers.endpoints.change("ada", endpoint.id, {"enabled": True}, rotate=False)
    await house.redrive(id_)
    await house.run()
    assert (await house.event(id_)).status == "delivered"


def _notices(connection: Connection) -> list[Any]:
    return list(connection.execute(select(t.notices)))


async def test_five_days_of_failures_disable_the_endpoint(house: House, receiver: Receiver) -> None:
    """Only failures for five days: off, and the owner told once. One success in between starts anew."""
    receiver.answer = lambda _: status(500)
    await house.endpoint(receiver.url)

    async def one(after: timedelta) -> Any:
        await house.post()
        await house.run(after=after)
        return (await house.triggers.endpoints.of_user("ada"))[0]

    first = house.clock.now()
    assert (await one(timedelta(0))).failing_since == first
    assert (await one(timedelta(days=4))).enabled
    receiver.answer = lambda _: status(200)
    assert (await one(timedelta(hours=12))).failing_since is None
    receiver.answer = lambda _: status(500)
    assert (await one(timedelta(0))).enabled
    assert (await one(timedelta(days=5) - MINUTE)).enabled
    off = await one(MINUTE)
    assert (off.enabled, off.disabled_reason) == (False, "every delivery has failed for 5 days")
    assert len(await house.triggers.endpoints.notices("ada")) == 1


async def test_an_endpoint_that_recovers_meanwhile_stays_enabled(house: House, receiver: Receiver) -> None:
    """A delivery that began before another one succeeded fails late: what it knew of the endpoint is old by then."""
    receiver.answer = lambda _: status(500)
    await house.endpoint(receiver.url)
    await house.post()
    await house.run()
    house.clock.advance(timedelta(days=6))
    [before] = await house.triggers.endpoints.of_user("ada")
    assert before.failing_since is not None
    receiver.answer = lambda _: status(200)
    await house.run()
    await house.triggers.deliverer._failed(before, TransientError("late"))
    [now] = await house.triggers.endpoints.of_user("ada")
    assert (now.enabled, now.failing_since) == (True, None)
    # The same where it fails again since: that is a new beginning.
    receiver.answer = lambda _: status(500)
    await house.post()
    await house.run()
    await house.triggers.deliverer._failed(before, TransientError("later still"))
    [now] = await house.triggers.endpoints.of_user("ada")
    assert (now.enabled, now.failing_since) == (True, house.clock.now())
    assert await house.triggers.endpoints.notices("ada") == []


async def test_owners_read_their_notices(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest first, their own only, and no more are kept than are shown."""
    monkeypatch.setattr(endpoints, "NOTICES_PER_USER_MAX", 3)
    made = [await house.endpoint(f"http://127.0.0.1:9/{number}") for number in range(5)]
    other = await house.endpoint("http://127.0.0.1:9/other", user="bob")
    for endpoint in (other, *made):
        assert await house.triggers.endpoints.disable(endpoint, "it answered 410 Gone")
    async with house.client(await house.key()) as ada, house.client(await house.key(user="bob")) as bob:
        told = (await ada.get("/v1/notices")).json()["notices"]
        assert [notice["endpoint_id"] for notice in told] == [endpoint.id for endpoint in reversed(made[2:])]
        assert told[0] == {
            "endpoint_id": made[4].id, "timestamp": "2030-01-01T00:00:00.000000Z",
            "message": "the endpoint http://127.0.0.1:9/4 was disabled: it answered 410 Gone",
        }  # fmt: skip
        assert [notice["endpoint_id"] for notice in (await bob.get("/v1/notices")).json()["notices"]] == [other.id]
    async with house.client(await house.key("events:read")) as reader:
        assert (await reader.get("/v1/notices")).status_code == 403
    if house.app.store.keeps_tasks:  # elsewhere they are forgotten after a time, by themselves
        assert len(await house.app.database.read(_notices)) == 4


async def test_deliveries_to_a_disabled_endpoint_fail(house: House, receiver: Receiver) -> None:
    """What waits for an endpoint that was switched off fails with the reason, and can be brought back."""
    endpoint = await house.endpoint(receiver.url)
    id_ = await house.post()
    await house.triggers.endpoints.change("ada", endpoint.id, {"enabled": False}, rotate=False)
    await house.run()
    event = await house.event(id_)
    assert (event.status, "disabled" in event.last_error) == ("failed", True)
    assert receiver.received == []


async def test_retry_all(url: str, clock: VirtualClock, receiver: Receiver) -> None:
    """DELIVERY_RETRY_ALL tries every failure again, also a 404 and a 410; an endpoint may say otherwise for itself."""
    app, triggers = make_app(url, clock, delivery_retry_all=True)
    house = House(app, triggers, clock)
    base = receiver.url.removesuffix("/hook")
    receiver.answer = lambda got: status(int(got.path[1:]))
    async with app:
        for code, policy, expected in ((404, {}, "queued"), (410, {}, "queued"), (404, {"retry_all": False}, "failed")):
            endpoint = await house.endpoint(f"{base}/{code}", policy=policy)
            id_ = await house.post()
            await house.run()
            assert (await house.event(id_)).status == expected
            await house.triggers.endpoints.delete("ada", endpoint.id)
        receiver.answer = lambda _: status(404, "Retry-After: 7200")
        await house.endpoint(f"{base}/404", policy={"retry_after_max_seconds": 86_400})
        event = await house.event(await _posted(house))
        assert event.next_retry_at - event.last_retry_at == timedelta(hours=2)  # a floor, as for any other
        await house.triggers.outgoing.close()


async def _posted(house: House) -> str:
    id_ = await house.post()
    await house.run()
    return id_


async def test_an_endpoint_may_ask_for_fewer_tries(house: House, receiver: Receiver) -> None:
    """`max_retries` of an endpoint holds for its own deliveries."""
    receiver.answer = lambda _: status(500)
    await house.endpoint(receiver.url, policy={"max_retries": 1})
    id_ = await house.post()
    await house.run()
    await house.run(after=MINUTE)
    event = await house.event(id_)
    assert (event.status, event.retry_attempts) == ("failed", 1)
    assert len(receiver.received) == 2


@pytest.mark.parametrize(
    ("pattern", "type_", "fits"),
    [
        ("*", "order.created", True), ("order.*", "order.created", True), ("order.*", "order.", True),
        ("order.*", "order", False), ("order.*", "reorder.created", False), ("*.created", "order.created", True),
        ("order.created", "order.created", True), ("order.created", "order.created2", False),
        ("a*b*c", "a-x-b-y-c", True), ("a*b*c", "a-x-c", False), ("order.c", "orderxc", False),
        ("*" * 100 + "z", "a" * 200, False), ("*a" * 100, "a" * 200, True),
    ],
)  # fmt: skip
def test_wildcards(pattern: str, type_: str, fits: bool) -> None:
    """`*` stands for any text and nothing else has a meaning; a hostile pattern costs no time."""
    started = time.process_time()
    assert matches([pattern], type_) is fits
    assert time.process_time() - started < 1
