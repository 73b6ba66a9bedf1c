"""What is somebody else's, unknown, deleted or malformed cannot be told apart."""

import itertools
from typing import Any

import httpx
import pytest

from .conftest import House

NEVER = "019c1320-7d00-7a3b-9f52-0c1d2e3f4a5b"
MALFORMED = ["7", "abc", NEVER.upper(), "{" + NEVER + "}", NEVER + "0", "%00", "%F0%9F%A6%86", "a" * 2000, "null"]
EVENT_ROUTES = [
    ("GET", "/v1/events/{}", None),
    ("GET", "/v1/events/{}/status", None),
    ("GET", "/v1/events/{}/attempts", None),
    ("POST", "/v1/events/{}/ack", None),
    ("POST", "/v1/events/{}/retry", None),
    ("DELETE", "/v1/events/{}", None),
]
ENDPOINT_ROUTES = [
    ("GET", "/v1/endpoints/{}", None),
    ("GET", "/v1/endpoints/{}/attempts", None),
    ("PATCH", "/v1/endpoints/{}", {"description": "mine"}),
    ("PATCH", "/v1/endpoints/{}", {"url": "http://127.0.0.1:9/"}),
    ("POST", "/v1/endpoints/{}/test", None),
    ("DELETE", "/v1/endpoints/{}", None),
]
KEY_ROUTES = [
    ("GET", "/v1/keys/{}", None),
    ("PATCH", "/v1/keys/{}", {"scopes": ["viewer"]}),
    ("DELETE", "/v1/keys/{}", None),
]


def shown(answer: httpx.Response) -> tuple[Any, ...]:
    """All that an answer tells, but for its timestamp and request id."""
    body = answer.json()
    for name in ("timestamp", "request_id"):
        del body["error"][name]
    headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
    return answer.status_code, headers, body


async def answers(client: httpx.AsyncClient, routes: list[Any], ids: list[str]) -> None:
    for method, path, body in routes:
        given = {} if body is None else {"json": body}
        seen = [shown(await client.request(method, path.format(id_), **given)) for id_ in ids]
        assert seen[0][0] == 404
        assert seen[0][2]["error"]["code"] == "NOT_FOUND"
        for id_, other in zip(ids, seen, strict=True):
            assert other == seen[0], (method, path, id_)


async def test_events_and_endpoints_of_others_are_unknown(house: House) -> None:
    """Every route, every kind of id: the same status, headers and body."""
    async with house.client(await house.key()) as ada, house.client(await house.key(user="bob")) as bob:
        events = [await house.post() for _ in range(3)]
        await house.triggers.inbox.delete("ada", events[2])
        endpoint, gone = await house.endpoint("http://127.0.0.1:9/"), await house.endpoint("http://127.0.0.1:9/")
        await house.triggers.endpoints.delete("ada", gone.id)
        await answers(bob, EVENT_ROUTES, [NEVER, events[0], events[2], endpoint.id, *MALFORMED])
        await answers(bob, ENDPOINT_ROUTES, [NEVER, endpoint.id, gone.id, events[0], *MALFORMED])
        await answers(ada, EVENT_ROUTES, [NEVER, events[2], *MALFORMED])
        assert (await house.event(events[0])).status == "received"
        assert (await house.triggers.endpoints.of_user("ada"))[0].description == ""


async def test_revoked_keys_are_unknown(house: House) -> None:
    """To an admin a revoked key is as unknown as one that never was."""
    async with house.client(await house.key("admin")) as admin:
        made = (await admin.post("/v1/keys", json={"user": "eve", "scopes": ["viewer"]})).json()
        assert (await admin.delete(f"/v1/keys/{made['key_id']}")).status_code == 204
        await answers(admin, KEY_ROUTES, ["0123456789ab", made["key_id"], *MALFORMED])


async def test_a_wrong_key_tells_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown, revoked, expired and malformed keys get the same 401 on every route."""
    monkeypatch.setattr("redrive.access.wrong_keys.FAILURES_MAX", 10_000)  # so many wrong ones would be told to wait
    revoked = await house.service.keys.create("eve", ["admin"])
    await house.service.keys.revoke(revoked.key.id)
    ids = {"{}": NEVER}
    wrong = ["rdk_unknown", revoked.secret, "x" * 10_000, "%", " "]
    for method, path, _ in itertools.chain(EVENT_ROUTES, ENDPOINT_ROUTES, KEY_ROUTES, [("GET", "/v1/inbox", None)]):
        seen = []
        for key in wrong:
            async with house.client(key) as client:
                seen.append(shown(await client.request(method, path.replace("{}", ids["{}"]), json={})))
        assert seen[0][0] == 401
        assert all(one == seen[0] for one in seen), (method, path)


async def test_users_see_only_their_own(house: House) -> None:
    """EventInbox, endpoints and totals are those of the key's owner, also for an admin."""
    for user in ("ada", "bob"):
        await house.post(user=user)
        await house.endpoint("http://127.0.0.1:9/", "never", user=user)
    for user, scopes in (("ada", ()), ("bob", ()), ("root", ("admin",))):
        async with house.client(await house.key(*scopes, user=user)) as client:
            inbox = (await client.get("/v1/inbox")).json()
            mine = int(user != "root")
            assert (len(inbox["events"]), inbox["pagination"]["total_count"]) == (mine, mine)
            assert len((await client.get("/v1/endpoints")).json()["endpoints"]) == mine
