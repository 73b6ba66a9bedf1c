"""The API: what it takes, what it answers, and what it refuses."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from redrive.systems.triggers import access
from redrive.systems.triggers.aws import inbox as item_inbox
from redrive.systems.triggers.routes import events as api
from redrive.systems.triggers.sql import inbox as sql_inbox
from redrive.testing import VirtualClock
from tests.http.test_outgoing import HOSTILE

from .conftest import House
from .receiver import Receiver, status


def error(answer: httpx.Response, code: int, word: str) -> dict[str, Any]:
    assert answer.status_code == code, answer.text
    body = answer.json()["error"]
    assert set(body) == {"code", "message", "details", "timestamp", "request_id"}
    assert body["code"] == word
    assert body["request_id"] == answer.headers["X-Request-ID"]
    return body


async def test_post_and_ask(house: House, clock: VirtualClock) -> None:
    """An event is taken with 201 and its status has exactly six fields, times with microseconds and Z."""
    async with house.client(await house.key()) as client:
        made = await client.post("/v1/events", json={"event_type": "order.created", "payload": {"n": 1}})
        assert made.status_code == 201
        assert set(made.json()) == {"event_id", "status", "timestamp"}
        assert made.json()["status"] == "received"
        assert made.json()["timestamp"] == "2030-01-01T00:00:00.000000Z"
        id_ = made.json()["event_id"]
        asked = await client.get(f"/v1/events/{id_}/status")
        assert asked.json() == {
            "event_id": id_, "status": "received", "retry_attempts": 0,
            "last_retry_at": None, "failed_at": None, "next_retry_at": None,
        }  # fmt: skip
        whole = (await client.get(f"/v1/events/{id_}")).json()
        assert (whole["payload"], whole["event_type"]) == ({"n": 1}, "order.created")
        assert whole["correlation_id"] == made.headers["X-Request-ID"]


async def test_the_status_of_an_event_that_fails(house: House, receiver: Receiver, clock: VirtualClock) -> None:
    """The body over HTTP at every step of an event whose deliveries always fail."""
    receiver.answer = lambda _: status(500)
    await house.endpoint(receiver.url)
    async with house.client(await house.key()) as client:
        id_ = (await client.post("/v1/events", json={"event_type": "a", "payload": 1})).json()["event_id"]
        seen = []
        for after in (0, 1, 5, 15):
            await house.run(after=timedelta(minutes=after))
            seen.append((await client.get(f"/v1/events/{id_}/status")).json())
        day = "2030-01-01T00"
        assert seen == [
            {"event_id": id_, "status": "queued", "retry_attempts": 1, "last_retry_at": f"{day}:00:00.000000Z",
             "failed_at": None, "next_retry_at": f"{day}:01:00.000000Z"},
            {"event_id": id_, "status": "queued", "retry_attempts": 2, "last_retry_at": f"{day}:01:00.000000Z",
             "failed_at": None, "next_retry_at": f"{day}:06:00.000000Z"},
            {"event_id": id_, "status": "queued", "retry_attempts": 3, "last_retry_at": f"{day}:06:00.000000Z",
             "failed_at": None, "next_retry_at": f"{day}:21:00.000000Z"},
            {"event_id": id_, "status": "failed", "retry_attempts": 3, "last_retry_at": f"{day}:21:00.000000Z",
             "failed_at": f"{day}:21:00.000000Z", "next_retry_at": None},
        ]  # fmt: skip
        error(await client.post(f"/v1/events/{id_}/ack"), 409, "CONFLICT")
        attempts = (await client.get(f"/v1/events/{id_}/attempts")).json()["attempts"]
        assert [one["number"] for one in attempts] == [4, 3, 2, 1]
        assert [one["delay_seconds"] for one in attempts] == [None, 900.0, 300.0, 60.0]
        [endpoint] = (await client.get("/v1/endpoints")).json()["endpoints"]
        to_it = (await client.get(f"/v1/endpoints/{endpoint['endpoint_id']}/attempts?limit=2")).json()["attempts"]
        assert to_it == attempts[:2]

        receiver.answer = lambda _: status(200)
        back = await client.post(f"/v1/events/{id_}/retry")
        assert back.status_code == 200
        assert (back.json()["status"], back.json()["retry_attempts"]) == ("queued", 0)
        error(await client.post(f"/v1/events/{id_}/retry"), 409, "CONFLICT")
        await house.run()
        assert (await client.get(f"/v1/events/{id_}/status")).json()["status"] == "delivered"
        error(await client.post(f"/v1/events/{id_}/retry"), 409, "CONFLICT")


@pytest.mark.every_store
async def test_the_same_idempotency_key_is_the_same_event(house: House) -> None:
    """One event however often and however many at once it is sent, for each user by itself."""
    async with house.client(await house.key()) as ada, house.client(await house.key(user="bob")) as bob:

        async def send(client: httpx.AsyncClient, key: str) -> httpx.Response:
            body = {"event_type": "order.created", "payload": {"n": 1}}
            return await client.post("/v1/events", json=body, headers={"Idempotency-Key": key})

        answers = await asyncio.gather(*(send(ada, "k1") for _ in range(8)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["event_id"] for answer in answers}) == 1
        assert sorted(answer.headers.get("Idempotent-Replayed", "") for answer in answers) == [""] + ["true"] * 7
        assert (await send(bob, "k1")).json()["event_id"] != answers[0].json()["event_id"]
        assert (await send(ada, "k2")).json()["event_id"] != answers[0].json()["event_id"]
        assert (await ada.get("/v1/inbox")).json()["pagination"]["total_count"] == 2


async def test_a_batch_has_a_result_for_each_item(house: House) -> None:
    """What does not fit is said by its index, the rest is stored."""
    async with house.client(await house.key()) as client:
        good = {"event_type": "a.b", "payload": None, "idempotency_key": "x"}
        items = [good, {"event_type": "no spaces", "payload": 1}, 7, good, {"event_type": "c"}]
        answer = await client.post("/v1/events/batch", json={"events": items})
        assert answer.status_code == 200
        results = answer.json()["results"]
        assert [one["index"] for one in results] == [0, 1, 2, 3, 4]
        assert [one.get("status") for one in results] == ["received", None, None, "received", None]
        assert results[0]["event_id"] == results[3]["event_id"]
        assert {one["error"]["code"] for one in results if "error" in one} == {"VALIDATION_ERROR"}
        error(await client.post("/v1/events/batch", json={"events": [good] * 101}), 400, "VALIDATION_ERROR")
        error(await client.post("/v1/events/batch", json={"events": []}), 400, "VALIDATION_ERROR")


@pytest.mark.every_store
async def test_the_inbox_pages_oldest_first(house: House) -> None:
    """Every event once, in order, with the total from counters; a filter by type has none."""
    async with house.client(await house.key()) as client:
        ids = [await house.post("order.a" if number % 2 else "order.b") for number in range(25)]
        await house.post(user="bob")
        seen, cursor = [], None
        for _ in range(3):
            asked = {"limit": 10} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/v1/inbox", params=asked)).json()
            assert page["pagination"]["total_count"] == 25
            seen += [event["event_id"] for event in page["events"]]
            cursor = page["pagination"]["cursor"]
        assert seen == ids
        assert page["pagination"] == {"limit": 10, "cursor": None, "has_more": False, "total_count": 25}
        assert set(page["events"][0]) == {"event_id", "event_type", "timestamp", "payload"}

        some = (await client.get("/v1/inbox", params={"event_type": "order.a", "limit": 12})).json()
        assert [event["event_id"] for event in some["events"]] == ids[1::2]
        assert some["pagination"] == {"limit": 12, "cursor": None, "has_more": False, "total_count": None}

        for id_ in ids[:5]:
            acked = await client.post(f"/v1/events/{id_}/ack")
            assert (acked.status_code, acked.json()["status"]) == (200, "delivered")
            assert (await client.post(f"/v1/events/{id_}/ack")).json() == acked.json()
        assert (await client.get("/v1/inbox")).json()["pagination"]["total_count"] == 20
        delivered = (await client.get("/v1/inbox?status=delivered")).json()
        assert [event["event_id"] for event in delivered["events"]] == ids[:5]
        assert (await client.delete(f"/v1/events/{ids[0]}")).status_code == 204
        assert (await client.get("/v1/inbox?status=delivered")).json()["pagination"]["total_count"] == 4


async def test_cursors_are_bound_to_user_and_filter(house: House) -> None:
    """A cursor of another user, of another filter, or changed by one letter is refused."""
    async with house.client(await house.key()) as ada, house.client(await house.key(user="bob")) as bob:
        for user in ("ada", "bob"):
            for _ in range(3):
                await house.post(user=user)
        cursor = (await ada.get("/v1/inbox?limit=1")).json()["pagination"]["cursor"]
        assert (await ada.get("/v1/inbox", params={"limit": 1, "cursor": cursor})).status_code == 200
        assert (await ada.get("/v1/inbox", params={"limit": 3, "cursor": cursor})).status_code == 200
        error(await bob.get("/v1/inbox", params={"limit": 1, "cursor": cursor}), 400, "VALIDATION_ERROR")
        for other in ({"status": "failed"}, {"event_type": "order.made"}):
            error(await ada.get("/v1/inbox", params={"cursor": cursor, **other}), 400, "VALIDATION_ERROR")
        for at in range(0, len(cursor), 7):
            forged = cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :]
            answer = await ada.get("/v1/inbox", params={"cursor": forged})
            assert answer.status_code == 400, (at, forged)
        for odd in ("", "%", "é", "a" * 501, "AAAA"):
            error(await ada.get("/v1/inbox", params={"cursor": odd}), 400, "VALIDATION_ERROR")


@pytest.mark.every_store
async def test_retry_by_filter(house: House, receiver: Receiver, clock: VirtualClock) -> None:
    """Failed events come back by type, endpoint and time, as many as asked; a dry run only counts."""
    receiver.answer = lambda _: status(404)
    endpoint = await house.endpoint(receiver.url)
    for number in range(6):
        await house.post("a" if number < 4 else "b")
        await house.run(after=timedelta(minutes=1))
    async with house.client(await house.key()) as client, house.client(await house.key(user="bob")) as bob:

        async def retry(**given: Any) -> Any:
            answer = await client.post("/v1/events/retry", json=given)
            assert answer.status_code == 200, answer.text
            return tuple(answer.json().values())

        assert await retry(dry_run=True) == (6, 0, False)
        assert await retry(event_type="b", dry_run=True) == (2, 0, False)
        assert await retry(endpoint_id=endpoint.id, limit=5, dry_run=True) == (5, 0, True)
        assert await retry(endpoint_id="nobody", dry_run=True) == (0, 0, False)
        late = "2030-01-01T00:05:00Z"
        assert await retry(failed_after=late, dry_run=True) == (2, 0, False)
        assert await retry(failed_before=late, event_type="a", limit=3) == (3, 3, True)
        assert (await bob.post("/v1/events/retry", json={})).json() == {"matched": 0, "retried": 0, "has_more": False}
        receiver.answer = lambda _: status(200)
        await house.run()
        assert (await client.get("/v1/inbox?status=delivered")).json()["pagination"]["total_count"] == 3


async def test_many_are_brought_back_in_blocks(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many deliveries there are, no statement names more than a database takes; all of them come back."""
    assert api.IDS_PER_REDRIVE < 32_767
    monkeypatch.setattr(api, "IDS_PER_REDRIVE", 4)
    blocks = []
    redrive = house.triggers.lane.redrive

    async def counted(where: Any, **given: Any) -> Any:
        blocks.append(len(where.ids))
        return await redrive(where, **given)

    monkeypatch.setattr(house.triggers.lane, "redrive", counted)
    receiver.answer = lambda _: status(404)
    for _ in range(3):
        await house.endpoint(receiver.url)
    ids = [await house.post() for _ in range(3)]
    await house.run()
    async with house.client(await house.key()) as client:
        back = await client.post("/v1/events/retry", json={})
        assert back.json() == {"matched": 3, "retried": 3, "has_more": False}
        assert blocks == [4, 4, 1]
        receiver.answer = lambda _: status(200)
        await house.run()
        assert {(await house.event(id_)).status for id_ in ids} == {"delivered"}


