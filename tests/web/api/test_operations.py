"""`/api/operations`: started at once, looked at while it runs, and steered with the rights and reasons of other acts."""

from datetime import timedelta

import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed
from redrive.engine.tally import KindCounts, KindMinute
from redrive.errors import PermanentError
from redrive.operator.alert_rules import halted_operations
from redrive.operator.carrier import Carrier
from redrive.operator.roster import WorkerSign
from tests.web.standing import POLICY, Standing, standing

WHY = {"reason": "the bank is back"}
PATCH = [{"op": "replace", "path": "/country", "value": "DE"}]


@pytest.fixture
def url(tmp_path) -> str:  # routes know no database
    return f"sqlite:///{tmp_path / 'web.db'}"


@pytest.fixture
async def web(url, clock):
    async with standing(url, clock) as made:
        await made.dead("no", "no", "no", payload={"country": "GB", "token": "s3cret"})
        clock.advance(timedelta(seconds=1))
        yield made


async def carried(web: Standing, rounds: int = 3) -> None:
    carrier = Carrier(web.app.store.operations, lambda: web.app.lanes, "test")
    for _ in range(rounds):
        web.clock.advance(await carrier.round())


async def test_start_look_and_steer(web: Standing):
    """The answer to a start is the operation; its page has the steps, and acts say who did them."""
    started = await web.post("/api/operations", WHY | {"filter": {"kind": "mail"}})
    assert (started["state"], started["started_by"], started["tasks"]["total"]) == ("gathering", "operator", 0)
    await carried(web)
    path = f"/api/operations/{started['id']}"
    shown = await web.get(path)
    assert (shown["state"], shown["tasks"]["released"], shown["says"]) == (
        "running",
        1,
        "waits for the last 1 of step 1",
    )
    assert shown["by_step"][0]["fates"]["released"] == 1
    assert shown["next"][0]["does"] == "Waits for 1 that is out"
    paused = await web.post(f"{path}/pause", WHY)
    assert (paused["state"], paused["changed_by"]) == ("paused", "operator")
    again = await web.post(f"{path}/pause", WHY, status=409)
    assert again["error"]["code"] == "stands_elsewhere"
    assert (await web.post(f"{path}/change", WHY | {"rate": "5/m", "halt": 0.5}))["ramp"]["rate"] == 5
    assert (await web.post(f"{path}/give-back", WHY))["state"] == "given back"
    page = await web.get("/api/operations", state="given back")
    assert [one["id"] for one in page["operations"]] == [started["id"]]
    acts = [deed.act for deed in await web.app.tasks.deeds(f"operation:{started['id']}")]
    assert "operation given back" in acts


async def test_a_dry_run_stores_nothing(web: Standing):
    """It says what would be taken, when each would be tried, and what an edit would change, without secrets."""
    plan = await web.post("/api/operations", WHY | {"filter": {}, "dry_run": True, "patch": PATCH})
    assert (plan["matched"], plan["kinds"]) == (3, [{"kind": "mail", "amount": 3}])
    assert len(plan["tries"]["mail"]) == 4
    assert plan["sampled"][0]["changes"] == [{"op": "replace", "path": "/country", "before": "GB", "after": "DE"}]
    assert (await web.get("/api/operations"))["operations"] == []


async def test_edits_can_be_read(web: Standing):
    """As they were, as they are since, and the difference; what is secret stays hidden."""
    started = await web.post("/api/operations", WHY | {"filter": {}, "patch": PATCH, "all_now": True})
    await carried(web)
    edits = await web.get(f"/api/operations/{started['id']}/edits")
    assert len(edits) == 3
    assert (edits[0]["before"]["country"], edits[0]["after"]["country"]) == ("GB", "DE")
    assert "s3cret" not in str(edits)
    tasks = await web.get(f"/api/operations/{started['id']}/tasks", fate="released", limit=2)
    assert (len(tasks["tasks"]), tasks["cursor"]) == (2, 1)


async def test_who_may_not(web: Standing):
    """Looking is for viewers, acting for operators; unknown operations and wrong bodies are refused with a sentence."""
    await web.post("/api/operations", WHY | {"filter": {}}, role="viewer", status=403)
    assert (await web.local.get("/api/operations/nothing")).json()["error"]["code"] == "operation_unknown"
    for body in ({"filter": {}, "ids": [1]}, {}, {"filter": {}, "steps": [0]}, {"filter": {}, "halt": 2}):
        await web.post("/api/operations", WHY | body, status=422)
    for body in ({"filter": {}, "rate": "x"}, {"filter": {}, "patch": [{"op": "fly"}]}, {"filter": {"state": "done"}}):
        await web.post("/api/operations", WHY | body, status=400)


