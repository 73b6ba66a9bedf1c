"""What operators may do to webhooks by the generic routes, and what the table says then. On both databases."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from redrive import Filter, Redrive, State
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.webhooks import Webhooks
from redrive.testing import drain
from redrive.web.app import make_web

from .conftest import execute, rows


@pytest.fixture
async def operator(inbox: tuple[Redrive, Webhooks]) -> AsyncIterator[httpx.AsyncClient]:
    """A client with an operator's key."""
    app, _ = inbox
    await app.open()
    service = Service(app, Settings(_env_file=None))
    service.is_open = True
    key = (await service.keys.create("grace", ["operator"])).secret
    transport = httpx.ASGITransport(make_web(service), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8086", headers={"X-API-Key": key}
    ) as client:
        yield client


async def dead_webhook(app: Redrive, webhooks: Webhooks) -> str:
    """One that has used up its tries."""
    made = await webhooks.accept("order.paid", {"fail": True, "password": "hunter2"}, idempotency_key="order-7")
    assert made is not None
    await execute(app, "UPDATE events SET attempts = 4")
    await drain(app)
    assert (await rows(app))[0]["status"] == "failed"
    return made.id


async def act(client: httpx.AsyncClient, what: str, id_: str, **more: Any) -> httpx.Response:
    return await client.post(f"/api/tasks/{what}", json={"ledger": "events", "ids": [id_], "reason": "mended", **more})


async def test_a_redrive_begins_anew(inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient) -> None:
    """Pending, due now, with all tries before it; the key still knows it; and who did it is kept."""
    app, webhooks = inbox
    id_ = await dead_webhook(app, webhooks)
    assert (await act(operator, "redrive", id_)).json()["changed"] == 1
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["lease_until"]) == ("pending", 0, None)
    assert [
        task.id
        for task in (await webhooks.lane.find(Filter(state=State.WAITING))).items
        if task.due_at <= app.database.now()
    ] == [id_]
    again = await webhooks.accept("order.paid", {}, idempotency_key="order-7")
    assert again is not None
    assert (again.id, len(await rows(app))) == (id_, 1)
    assert (await act(operator, "redrive", id_)).json()["changed"] == 0
    [deed] = (await operator.get("/api/audit", params={"ledger": "events"})).json()["acts"]
    assert (deed["task_id"], deed["act"], deed["actor"], deed["reason"]) == (id_, "redrive", "grace", "mended")
    shown = (await operator.get(f"/api/tasks/events/{id_}")).json()
    assert (shown["task"]["payload"], len(shown["preview"])) == ({"fail": True, "password": "[redacted]"}, 5)


@pytest.mark.parametrize(("state", "status"), [("done", "completed"), ("cancelled", "cancelled")])
async def test_one_that_failed_can_be_resolved(
    inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient, state: str, status: str
) -> None:
    """It is completed or cancelled then. Only one that waits can be cancelled without that."""
    app, webhooks = inbox
    id_ = await dead_webhook(app, webhooks)
    assert (await act(operator, "cancel", id_)).json()["changed"] == 0
    assert (await rows(app))[0]["status"] == "failed"
    assert (await act(operator, "resolve", id_, state=state)).json()["changed"] == 1
    assert (await operator.get(f"/webhooks/{id_}")).json()["status"] == status


async def test_what_waits_can_be_cancelled(inbox: tuple[Redrive, Webhooks], operator: httpx.AsyncClient) -> None:
    """It is not processed any more, and its key is known all the same."""
    app, webhooks = inbox
    made = await webhooks.accept("order.paid", {}, idempotency_key="order-7")
    assert made is not None
    assert (await act(operator, "cancel", made.id)).json()["changed"] == 1
    assert (await drain(app)).settlements == []
    again = await webhooks.accept("order.paid", {}, idempotency_key="order-7")
    assert again is not None
    assert (again.id, again.status, again.new) == (made.id, "cancelled", False)