async def test_a_page_ends_early_where_payloads_are_large(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event once, in order, as many at a time as fit; one that is larger than a page comes alone."""
    for store in (sql_inbox, item_inbox):
        monkeypatch.setattr(store, "PAGE_BYTES_MAX", 1000)
    sizes = [400, 400, 400, 2000, 100, 998, 1, 1, 10]
    ids = [await house.post(payload=f'"{"x" * (size - 2)}"' if size > 1 else "1") for size in sizes]
    async with house.client(await house.key()) as client:
        seen, pages, cursor = [], [], None
        while cursor is not None or not pages:
            asked = {"limit": 100} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/v1/inbox", params=asked)).json()
            seen += [event["event_id"] for event in page["events"]]
            pages.append(len(page["events"]))
            cursor = page["pagination"]["cursor"]
            assert page["pagination"]["has_more"] is (cursor is not None)
            assert page["pagination"]["total_count"] == len(ids)
        assert seen == ids
        assert pages == [2, 1, 1, 1, 3, 1]
        few = (await client.get("/v1/inbox?limit=1")).json()
        assert ([event["event_id"] for event in few["events"]], few["pagination"]["has_more"]) == (ids[:1], True)


@pytest.mark.every_store
async def test_text_that_a_database_cannot_store(house: House) -> None:
    """A NUL or half a character in a description is a 400 on both databases, when it is made and when it is changed."""
    endpoint = await house.endpoint("http://127.0.0.1:9/")
    headers = {"Content-Type": "application/json"}
    async with house.client(await house.key()) as client:
        for bad in ("\\u0000", "a\\u0000b", "\\ud800"):
            made = f'{{"url": "http://127.0.0.1:9/", "description": "{bad}"}}'
            error(await client.post("/v1/endpoints", content=made, headers=headers), 400, "VALIDATION_ERROR")
            changed = f'{{"description": "{bad}"}}'
            answer = await client.patch(f"/v1/endpoints/{endpoint.id}", content=changed, headers=headers)
            error(answer, 400, "VALIDATION_ERROR")
        fine = await client.patch(f"/v1/endpoints/{endpoint.id}", json={"description": "the shop\n– ours"})
        assert fine.json()["description"] == "the shop\n– ours"


TIMES_OF_NO_USE = [
    "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00",
    "9999-01-01T00:00:00Z", -1,
]  # fmt: skip


async def test_times_outside_of_the_calendar(house: House) -> None:
    """Times that a database or a calendar cannot hold are a 400, wherever a time is taken."""
    async with house.client(await house.key("admin")) as client:
        key = (await client.post("/v1/keys", json={"user": "eve", "scopes": ["viewer"]})).json()["key_id"]
        for time in TIMES_OF_NO_USE:
            for name in ("failed_after", "failed_before"):
                error(await client.post("/v1/events/retry", json={name: time}), 400, "VALIDATION_ERROR")
            made = {"user": "eve", "scopes": ["viewer"], "expires_at": time}
            error(await client.post("/v1/keys", json=made), 400, "VALIDATION_ERROR")
            error(await client.patch(f"/v1/keys/{key}", json={"expires_at": time}), 400, "VALIDATION_ERROR")
        for time in ("1970-01-01T00:00:00Z", "9998-12-31T23:59:59Z", "2030-01-01T00:00:00+14:00"):
            whole = {"failed_after": time, "failed_before": time}
            assert (await client.post("/v1/events/retry", json=whole)).json()["matched"] == 0


async def test_keys_expire_within_a_year(house: House) -> None:
    """Making and changing a key have the same bounds: in the future, at most 366 days ahead."""
    async with house.client(await house.key("admin")) as client:
        key = (await client.post("/v1/keys", json={"user": "eve", "scopes": ["viewer"]})).json()["key_id"]
        for time, allowed in (
            ("2031-01-02T00:00:00Z", True), ("2031-01-02T00:00:01Z", False),
            ("2030-01-01T00:00:01Z", True), ("2030-01-01T00:00:00Z", False),
        ):  # fmt: skip
            made = await client.post("/v1/keys", json={"user": "eve", "scopes": ["viewer"], "expires_at": time})
            changed = await client.patch(f"/v1/keys/{key}", json={"expires_at": time})
            if allowed:
                assert (made.status_code, changed.status_code) == (201, 200)
                assert made.json()["expires_at"] == changed.json()["expires_at"] == time.replace("Z", ".000000Z")
            else:
                error(made, 400, "VALIDATION_ERROR")
                error(changed, 400, "VALIDATION_ERROR")


async def test_keys_by_the_api(house: House) -> None:
    """Made once, listed without its text, changed, revoked and refused at once."""
    async with house.client(await house.key("admin", user="root")) as admin:
        made = await admin.post("/v1/keys", json={"user": "eve", "scopes": ["events:read"]})
        assert made.status_code == 201
        key, id_ = made.json()["key"], made.json()["key_id"]
        assert key not in (await admin.get("/v1/keys")).text
        assert (await admin.get(f"/v1/keys/{id_}")).json()["user"] == "eve"
        async with house.client(key) as eve:
            assert (await eve.get("/v1/inbox")).status_code == 200
            error(await eve.post("/v1/events", json={"event_type": "a", "payload": 1}), 403, "FORBIDDEN")
            error(await eve.get("/v1/keys"), 403, "FORBIDDEN")
            changed = await admin.patch(f"/v1/keys/{id_}", json={"scopes": ["events:write"]})
            assert changed.json()["scopes"] == ["events:write"]
            assert (await eve.post("/v1/events", json={"event_type": "a", "payload": 1})).status_code == 201
            expiring = {"expires_at": "2030-01-01T00:10:00Z"}
            assert (await admin.patch(f"/v1/keys/{id_}", json=expiring)).json()["expires_at"] is not None
            house.clock.advance(timedelta(minutes=10))
            error(await eve.get("/v1/endpoints"), 401, "UNAUTHORIZED")
            assert (await admin.patch(f"/v1/keys/{id_}", json={"expires_at": None})).json()["expires_at"] is None
            error(await eve.get("/v1/endpoints"), 403, "FORBIDDEN")
            error(await admin.patch(f"/v1/keys/{id_}", json=expiring), 400, "VALIDATION_ERROR")
            assert (await admin.delete(f"/v1/keys/{id_}")).status_code == 204
            error(await eve.post("/v1/events", json={"event_type": "a", "payload": 1}), 401, "UNAUTHORIZED")
        error(await admin.delete(f"/v1/keys/{id_}"), 404, "NOT_FOUND")
        pages = (await admin.get("/v1/keys?limit=1")).json()
        assert len(pages["keys"]) == 1


async def test_framework_errors_speak_the_same_way(house: House) -> None:
    """Unknown paths and methods under /v1 have the codes of the contract; elsewhere they stay as they were."""
    async with house.client(await house.key()) as client:
        error(await client.get("/v1/nothing"), 404, "NOT_FOUND")
        error(await client.put("/v1/events"), 405, "METHOD_NOT_ALLOWED")
        assert (await client.get("/v2/nothing")).json()["error"]["code"] == "not_found"
        assert (await client.get("/v11")).json()["error"]["code"] == "not_found"
        given = await client.get("/v1/inbox", headers={"X-Request-ID": "mine-1"})
        assert given.headers["X-Request-ID"] == "mine-1"


NO_EVENTS: list[Any] = [
    {}, {"event_type": "a"}, {"payload": 1}, {"event_type": "", "payload": 1}, {"event_type": "a b", "payload": 1},
    {"event_type": "a", "payload": 1, "extra": 1}, {"event_type": 7, "payload": 1}, [], "text", 0,
    {"event_type": "é", "payload": 1}, {"event_type": "a" * 201, "payload": 1}, {"event_type": "a\n", "payload": 1},
]  # fmt: skip


async def test_what_is_no_event(house: House) -> None:
    """400 with the code, and the details name the field but not the value."""
    async with house.client(await house.key()) as client:
        for body in NO_EVENTS:
            error(await client.post("/v1/events", json=body), 400, "VALIDATION_ERROR")
        secret = {"event_type": "a", "payload": 1, "extra": "s3cret-value"}
        refused = await client.post("/v1/events", json=secret)
        assert "s3cret-value" not in refused.text
        assert error(refused, 400, "VALIDATION_ERROR")["details"][0]["where"] == ["body", "extra"]


@pytest.mark.every_store
async def test_payloads_come_back_as_they_were(house: House, receiver: Receiver) -> None:
    """Whatever JSON allows is stored on both databases, read again and delivered."""
    await house.endpoint(receiver.url)
    payloads = [
        '"\\u0000"',
        '"\\ud800"',
        "123456789012345678901234567890",
        '{"": [null, true, -0.5e-7]}',
        f'"{"é" * 1000}"',
    ]
    async with house.client(await house.key()) as client:
        for payload in payloads:
            headers = {"Content-Type": "application/json"}
            body = f'{{"event_type": "a", "payload": {payload}}}'
            made = await client.post("/v1/events", content=body, headers=headers)
            assert made.status_code == 201, made.text
            read = await client.get(f"/v1/events/{made.json()['event_id']}")
            assert json.loads(read.content)["payload"] == json.loads(payload)
            await house.run()
            assert receiver.received[-1].json["data"] == json.loads(payload)


async def test_bodies_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large by its length or by its chunks, too deep, too slow, cut off, of another kind: refused, each with its code."""
    async with house.client(await house.key()) as client:

        async def send(body: Any, **headers: str) -> httpx.Response:
            kind = {
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            }
            return await client.post("/v1/events", content=body, headers=kind)

        large = b'{"event_type": "a", "payload": "' + b"x" * (1 << 20) + b'"}'
        error(await send(large), 413, "PAYLOAD_TOO_LARGE")

        async def chunks(count: int) -> Any:
            for _ in range(count):
                yield b" " * 65536

        error(await send(chunks(1000)), 413, "PAYLOAD_TOO_LARGE")
        for depth in (65, 1000, 100_000):
            deep = b'{"event_type": "a", "payload": ' + b"[" * depth + b"]" * depth + b"}"
            error(await send(deep), 400, "VALIDATION_ERROR")
        assert (await send(b'{"event_type": "a", "payload": ' + b"[" * 60 + b"]" * 60 + b"}")).status_code == 201
        for broken in (
            b"",
            b"{",
            b"\xff",
            b'{"event_type": "a", "payload": NaN}',
            b'{"event_type": "a", "payload": 1e999}',
        ):
            error(await send(broken), 400, "VALIDATION_ERROR")
        half = await send(b'{"event_type": "a", "payload": 1, "\\ud800": 1}')
        error(half, 400, "VALIDATION_ERROR")
        digits = b'{"event_type": "a", "payload": ' + b"9" * 10_000 + b"}"
        error(await send(digits), 400, "VALIDATION_ERROR")
        error(await send(b"{}", Content_Type="text/plain"), 415, "UNSUPPORTED_MEDIA_TYPE")
        error(await client.post("/v1/events", content=b"{}"), 415, "UNSUPPORTED_MEDIA_TYPE")

        monkeypatch.setattr(access, "BODY_SECONDS_MAX", 0.05)

        async def slow() -> Any:
            yield b"{"
            await asyncio.sleep(30)

        error(await send(slow()), 408, "REQUEST_TIMEOUT")


async def test_a_key_is_checked_before_the_body_is_read(house: House) -> None:
    """Nobody fills our memory without a key."""

    async def never() -> Any:
        raise AssertionError("the body was read")
        yield b""

    async with house.client("rdk_unknown") as client:
        headers = {"Content-Type": "application/json"}
        error(await client.post("/v1/events", content=never(), headers=headers), 401, "UNAUTHORIZED")


@pytest.mark.parametrize("store", ["sqlite"])
async def test_hostile_targets_are_refused_at_creation(house: House) -> None:
    """The API answers 400 and names the field, and never tells an address that a name resolved to."""
    house.triggers.guard._allow = ()
    async with house.client(await house.key()) as client:
        for target in HOSTILE:
            answer = await client.post("/v1/endpoints", json={"url": target.replace("{port}", "80")})
            assert answer.status_code == 400, target
            assert answer.json()["error"]["code"] == "VALIDATION_ERROR"
        assert (await client.get("/v1/endpoints")).json() == {"endpoints": []}
