"""Endpoints of all users as operators see them over HTTP, and what they may do to them. On both databases."""

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import Connection, event, insert, text

from redrive.errors import TooSlowError
from redrive.operator.cursors import Position
from redrive.systems.triggers import desk
from redrive.systems.triggers.desk import shown_url
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.desk import SqlEndpointBook
from redrive.systems.triggers.values import COUNTED_MAX
from redrive.wiring import observe_with_logs

from ..figures import are_counted_soon, take_long_to_count
from .conftest import House
from .receiver import Receiver, status
from .test_logs import lines, of

__all__ = ["lines"]

BASE = "/api/triggers/endpoints"
MINUTE = timedelta(minutes=1)
NEVER = "019c1320-7d00-7a3b-9f52-0c1d2e3f4a5b"


def written(at: Any, id: str) -> str:
    """A cursor as a stranger may make it up."""
    return base64.urlsafe_b64encode(json.dumps([at, id]).encode()).decode()


async def operator(house: House, role: str = "operator") -> httpx.AsyncClient:
    """A client with a key of this role."""
    house.service.is_open = True
    return house.client(await house.key(role, user=f"{role} grace"))


async def act(house: House, what: str, ids: list[str], reason: str = "called at night") -> dict[str, Any]:
    """The answer to an operator's act."""
    async with await operator(house) as client:
        answer = await client.post(f"{BASE}/{what}", json={"ids": ids, "reason": reason})
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def pages(client: httpx.AsyncClient, **asked: Any) -> list[dict[str, Any]]:
    """All endpoints, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await client.get(BASE, params=asked)
        assert answer.status_code == 200, answer.text
        found += answer.json()["endpoints"]
        if (cursor := answer.json()["cursor"]) is None:
            return found
        asked["cursor"] = cursor


async def test_endpoints_of_all_users(house: House, receiver: Receiver) -> None:
    """With owner, state, since when, what they owe and the latest error; the query hidden and no secret anywhere."""
    receiver.answer = lambda got: status(int(got.path.partition("?")[0][1:]))
    base = receiver.url.removesuffix("/hook")
    well = await house.endpoint(f"{base}/200", description="the shop")
    busy = await house.endpoint(f"{base}/503?token=hunter2", user="bob")
    gone = await house.endpoint(f"{base}/410", user="carl")
    posted = {user: await house.post(user=user) for user in ("ada", "bob", "carl")}
    failed_at = house.clock.now()
    await house.run()
    async with await operator(house, "viewer") as client:
        answer = await client.get(BASE)
        by_user = {one["user"]: one for one in answer.json()["endpoints"]}
        for secret in ("hunter2", "whsec_", well.secret, busy.secret, "secret"):
            assert secret not in answer.text
    assert list(by_user) == ["carl", "bob", "ada"]
    at = failed_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert by_user["ada"] == {
        "endpoint_id": well.id, "user": "ada", "url": f"{base}/200", "description": "the shop", "event_types": ["*"],
        "state": "enabled", "since": at, "disabled_reason": None, "disabled_by": None, "retrying": 0, "failed": 0,
        "latest_failure": None, "held": None, "created_at": at,
    }  # fmt: skip
    [delivery] = await house.deliveries(posted["bob"])
    failing = {name: by_user["bob"][name] for name in ("url", "state", "since", "retrying", "failed", "latest_failure")}
    assert failing == {
        "url": f"{base}/503?…", "state": "failing", "since": at, "retrying": 1, "failed": 0,
        "latest_failure": {
            "delivery_id": delivery.id, "at": at, "error": "TransientError: the endpoint answered 503",
        },
    }  # fmt: skip
    off = by_user["carl"]
    assert (off["endpoint_id"], off["state"], off["disabled_reason"], off["disabled_by"]) == (
        gone.id, "disabled", "it answered 410 Gone", None,
    )  # fmt: skip
    assert (off["retrying"], off["failed"]) == (0, 1)


async def test_pages_and_filters(house: House) -> None:
    """Each once, in order, whatever the page; by user and by state, those in trouble by since when."""
    made = [await house.endpoint("http://127.0.0.1:9/", user=f"user {number % 3}") for number in range(9)]
    ids = [one.id for one in made]
    for number in (7, 2, 4):
        house.clock.advance(MINUTE)
        await house.triggers.endpoints.disable(made[number], "it answered 410 Gone")
    for number in (8, 0):
        house.clock.advance(MINUTE)
        await house.triggers.endpoints.note(made[number], delivered=False)
    expected = {
        (None, None): ids[::-1],
        (None, "disabled"): [ids[4], ids[2], ids[7]],
        (None, "failing"): [ids[0], ids[8]],
        (None, "enabled"): [ids[6], ids[5], ids[3], ids[1]],
        ("user 1", None): [ids[7], ids[4], ids[1]],
        ("user 1", "disabled"): [ids[4], ids[7]],
        ("nobody", None): [],
    }
    async with await operator(house, "viewer") as client:
        for (user, state), wanted in expected.items():
            asked = {name: value for name, value in (("user", user), ("state", state)) if value is not None}
            for limit in (1, 2, 200):
                found = await pages(client, limit=limit, **asked)
                assert [one["endpoint_id"] for one in found] == wanted, (user, state, limit)


async def test_what_does_not_fit_is_refused_with_a_sentence(house: House) -> None:
    """Never a 500: wrong cursors, states, users, ids and bodies."""
    endpoint = await house.endpoint("http://127.0.0.1:9/")
    good = {"ids": [endpoint.id], "reason": "x"}
    async with await operator(house) as client:
        for asked in ({"state": "asleep"}, {"limit": 0}, {"limit": 201}, {"user": "a\0b"}, {"user": "x" * 201}):
            assert (await client.get(BASE, params=asked)).status_code == 422, asked
        for cursor in (
            "", "x", "~", "\0", written(None, NEVER), written("2030-01-01", NEVER), written("2030-01-01T00:00:00Z", "x"),
            written("0001-01-01T00:00:00+23:59", NEVER), written("2030-01-01T00:00:00", NEVER), written(7, NEVER),
        ):  # fmt: skip
            answer = await client.get(BASE, params={"state": "disabled", "cursor": cursor})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request"), cursor
            assert "without it" in answer.json()["error"]["message"]
        for wrong in (
            {}, {"ids": [endpoint.id]}, {"ids": [], "reason": "x"}, {"ids": ["x"] * 1001, "reason": "x"},
            good | {"reason": "  "}, good | {"reason": "a\0b"}, good | {"reason": "x" * 501}, good | {"more": 1},
            good | {"ids": [7]}, good | {"ids": ["x" * 101]}, good | {"ids": None},
        ):  # fmt: skip
            for what in ("enable", "disable", "retry"):
                assert (await client.post(f"{BASE}/{what}", json=wrong)).status_code == 422, wrong
        surrogate = b'{"ids": ["\\ud800"], "reason": "x"}'
        headers = {"Content-Type": "application/json"}
        assert (await client.post(f"{BASE}/enable", content=surrogate, headers=headers)).status_code == 422
        for what in ("enable", "disable", "retry"):
            strange = ["7", "", "\0", NEVER, NEVER.upper(), "é"]
            said = (await client.post(f"{BASE}/{what}", json={"ids": strange, "reason": "x"})).json()
            assert said == {"changed": 0, "refused": dict.fromkeys(strange, "there is no such endpoint")}
        audit = (await client.get("/api/audit", params={"ledger": "trigger_endpoints"})).json()
    assert audit["acts"] == []
    assert (await house.triggers.endpoints.get("ada", endpoint.id)).enabled


async def test_who_may(house: House) -> None:
    """Viewers look, operators act; owners' keys do neither here; nothing is changed by a GET."""
    endpoint = await house.endpoint("http://127.0.0.1:9/")
    body = {"ids": [endpoint.id], "reason": "x"}
    expected = {"viewer": (200, 403), "operator": (200, 200), "admin": (200, 200), "endpoints": (403, 403)}
    for role, (look, does) in expected.items():
        async with await operator(house, role) as client:
            assert (await client.get(BASE)).status_code == look, role
            for what in ("enable", "disable", "retry"):
                assert (await client.post(f"{BASE}/{what}", json=body)).status_code == does, (role, what)
                assert (await client.get(f"{BASE}/{what}")).status_code == 405
    async with house.client() as client:
        assert (await client.get(BASE)).status_code == 401
        assert (await client.post(f"{BASE}/enable", json=body)).status_code == 401


