"""A whole service whose store is DynamoDB: every page and route of operators answers, and nothing reads a whole table."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from redrive import Redrive
from redrive.core.decide import decide
from redrive.core.durations import seconds
from redrive.core.outcome import Done, Failed, Outcome
from redrive.core.policy import Policy
from redrive.core.task import TaskId
from redrive.errors import PermanentError
from redrive.ledgers.aws.expressions import put
from redrive.ledgers.aws.heads import Part
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.settings import Settings
from redrive.stores.aws import ItemStore
from redrive.systems.triggers.aws.follow import EventFollower
from redrive.systems.triggers.ledger import TRIGGER_DELIVERIES
from redrive.web.app import make_web
from redrive.wiring import Service
from tests.ledgers.aws.homes import USER, new_event
from tests.web.test_reads_need_no_write import routes_that_look

from .items import Heard, item_url

LEDGER = TRIGGER_DELIVERIES.name
ASKED = (
    {},
    {"ledger": LEDGER},
    {"state": "dead"},
    {"state": "waiting"},
    {"state": "done"},
    {"error": "host"},
    {"cause": "x"},
)


@dataclass(slots=True)
class Site:
    """A service that stands still on items, and an admin who has logged in."""

    app: Redrive
    store: ItemStore
    service: Service
    web: Any
    client: httpx.AsyncClient
    heard: Heard
    secret: str

    async def put(self, *outcomes: Outcome | None) -> list[TaskId]:
        """Events of one delivery each, run once with these outcomes; None leaves one waiting."""
        ledger, now = await self.app.lanes[LEDGER].ledger(), self.store.now()
        assert isinstance(ledger, DynamoLedger)
        await self.store.dynamo.write([put((f"U#{USER}", "U"), {"listing": "users", "listing_at": USER})])
        ids: list[TaskId] = []
        for place, outcome in enumerate(outcomes):
            await ledger.take(
                new_event(f"event-{place}", {"00": Part(target="ep", due_at=now)}, now), counts={"received": 1}
            )
            ids.append(f"event-{place}.00")
            if outcome is None:
                continue
            claims = []
            while not claims:
                claims = await ledger.claim(10, seconds(30))
            settled = [decide(claim, outcome, Policy(attempts=1), elapsed=seconds(1)) for claim in claims]
            assert await ledger.settle(settled, worker="test") == []
        return ids

    async def get(self, path: str, **asked: Any) -> Any:
        answer = await self.client.get(path, params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def site(aws: str) -> AsyncIterator[Site]:
    async with item_url(aws) as url:
        app = Redrive(url)
        assert isinstance(app.store, ItemStore)
        ledger = DynamoLedger(app.store.dynamo, app.store.queue, TRIGGER_DELIVERIES, follower=EventFollower())
        app.adopt(TRIGGER_DELIVERIES, ledger=ledger)
        async with app:
            heard = Heard(app.store._late.dynamodb._client)
            app.store._late.dynamodb.become(heard)
            service = Service(app, Settings(_env_file=None))
            service.is_open = True
            made = await service.keys.create("ada", ["admin"])
            web = make_web(service)
            transport = httpx.ASGITransport(web, client=("192.0.2.7", 1), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example") as client:
                answer = await client.post("/login", data={"key": made.secret})
                assert answer.status_code == 200, answer.text
                client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
                yield Site(app, app.store, service, web, client, heard, made.secret)
            await service.close_all()


async def test_every_page_and_route_answers(site: Site):
    """Walked by the routes themselves: none has a fault, what an index does not serve is a sentence, and nothing scans."""
    [dead, *_] = await site.put(Failed(PermanentError("no such host")), Done(), None)
    await (await site.app.lanes[LEDGER].census()).take()
    values = {"ledger": LEDGER, "id": str(dead), "task_id": str(dead), "name": "triggers"}
    faults, walked = [], 0
    for path in routes_that_look(site.web):
        at = re.sub(r"{(\w+)(:\w+)?}", lambda found: values.get(found[1], "none"), path)
        for asked in ASKED:
            answer = await site.client.get(at, params=asked)
            walked += 1
            is_page = "text/html" in answer.headers.get("content-type", "")
            if answer.status_code >= 500 or (is_page and answer.status_code != 200):
                faults.append((at, asked, answer.status_code, answer.text[:300]))
            elif answer.status_code >= 400:
                assert answer.json()["error"]["message"]
    assert faults == []
    assert walked > 100
    assert "scan" not in site.heard.calls


async def test_people_see_and_act(site: Site):
    """A delivery that is dead is on the list with its cause, is redriven, and the audit tells by whom."""
    dead, _, waiting = await site.put(Failed(PermanentError("no such host")), Done(), None)
    await (await site.app.lanes[LEDGER].census()).take()
    listed = await site.get("/api/tasks", state="dead")
    assert [task["id"] for task in listed["tasks"]] == [dead]
    [group] = await site.get("/api/groups")
    assert (group["ledger"], group["amount"]) == (LEDGER, 1)
    by_cause = await site.get("/api/tasks", cause=group["cause"])
    assert [task["id"] for task in by_cause["tasks"]] == [dead]
    shown = await site.get(f"/api/tasks/{LEDGER}/{dead}")
    assert [attempt["state"] for attempt in shown["attempts"]] == ["dead"]
    overview = await site.get("/api/overview")
    assert overview["states"] | {"waiting": 1, "dead": 1, "done": 1} == overview["states"]
    body = {"filter": {"cause": group["cause"]}, "reason": "the host is back"}
    counted = await site.client.post("/api/tasks/redrive", json=body | {"dry_run": True})
    assert counted.json()["matched"] == 1
    acted = await site.client.post("/api/tasks/redrive", json=body)
    assert (acted.status_code, acted.json()["changed"]) == (200, 1)
    ended = await site.client.post("/api/tasks/cancel", json={"ids": [waiting], "reason": "not needed"})
    assert ended.json()["changed"] == 1, ended.text
    told = (await site.get("/api/audit"))["deeds"]
    assert [(deed["act"], deed["task_id"], deed["actor"]) for deed in told[:2]] == [
        ("cancel", waiting, "ada"), ("redrive", dead, "ada"),
    ]  # fmt: skip
    assert "scan" not in site.heard.calls


async def test_the_service_keeps_house(site: Site):
    """Books are kept and alerts looked for, as on SQL."""
    await site.put(Failed(PermanentError("no such host")))
    await site.service._bookkeeper.round()
    await site.service._watch.round()
    assert "new_group" in {alert["rule"] for alert in await site.get("/api/alerts")}
    assert await site.service.store_answers()
    metrics = (await site.client.get("/metrics")).text
    assert f'redrive_tasks{{ledger="{LEDGER}",state="dead"}} 1.0' in metrics
    assert f'redrive_ledger_up{{ledger="{LEDGER}"}} 1.0' in metrics
    assert "scan" not in site.heard.calls