async def test_its_page_says_what_it_does_next_and_why_it_stopped(web: Standing):
    """Drawn on the server; what people wrote is escaped, and who may act has buttons."""
    body = {"reason": "<b>bank</b> is back", "filter": {}, "patch": PATCH}
    started = await web.post("/api/operations", body)
    await carried(web)
    text = (await web.local.get(f"/operations/{started['id']}", headers=web.headers())).text
    assert "Bringing back 3 tasks" in text
    assert "Waits for the last 1 of step 1." in text
    assert "Releases 2 of step 2" in text
    assert "&lt;b&gt;bank&lt;/b&gt;" in text
    assert "<b>bank" not in text
    assert '<code>"GB"</code>' in text
    assert "s3cret" not in text
    listed = (await web.local.get("/operations")).text
    assert f'href="/operations/{started["id"]}"' in listed
    missing = await web.local.get("/operations/nothing", headers={"Accept": "text/html"})
    assert missing.status_code == 404


async def test_its_page_says_which_version_runs_and_in_which_they_failed(web: Standing):
    """The version of the workers that are there, beside the last one that failed before the operation began."""
    now = web.clock.now()
    minute = KindMinute(now.replace(second=0), "mail", "", 3, 3, 3, 0, 3, now, now, ran=[3, *[0] * 13])
    await web.app.store.kinds.write([KindCounts("redrive_task", [minute], [])], worker="old", version="9c1e")
    web.clock.advance(timedelta(minutes=5))
    for name, version, ago in (("old", "9c1e", 600), ("new", "4f31", 60)):
        started = web.clock.now() - timedelta(seconds=ago)
        sign = WorkerSign(name=name, host="h", pid=1, started_at=started, version=version, stops=name == "old")
        await web.app.store.roster.sign(sign)
    operation = await web.post("/api/operations", WHY | {"filter": {"kind": "mail"}})
    await carried(web)
    text = (await web.local.get(f"/operations/{operation['id']}")).text
    assert "4f31 runs now; last failed in 9c1e" in text


async def test_one_is_tried_first_and_its_page_offers_the_others(web: Standing):
    """Causes and the first screen start operations; when the one has worked, its page leads to the rest of its cause."""
    await web.count()
    [group] = await web.get("/api/groups")
    await web.local.post("/login", data={"key": web.secrets["operator"]})
    listed = (await web.local.get("/dead")).text
    assert "data-start" in listed
    assert 'data-act="redrive"' not in listed
    cause = {"filter": {"cause": group["cause"]}}
    assert (await web.post("/api/operations", WHY | cause | {"dry_run": True}))["matched"] == 3
    started = await web.post("/api/operations", WHY | cause | {"at_most": 1})
    assert started["asked_words"] == f"the first 1 of cause {group['cause']}"
    await carried(web)
    ledger = await web.app.tasks.ledger()
    [claim] = await ledger.claim(5, timedelta(seconds=30))
    await ledger.settle([decide(claim, Done(), POLICY)], worker="test")
    await carried(web)
    text = (await web.local.get(f"/operations/{started['id']}")).text
    assert "Brought back 1 task" in text
    assert "Bring back the others…" in text
    await web.post("/api/operations", WHY | cause | {"at_most": 0}, status=422)


async def test_an_alert_starts_when_it_halts_itself(web: Standing):
    """And ends when a person has done something about it."""
    started = await web.post("/api/operations", WHY | {"filter": {}, "steps": [1]})
    await carried(web)
    ledger = await web.app.tasks.ledger()
    [claim] = await ledger.claim(5, timedelta(seconds=30))
    await ledger.settle([_failed(claim)], worker="test")
    await carried(web)
    text = (await web.local.get(f"/operations/{started['id']}", headers=web.headers())).text
    assert "It stopped by itself: the first task released failed again, and the limit is 10%." in text
    assert "1 of the same cause" in text
    page = (await web.local.get(f"/operations/{started['id']}/tasks?fate=failed", headers=web.headers())).text
    assert page.count("<tr>") == 2
    assert ">Failed again 1</a>" in page
    assert 'data-name="Step">1</td>' in page
    assert "PermanentError: no" in page
    [again] = (await web.get(f"/api/operations/{started['id']}"))["failed_tasks"]
    assert (again["same"], again["error"]) == (True, "PermanentError: no")
    [alarm] = halted_operations(await web.app.store.operations.open())
    assert alarm.text.startswith(
        f"redrive_task: operation {started['id']} has halted with 2 tasks to come: it stopped by itself"
    )
    await web.post(f"/api/operations/{started['id']}/give-back", WHY)
    assert halted_operations(await web.app.store.operations.open()) == []


def _failed(claim):
    return decide(claim, Failed(PermanentError("no")), POLICY)