async def test_disable_and_enable(house: House, receiver: Receiver) -> None:
    """It goes by the owner's rules, the owner is told, and the audit log says who and why."""
    endpoint = await house.endpoint(receiver.url)
    await house.triggers.endpoints.note(endpoint, delivered=False)
    waiting = await house.post()
    assert await act(house, "disable", [endpoint.id, NEVER], "it leaks") == {
        "changed": 1,
        "refused": {NEVER: "there is no such endpoint"},
    }
    off = await house.triggers.endpoints.get("ada", endpoint.id)
    assert (off.enabled, off.disabled_at, off.disabled_by) == (False, house.clock.now(), "operator grace")
    assert off.disabled_reason == "switched off by an operator: it leaks"
    assert await act(house, "disable", [endpoint.id]) == {
        "changed": 0,
        "refused": {endpoint.id: "it is disabled already"},
    }
    unsent = await house.post()
    await house.run()
    assert [(await house.event(id_)).status for id_ in (waiting, unsent)] == ["failed", "received"]
    house.clock.advance(MINUTE)
    assert (await act(house, "enable", [endpoint.id], "mended"))["changed"] == 1
    on = await house.triggers.endpoints.get("ada", endpoint.id)
    assert (on.enabled, on.disabled_at, on.disabled_reason, on.disabled_by, on.failing_since) == (True, *[None] * 4)
    assert on.updated_at == house.clock.now()
    assert (await act(house, "enable", [endpoint.id]))["refused"] == {endpoint.id: "it is enabled already"}
    said = f"the endpoint {receiver.url} was"
    assert [one.message for one in await house.triggers.endpoints.notices("ada")] == [
        f"{said} enabled by an operator: mended",
        f"{said} disabled by an operator: it leaks",
    ]
    async with await operator(house, "viewer") as client:
        deeds = (await client.get("/api/audit", params={"ledger": "trigger_endpoints"})).json()["acts"]
        assert (await client.get("/api/audit", params={"ledger": "trigger_deliveries"})).json()["acts"] == []
        shown = await client.get("/audit", params={"ledger": "trigger_endpoints"}, headers={"Accept": "text/html"})
    assert "<option selected>trigger_endpoints</option>" in shown.text
    assert [(d["ledger"], d["task_id"], d["act"], d["actor"], d["reason"]) for d in deeds] == [
        ("trigger_endpoints", endpoint.id, "enable", "operator grace", "mended"),
        ("trigger_endpoints", endpoint.id, "disable", "operator grace", "it leaks"),
    ]


