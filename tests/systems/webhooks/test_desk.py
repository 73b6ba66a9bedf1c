"""Webhooks that nobody handles: seen, cancelled, and processed again. By people with the right to it, without large payloads read."""

from typing import Any

import httpx
import pytest

from redrive import Redrive, Task, seconds
from redrive.systems.webhooks import Webhooks
from redrive.testing import VirtualClock, drain

from .conftest import Make, client_of, error_of, rows, webhook
from .test_desk_generic_acts import operator

__all__ = ["operator"]


@pytest.fixture
async def inbox(make: Make, clock: VirtualClock) -> tuple[Redrive, Webhooks]:
    """An inbox that handles orders and nothing else."""
    app, webhooks = make(clock=clock)

    @webhooks.handler("order.*")
    async def order(task: Task) -> None:
        if task.payload.get("fail"):
            raise ValueError("not today")

    return app, webhooks


async def fill(webhooks: Webhooks, clock: VirtualClock) -> dict[str, str]:
    """Two types without a handler and one with, a second between them; the ids by key."""
    made = {}
    for key, event_type in (("a1", "audit"), ("a2", "audit"), ("b1", "billing"), ("o1", "order.paid")):
        receipt = await webhooks.accept(
            event_type, {"key": key, "api_key": "s3cret-s3cret-s3cret"}, idempotency_key=key
        )
        assert receipt is not None
        made[key] = receipt.id
        clock.advance(seconds(1))
    return made


async def statuses(app: Redrive) -> dict[str, str]:
    return {row["idempotency_key"]: row["status"] for row in await rows(app)}


async def test_types_without_a_handler_are_seen(
    inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient, clock: VirtualClock
):
    """Each with how many wait and since when, the largest first; a type that is handled is not among them."""
    await fill(inbox[1], clock)
    answer = await operator.get("/webhooks/unhandled")
    assert answer.json() == {
        "types": [
            {"event_type": "audit", "waiting": 2, "oldest": "2030-01-01T00:00:00.000000Z"},
            {"event_type": "billing", "waiting": 1, "oldest": "2030-01-01T00:00:02.000000Z"},
        ]
    }
    page = (await operator.get("/webhooks", params={"event_type": "audit", "status": "pending", "limit": 1})).json()
    assert [one["idempotency_key"] for one in page["webhooks"]] == ["a1"]
    following = {"event_type": "audit", "after": page["after"]}
    rest = (await operator.get("/webhooks", params=following)).json()
    assert ([one["idempotency_key"] for one in rest["webhooks"]], rest["after"]) == (["a2"], None)


async def test_they_are_cancelled_and_brought_back(
    inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient, clock: VirtualClock
):
    """All of a type, by id or by key; with who and why. Nothing else is touched, and what is back waits as before."""
    app, webhooks = inbox
    ids = await fill(webhooks, clock)
    body = {"event_type": "audit", "reason": "not needed"}
    assert (await operator.post("/webhooks/cancel", json=body)).json() == {
        "changed": 2,
        "refused": {},
        "complete": True,
    }
    assert await statuses(app) == {"a1": "cancelled", "a2": "cancelled", "b1": "pending", "o1": "pending"}
    page = (await operator.get("/webhooks", params={"status": "cancelled"})).json()
    assert [one["id"] for one in page["webhooks"]] == [ids["a1"], ids["a2"]]
    again = await operator.post(
        "/webhooks/redrive", json={"ids": [ids["a1"], "a1", "a2", "b1", "none"], "reason": "needed"}
    )
    said = again.json()
    assert (said["changed"], said["complete"]) == (2, True)
    assert "it is waiting" in said["refused"][ids["b1"]]
    assert "none" in said["refused"]
    assert set((await statuses(app)).values()) == {"pending"}
    assert (await operator.post("/webhooks/cancel", json={"ids": ["b1", "o1"], "reason": "no"})).json()["changed"] == 2
    assert (await operator.post("/webhooks/redrive", json={"event_type": "order.paid", "reason": "yes"})).json()[
        "changed"
    ] == 1
    await drain(app)
    assert await statuses(app) == {"a1": "pending", "a2": "pending", "b1": "cancelled", "o1": "completed"}
    deeds = (await operator.get("/api/audit", params={"ledger": "events"})).json()["acts"]
    assert {(one["act"], one["actor"], one["reason"]) for one in deeds} == {
        ("cancel", "grace", "not needed"), ("return", "grace", "needed"), ("cancel", "grace", "no"), ("return", "grace", "yes"),
    }  # fmt: skip


