"""The routes of manual review: pages, acts, who may, and what is refused."""

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from redrive import Redrive
from redrive.errors import TooSlowError
from redrive.running import Service
from redrive.systems.relay import desk as review
from tests.web.conftest import client_of

from .kit import PATH, in_review, row, statuses


async def test_pages_filters_and_counts(client: httpx.AsyncClient, app: Redrive) -> None:
    """The newest first, by keyset; by queue, text and message id; and how many wait in all and of each queue."""
    await in_review(app, *(f"m-{n}" for n in range(5)))
    await in_review(app, "mail-1", original_queue="mail", error_reason="550 no such user")
    await in_review(app, "gone", status="resolved")
    seen, cursor = [], None
    while True:
        page = (await client.get(PATH, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [one["message_id"] for one in page["messages"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == ["mail-1", "m-4", "m-3", "m-2", "m-1", "m-0"]
    for asked in ({"queue": "mail"}, {"error": "550"}, {"message_id": "mail-1"}):
        [only] = (await client.get(PATH, params=asked)).json()["messages"]
        assert only["message_id"] == "mail-1"
    assert (await client.get(PATH, params={"message_id": "gone"})).json()["messages"] == []
    waiting = (await client.get(f"{PATH}/queues")).json()
    assert waiting == {
        "total": 6, "queues": [{"queue": "orders", "amount": 5}, {"queue": "mail", "amount": 1}], "more": False
    }  # fmt: skip


async def test_one_message(client: httpx.AsyncClient, app: Redrive) -> None:
    """With its headers and payload, without secrets, wherever it stands."""
    given = {"headers": {"token": "s3cr3t-of-ours", "n": 7}, "original_payload": b'{"password": "hunter2", "n": 1}'}
    [id_] = await in_review(app, "m-1", status="resolved", content_type="application/json", **given)
    one = (await client.get(f"{PATH}/{id_}")).json()
    assert (one["message_id"], one["status"], one["payload_bytes"]) == ("m-1", "resolved", 31)
    assert one["headers"] == {"token": "[redacted]", "n": 7}
    assert json.loads(one["payload"]["text"]) == {"password": "[redacted]", "n": 1}
    assert (await client.get(f"{PATH}/999")).json()["error"]["code"] == "message_unknown"


async def test_acts_over_http(client: httpx.AsyncClient, app: Redrive) -> None:
    """The owner of the key is who did it; what did not change is told with its reason, also what was never there."""
    ids = await in_review(app, "m-1", "m-2")
    body = {"ids": [ids[0], ids[0], 999], "reason": " mended "}
    assert (await client.post(f"{PATH}/resubmit", json=body | {"dry_run": True})).json()["matched"] == 1
    done = (await client.post(f"{PATH}/resubmit", json=body)).json()
    assert (done["matched"], done["changed"], done["refused"]) == (2, 1, {"999": "there is no such message"})
    assert (await row(app, "m-1"))["headers"]["x-resubmitted-by"] == "ada"
    done = (await client.post(f"{PATH}/resolve", json={"ids": ids, "reason": "by hand"})).json()
    assert (done["changed"], done["refused"]) == (1, {str(ids[0]): "it waits for its retry already"})
    audit = (await client.get("/api/audit", params={"ledger": "retry_queue"})).json()
    assert {(one["act"], one["actor"], one["reason"]) for one in audit["acts"]} == {
        ("redrive", "ada", "mended"), ("resolve", "ada", "by hand")
    }  # fmt: skip


async def test_the_generic_acts_over_http(client: httpx.AsyncClient, app: Redrive) -> None:
    """`/api/tasks/redrive` on the ledger resubmits with the same headers; resolving as done is a refusal, not a fault."""
    ids = await in_review(app, "m-1", "m-2")
    body = {"ledger": "retry_queue", "ids": ids[:1], "reason": "mended"}
    assert (await client.post("/api/tasks/redrive", json=body)).json()["changed"] == 1
    assert (await row(app, "m-1"))["headers"]["x-resubmitted-by"] == "ada"
    refused = await client.post("/api/tasks/resolve", json=body | {"ids": ids[1:], "state": "done"})
    assert (refused.status_code, "as cancelled" in refused.json()["error"]["message"]) == (400, True)


async def test_what_does_not_fit_is_refused(client: httpx.AsyncClient) -> None:
    """With what it is, and never with a fault: in bodies and in addresses."""
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"ids": [1]}, "reason"),
        ({"ids": [1], "reason": "  "}, "reason"),
        ({"ids": [], "reason": "r"}, "ids"),
        ({"ids": list(range(1, 1002)), "reason": "r"}, "ids"),
        ({"ids": [True], "reason": "r"}, "ids"),
        ({"ids": [2**63], "reason": "r"}, "ids"),
        ({"ids": [1], "filter": {}, "reason": "r"}, "either ids or a filter"),
        ({"reason": "r"}, "either ids or a filter"),
        ({"filter": {"queue": "a\0b"}, "reason": "r"}, "queue"),
        ({"filter": {"kind": "x"}, "reason": "r"}, "kind"),
        ({"filter": {"queue": ""}, "reason": "r"}, "queue"),
        ({"filter": {"error": ""}, "reason": "r"}, "error"),
        ({"filter": {"message_id": ""}, "reason": "r"}, "message_id"),
        ({"filter": {}, "reason": "r", "at_most": -1}, "at_most"),
        ({"filter": {"until": "0001-01-01T00:00:00+23:00"}, "reason": "r"}, "until"),
        ({"ids": [1], "reason": "r", "state": "done"}, "state"),
    ]
    for body, what in bodies:
        answer = await client.post(f"{PATH}/resubmit", json=body)
        assert (answer.status_code, what in str(answer.json()["error"]["details"])) == (422, True), body
    for query in ("cursor=0", f"cursor={2**63}", "limit=0", "limit=201", "error=%00", "queue=" + "q" * 256):
        assert (await client.get(f"{PATH}?{query}")).status_code == 422, query


async def test_who_may(service: Service, app: Redrive) -> None:
    """Looking: a viewer, or this machine. Acting: an operator, from anywhere; nobody else."""
    ids = await in_review(app, "m-1")
    keys = {scope: (await service.keys.create(scope, [scope])).secret for scope in ("viewer", "events:write")}
    body = {"ids": ids, "reason": "mended"}
    looks = (PATH, f"{PATH}/queues", f"{PATH}/{ids[0]}")
    acts = (f"{PATH}/resubmit", f"{PATH}/resolve")
    async with client_of(service) as local, client_of(service, client="192.0.2.7", base_url="http://x.example") as far:
        assert [(await local.get(path)).status_code for path in looks] == [200, 200, 200]
        assert [(await far.get(path)).status_code for path in looks] == [401, 401, 401]
        for path in acts:
            assert [(await one.post(path, json=body)).status_code for one in (local, far)] == [401, 401]
        for scope, status in (("viewer", 200), ("events:write", 403)):
            far.headers["X-API-Key"] = keys[scope]
            assert [(await far.get(path)).status_code for path in looks] == [status] * 3
            assert [(await far.post(path, json=body)).status_code for path in acts] == [403, 403]
    assert await statuses(app) == {"m-1": "failed"}


async def test_a_text_in_too_many_is_refused(
    client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """What no index serves ends after its time with the remedy, not with a wait."""
    await in_review(app, "m-1")
    monkeypatch.setattr(review, "LOOK_WITHIN", timedelta(milliseconds=1))
    # As if it looked through a great many.
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT count(*) FROM n"
    )
    monkeypatch.setattr(
        review.ReviewDesk,
        "page",
        lambda self, *_, **__: self._look(lambda c: c.execute(text(endless)), review.LOOK_WITHIN),
    )
    answer = await client.get(PATH, params={"error": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "too_slow")


async def test_a_store_that_is_too_busy_is_said(
    client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filter an index serves a look, its slowness is the store's and passes: a 503, and a sentence on the page."""
    [id_] = await in_review(app, "m-1")

    async def slow(*_: Any, **__: Any) -> Any:
        raise TooSlowError("too long")

    monkeypatch.setattr(app.database, "look", slow)
    dry = {"reason": "x", "dry_run": True}
    for answer in (
        await client.get(PATH),
        await client.get(f"{PATH}/queues"),
        await client.get(f"{PATH}/{id_}"),
        await client.post(f"{PATH}/resolve", json=dry | {"ids": [id_]}),
        await client.post(f"{PATH}/resolve", json=dry | {"filter": {"queue": "orders"}}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_busy")
        assert int(answer.headers["Retry-After"]) > 0
    asked = await client.post(f"{PATH}/resolve", json=dry | {"filter": {"error": "x"}})
    assert (asked.status_code, asked.json()["error"]["code"]) == (422, "too_slow")
    page = await client.get("/systems/relay", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "The database took too long to answer." in page.text
    assert "Messages that wait for a person" in page.text


async def test_an_act_is_told_though_the_store_is_too_busy_to_say_why_not(
    client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was changed is said in any case."""
    ids = await in_review(app, "m-1")

    async def slow(*_: Any, **__: Any) -> Any:
        raise TooSlowError("too long")

    monkeypatch.setattr(app.database, "look", slow)
    answer = (await client.post(f"{PATH}/resolve", json={"ids": [*ids, 4711], "reason": "x"})).json()
    assert (answer["changed"], list(answer["refused"])) == (1, ["4711"])
    assert await statuses(app) == {"m-1": "resolved"}