@pytest.mark.on_sql
async def test_a_store_that_is_too_busy_is_said(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that takes too long is a refusal with what to do, not a wait and no error of ours."""

    async def slow(*_: Any, **__: Any) -> Any:
        raise TooSlowError("too long")

    async with await operator(house, "viewer") as client:
        monkeypatch.setattr(house.app.database, "look", slow)
        answer = await client.get(BASE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_busy")


async def test_two_at_once_act_once(house: House) -> None:
    """Forty endpoints, four people, in different orders: each endpoint changes once and stands in the audit log once."""
    ids = [(await house.endpoint("http://127.0.0.1:9/", user=f"user {number}")).id for number in range(40)]
    orders = [ids, ids[::-1], ids[20:] + ids[:20], ids[::2] + ids[1::2]]
    said = await asyncio.gather(*(act(house, "disable", order) for order in orders))
    assert sum(one["changed"] for one in said) == 40
    assert all(one["changed"] + len(one["refused"]) == 40 for one in said)
    async with await operator(house, "viewer") as client:
        acts = (await client.get("/api/audit", params={"ledger": "trigger_endpoints"})).json()["acts"]
        shown = [(await client.get(f"/api/audit/{quote(str(one['id']), safe='')}")).json() for one in acts]
    assert len(acts) <= len(orders)
    assert sorted(id_ for one in shown for id_ in one["things"]) == sorted(ids)


async def test_retry_what_failed(house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """All failed deliveries of the chosen endpoints, in blocks and up to a limit; not those of others or of disabled ones."""
    monkeypatch.setattr(desk, "DELIVERIES_PER_BLOCK", 2)
    monkeypatch.setattr(desk, "DELIVERIES_PER_RETRY", 4)
    receiver.answer = lambda _: status(404)
    mine = await house.endpoint(receiver.url)
    other = await house.endpoint(receiver.url, user="bob")
    events = [await house.post() for _ in range(5)]
    theirs = await house.post(user="bob")
    await house.run()
    await house.triggers.endpoints.disable(mine, "it answered 410 Gone")
    assert await act(house, "retry", [mine.id]) == {
        "changed": 0,
        "refused": {mine.id: "it is disabled: enable it first"},
    }
    await act(house, "enable", [mine.id])
    receiver.answer = lambda _: status(200)
    if house.app.store.keeps_tasks:
        await take_long_to_count(house.triggers.lane)
    assert await act(house, "retry", [mine.id, mine.id], "mended") == {
        "changed": 4,
        "refused": {mine.id: desk.MORE},
    }
    if house.app.store.keeps_tasks:
        assert await are_counted_soon(house.triggers.lane)
    await house.run()
    assert await act(house, "retry", [mine.id, other.id]) == {"changed": 2, "refused": {}}
    await house.run()
    assert {(await house.event(id_)).status for id_ in events} == {"delivered"}
    assert (await house.event(theirs, user="bob")).status == "delivered"
    [task] = await house.deliveries(events[0])
    [deed] = await house.triggers.lane.deeds(task.id)
    assert (deed.act, deed.actor, deed.reason) == ("redrive", "operator grace", "mended")


async def test_the_three_ways_back_are_one(house: House, receiver: Receiver, lines: Any) -> None:
    """The owner's retry, the operator's, and a redrive on the page of tasks: the same status and the same lines in the log."""
    observe_with_logs(house.app)
    receiver.answer = lambda _: status(404)
    endpoint = await house.endpoint(receiver.url)
    stories = []
    for way in ("owner", "endpoints", "tasks"):
        receiver.answer = lambda _: status(404)
        id_ = await house.post()
        await house.run()
        [task] = await house.deliveries(id_)
        if way == "owner":
            async with house.client(await house.key()) as client:
                assert (await client.post(f"/v1/events/{id_}/retry")).status_code == 200
        elif way == "endpoints":
            assert (await act(house, "retry", [endpoint.id]))["changed"] == 1
        else:
            body = {"ledger": "trigger_deliveries", "ids": [task.id], "reason": "x"}
            async with await operator(house) as client:
                assert (await client.post("/api/tasks/redrive", json=body)).json()["changed"] == 1
        back = await house.event(id_)
        assert (back.status, back.retry_attempts, back.failed_at) == ("queued", 0, None)
        receiver.answer = lambda _: status(200)
        await house.run()
        assert (await house.event(id_)).status == "delivered"
        moves = [line for line in of(lines(), "status_transition") if line.pop("event_id") == id_]
        stories.append([{**line, "correlation_id": "c"} for line in moves])
    assert [(one["old_status"], one["new_status"]) for one in stories[0]][-2:] == [
        ("failed", "queued"),
        ("queued", "delivered"),
    ]
    assert stories[0] == stories[1] == stories[2]


async def test_cancel_and_resolve_keep_the_rules_of_events(house: House, receiver: Receiver) -> None:
    """On the page of tasks, too: what was cancelled under way has failed, and resolving leaves a failed event failed."""
    receiver.answer = lambda got: status(404 if got.path == "/final" else 503)
    await house.endpoint(receiver.url, "wait")
    await house.endpoint(receiver.url.replace("/hook", "/final"), "final")
    waits, final = await house.post("wait"), await house.post("final")
    await house.run()
    [waiting], [dead] = await house.deliveries(waits), await house.deliveries(final)
    async with await operator(house) as client:
        for path, body in (
            ("cancel", {"ids": [waiting.id]}),
            ("resolve", {"ids": [dead.id], "state": "done"}),
        ):
            said = await client.post(f"/api/tasks/{path}", json=body | {"ledger": "trigger_deliveries", "reason": "x"})
            assert said.json()["changed"] == 1
    for id_ in (waits, final):
        ended = await house.event(id_)
        assert (ended.status, ended.next_retry_at, ended.failed_at) == ("failed", None, house.clock.now())


@pytest.mark.on_sql
async def test_counts_have_an_end_and_every_look_an_index(house: House) -> None:
    """However many deliveries an endpoint owes, and whatever is asked of how many endpoints: no table is read as a whole."""
    endpoint = await house.endpoint("http://127.0.0.1:9/")
    posted = await house.post()
    now = house.clock.now()
    row = {
        "event_id": posted, "endpoint_id": endpoint.id, "user_id": "ada", "correlation_id": "c", "status": "dead",
        "last_error": "TransientError: no", "created_at": now, "updated_at": now,
    }  # fmt: skip

    def fill(connection: Connection) -> None:
        rows = [row | {"id": new_id(now)} for _ in range(COUNTED_MAX + 5)]
        connection.execute(insert(t.deliveries), rows)

    await house.app.database.write(fill)
    [seen] = (await house.triggers.desk.page()).items
    assert (seen.failed, seen.retrying) == (COUNTED_MAX, 0)
    after = Position(datetime(2030, 1, 1, tzinfo=UTC), NEVER)
    for state in ("disabled", "failing"):
        plan = await _plan(house, SqlEndpointBook.seen, user=None, state=state, after=after, limit=50)
        assert f"trigger_endpoints_{state}_idx" in plan, plan
        assert "trigger_deliveries_failures_idx" in plan, plan
        assert "Seq Scan" not in plan
        assert "SCAN trigger_deliveries" not in plan
    assert "trigger_endpoints_given_up_idx" in await _plan(house, SqlEndpointBook.given_up, 50)


async def _plan(house: House, run: Any, *given: Any, **named: Any) -> str:
    """How the database answers the first statement that a look makes."""

    def ask(connection: Connection) -> str:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # the tables are too small for it to care
        said: list[Any] = []
        event.listen(connection, "before_cursor_execute", lambda *given: said.append(given[2:4]))
        run.__wrapped__(house.triggers.stores.book, connection, *given, **named)
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        statement, parameters = said[0]
        return "\n".join(str(row) for row in connection.exec_driver_sql(explain + statement, parameters))

    return await house.app.database.read(ask)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://shop.example/hooks", "https://shop.example/hooks"),
        ("https://shop.example:8443/h?key=1&x", "https://shop.example:8443/h?…"),
        ("https://shop.example/h#part", "https://shop.example/h"),
        ("https://u:p@shop.example/h", "https://shop.example/h"),
        ("https://[2606:4700::1]:8443/h?", "https://[2606:4700::1]:8443/h?…"),
        ("https://shop.example?key=1", "https://shop.example?…"),
        ("https://[nonsense", "https://[nonsense"),
        ("https://hooks.slack.com/services/T0/B0/abcdef", "https://hooks.slack.com/services/[redacted]"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    """Not its query, nor what looks like a token."""
    assert shown_url(url) == shown


async def test_one_that_is_made_disabled_was_switched_off_by_its_owner(house: House) -> None:
    """Nobody is called for it."""
    await house.endpoint("http://127.0.0.1:9/", enabled=False)
    [seen] = (await house.triggers.desk.page(state="disabled")).items
    assert (seen.disabled_by, seen.disabled_reason) == ("ada", "switched off by its owner")
    assert await house.triggers.alarms() == []


@pytest.mark.parametrize("store", ["sqlite"])
async def test_the_description_is_complete(house: House) -> None:
    """Every route has a summary, a description, its refusals and a named shape."""
    async with house.client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    described = {path: methods for path, methods in paths.items() if path.startswith(BASE)}
    assert sorted(described) == [BASE, f"{BASE}/disable", f"{BASE}/enable", f"{BASE}/retry"]
    for methods in described.values():
        [operation] = methods.values()
        assert operation["summary"]
        assert operation["description"]
        assert {"200", "400", "401", "403", "422", "503"} <= set(operation["responses"])
        for answer in operation["responses"].values():
            assert "$ref" in answer or "$ref" in answer["content"]["application/json"]["schema"]
