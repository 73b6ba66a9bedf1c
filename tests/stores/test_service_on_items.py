"""A whole service whose store is DynamoDB: every page and route answers, and nothing reads a whole table."""

import asyncio
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
from redrive.errors import PermanentError
from redrive.running import Service
from redrive.settings import Settings
from redrive.stores.aws import ItemStore
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.ledger import ENDPOINTS
from redrive.systems.triggers.settings import TriggerSettings
from redrive.web.app import make_web
from tests.breadth import WIDE
from tests.web.test_nothing_is_a_fault import WHOLE
from tests.web.test_reads_need_no_write import routes_that_look

from .items import Heard, item_url

LEDGER = "trigger_deliveries"
DEAD, DONE = Failed(PermanentError("no such host")), Done()
NOBODY = {"reason": "x", "ids": ["nobody.00"], "state": "done"}
NOT_RUNNING = {"/ready"}
"""What says of a service that stands still that it does not work."""
ASKED = ({}, {"ledger": LEDGER}, {"state": "dead"}, {"state": "waiting"}, {"state": "done"}, {"error": "host"}, {"cause": "x"})  # fmt: skip


@dataclass(slots=True)
class Site:
    """A service that stands still on items, and an admin who has logged in."""

    app: Redrive
    service: Service
    web: Any
    client: httpx.AsyncClient
    heard: Heard
    secret: str

    async def endpoint(self) -> str:
        """One that takes all events."""
        body = {"url": "https://93.184.215.14/hook", "event_types": ["*"]}
        return str((await self.post("/v1/endpoints", body, status=201))["endpoint_id"])

    async def send(self, *outcomes: Outcome | None) -> list[str]:
        """Events whose one delivery is run once with these outcomes; None leaves one waiting. The ids of the deliveries."""
        ledger, ids = await self.app.lanes[LEDGER].ledger(), []
        for outcome in outcomes:
            sent = await self.post("/v1/events", {"event_type": "order.made", "payload": {"n": 1}}, status=201)
            ids.append(f"{sent['event_id']}.00")
            claims: list[Any] = []
            while outcome is not None and not claims:
                claims = await ledger.claim(10, seconds(30))
            settled = [decide(claim, outcome, Policy(attempts=1), elapsed=seconds(1)) for claim in claims]
            assert await ledger.settle(settled, worker="test") == []
        return ids

    async def get(self, path: str, **asked: Any) -> Any:
        answer = await self.client.get(path, params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any, *, status: int = 200) -> Any:
        answer = await self.client.post(path, json=body, headers={"X-API-Key": self.secret})
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
async def site(aws: str) -> AsyncIterator[Site]:
    async with item_url(aws) as url:
        app = Redrive(url)
        Triggers(app, TriggerSettings(_env_file=None))
        async with app:
            assert isinstance(app.store, ItemStore)
            heard = app.store.dynamo._client = Heard(app.store.dynamo._client)
            service = Service(app, Settings(_env_file=None))
            service.is_open = True
            made = await service.keys.create("ada", ["admin"])
            web = make_web(service)
            transport = httpx.ASGITransport(web, client=("192.0.2.7", 1), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example") as client:
                answer = await client.post("/login", data={"key": made.secret})
                assert answer.status_code == 200, answer.text
                client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
                yield Site(app, service, web, client, heard, made.secret)
            await service.close_all()


async def test_every_page_and_route_answers(site: Site):
    """Walked by the routes themselves: none has a fault, what no index serves is said in a sentence, and nothing scans."""
    endpoint = await site.endpoint()
    [dead, *_] = await site.send(DEAD, DONE, None)
    await (await site.app.lanes[LEDGER].census()).take()
    key = (await site.service.keys.list())[0].id
    known = {"ledger": LEDGER, "id": dead, "task_id": dead, "name": "triggers", "event_id": dead[:-3]}
    known |= {"endpoint_id": endpoint, "key_id": key}
    faults, walked = [], 0
    for turn, path in enumerate(routes_that_look(site.web)):
        at = re.sub(r"{(\w+)(:\w+)?}", lambda found: known.get(found[1], "none"), path)
        for asked in ASKED if WIDE else (*ASKED[:2], ASKED[2 + turn % 5]):
            answer = await site.client.get(at, params=asked, headers={"X-API-Key": site.secret})
            walked += 1
            is_page = "text/html" in answer.headers.get("content-type", "")
            if (answer.status_code >= 500 and path not in NOT_RUNNING) or (is_page and answer.status_code != 200):
                faults.append((at, asked, answer.status_code, answer.text[:300]))
            elif answer.status_code >= 400 and path not in NOT_RUNNING:
                assert answer.json()["error"]["message"]
    assert faults == []
    assert walked > 75
    assert site.heard.calls["query"] > 0
    assert "scan" not in site.heard.calls


async def test_every_route_that_changes_something_answers(site: Site):
    """With nothing to change and with what names nobody: refused or done, never a fault, and nothing scans."""
    faults, walked = [], 0
    for path, operations in site.web.openapi()["paths"].items():
        for method in operations.keys() - {"get", "parameters"}:
            at = re.sub(r"{.*?}", "none", path)
            for body in ({}, NOBODY | WHOLE.get(path, {}), NOBODY | {"filter": {"state": "dead"}}):
                answer = await site.client.request(method, at, json=body, headers={"X-API-Key": site.secret})
                walked += 1
                if answer.status_code >= 500:
                    faults.append((method, at, body, answer.status_code, answer.text[:300]))
    assert faults == []
    assert walked > 50
    assert "scan" not in site.heard.calls


async def test_people_see_and_act(site: Site):
    """A delivery that is dead is on the list with its cause, is redriven, and the audit tells by whom."""
    endpoint = await site.endpoint()
    dead, _, waiting = await site.send(DEAD, DONE, None)
    await (await site.app.lanes[LEDGER].census()).take()
    listed = await site.get("/api/tasks", state="dead")
    assert [task["id"] for task in listed["tasks"]] == [dead]
    [group] = await site.get("/api/groups")
    assert (group["ledger"], group["amount"]) == (LEDGER, 1)
    by_cause = await site.get("/api/tasks", cause=group["cause"])
    assert [task["id"] for task in by_cause["tasks"]] == [dead]
    shown = await site.get(f"/api/tasks/{LEDGER}/{dead}")
    assert [attempt["state"] for attempt in shown["attempts"]] == ["dead"]
    body = {"filter": {"cause": group["cause"]}, "reason": "the host is back"}
    assert (await site.post("/api/tasks/redrive", body | {"dry_run": True}))["matched"] == 1
    assert (await site.post("/api/tasks/redrive", body))["changed"] == 1
    assert (await site.post("/api/tasks/cancel", {"ids": [waiting], "reason": "not needed"}))["changed"] == 1
    await site.post("/api/triggers/endpoints/disable", {"ids": [endpoint], "reason": "too slow"})
    told = (await site.get("/api/audit"))["acts"]
    assert [(deed["act"], deed["ledger"], deed["task_id"], deed["actor"]) for deed in told[:3]] == [
        ("disable", ENDPOINTS, endpoint, "ada"), ("cancel", LEDGER, waiting, "ada"), ("redrive", LEDGER, dead, "ada"),
    ]  # fmt: skip
    assert "scan" not in site.heard.calls


async def test_the_service_keeps_house(site: Site):
    """Books are kept, charts drawn and alerts looked for, as on SQL."""
    await site.endpoint()
    await site.send(DEAD, DONE, None)
    await site.service._bookkeeper.round()
    await site.service._watch.round()
    assert "new_group" in {alert["rule"] for alert in await site.get("/api/alerts")}
    assert await site.service.store_answers()
    overview = await site.get("/api/overview")
    assert (overview["of"], overview["states"]["dead"], overview["states"]["done"]) == ("events", 1, 1)
    depth = (await site.get("/api/series"))["depth"][-1]
    assert (depth["waiting"], depth["dead"]) == (1, 1)
    metrics = (await site.client.get("/metrics")).text
    assert f'redrive_tasks{{ledger="{LEDGER}",state="dead"}} 1.0' in metrics
    assert f'redrive_ledger_up{{ledger="{LEDGER}"}} 1.0' in metrics
    assert "scan" not in site.heard.calls


def test_each_event_loop_has_clients_of_its_own(aws: str):
    """An application is used in one loop after another, closed or not, as on SQL."""
    with asyncio.Runner() as runner:
        made = item_url(aws)
        app = Redrive(runner.run(made.__aenter__()))
        key = runner.run(app.store.keys.create("ada", ["viewer"])).key
        assert asyncio.run(_keys_of(app)) == [key.id]
        assert asyncio.run(_keys_of(app)) == [key.id]
        assert runner.run(_keys_of(app)) == [key.id]
        runner.run(made.__aexit__(None, None, None))


async def _keys_of(app: Redrive) -> list[str]:
    async with app:
        return [key.id for key in await app.store.keys.list()]