async def test_what_failed_is_processed_again(
    inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient, clock: VirtualClock
):
    """By its id or all of its type, with all its tries before it; what is pending, completed or processed stays as it is."""
    app, webhooks = inbox
    for key in ("f1", "f2", "f3"):
        await webhooks.accept("order.paid", {"fail": True}, idempotency_key=key)
    await webhooks.accept("order.paid", {}, idempotency_key="fine")
    await drain(app, clock=clock)
    assert await statuses(app) == {"f1": "failed", "f2": "failed", "f3": "failed", "fine": "completed"}
    one = await operator.post("/webhooks/redrive", json={"ids": ["f1"], "reason": "the bank is back"})
    assert one.json() == {"changed": 1, "refused": {}, "complete": True}
    assert {row["attempts"] for row in await rows(app) if row["idempotency_key"] == "f1"} == {0}
    both = await operator.post("/webhooks/redrive", json={"event_type": "order.paid", "reason": "the bank is back"})
    assert both.json()["changed"] == 2
    assert await statuses(app) == {"f1": "pending", "f2": "pending", "f3": "pending", "fine": "completed"}


@pytest.mark.parametrize("path", ["/webhooks/redrive", "/webhooks/cancel"])
async def test_acts_need_an_operator_and_a_body_that_fits(
    inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient, clock: VirtualClock, path: str
):
    """401 without a key, also on this machine; 422 for a body that names nothing, or both, or no reason; 413 for a large one."""
    await fill(inbox[1], clock)
    secret = operator.headers.pop("X-API-Key")
    assert (await operator.post(path, json={"ids": ["a1"], "reason": "x"})).status_code == 401
    operator.headers["X-API-Key"] = secret
    misfits = (
        '{"reason": "x"}', '{"ids": [], "reason": "x"}', '{"ids": ["a1"]}', '{"ids": ["a1"], "event_type": "a", "reason": "x"}',
        '{"ids": ["a1"], "reason": " "}', '{"ids": ["\\ud800"], "reason": "x"}',
    )  # fmt: skip
    for body in misfits:
        answer = await operator.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, answer.text
    large = await operator.post(path, content=b" " * ((1 << 20) + 1), headers={"Content-Type": "application/json"})
    assert (large.status_code, error_of(large)["code"]) == (413, "too_large")
    assert set((await statuses(inbox[0])).values()) == {"pending"}


async def test_a_webhook_shows_its_payload(
    inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient, clock: VirtualClock
):
    """To whoever may read webhooks, without what looks like a secret; lists show none."""
    ids = await fill(inbox[1], clock)
    shown: dict[str, Any] = (await operator.get(f"/webhooks/{ids['o1']}")).json()
    assert shown["payload"] == {"key": "o1", "api_key": "[redacted]"}
    listed = (await operator.get("/webhooks", params={"idempotency_key": "o1"})).json()
    assert "payload" not in listed
    assert {**listed, "payload": shown["payload"]} == shown


async def test_a_large_webhook_is_taken_where_the_setting_says_so(make: Make, clock: VirtualClock):
    """3 MiB are 413 by default; with WEBHOOK_MAX_BYTES of 4 MiB they are stored and handed to the handler whole."""
    body = webhook("big", text="x" * (3 << 20))
    app, _ = make(clock=clock)
    async with client_of(app) as client:
        assert (await client.post("/webhooks", json=body)).status_code == 413
    app, webhooks = make(clock=clock, webhook_max_bytes=4 << 20)
    sizes = []

    @webhooks.handler("*")
    async def handle(task: Task) -> None:
        sizes.append(len(task.payload["text"]))

    async with client_of(app) as client:
        taken = await client.post("/webhooks", json=body)
        assert taken.status_code == 202, taken.text
        await drain(app)
        shown = (await client.get(f"/webhooks/{taken.json()['id']}")).json()
    assert sizes == [3 << 20]
    assert shown["status"] == "completed"
    assert shown["payload"]["text"].startswith("xxx") and shown["payload"]["text"].endswith("…"), (
        "the beginning is shown"
    )
