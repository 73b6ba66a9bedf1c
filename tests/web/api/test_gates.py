"""`/api/gates`: looking and acting, with the rights, the reasons and the log that other acts have."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive import TransientError, minutes
from redrive.core.decide import decide
from redrive.core.outcome import Failed
from redrive.gates import Breaker
from redrive.testing import VirtualClock
from tests.web.standing import LEASE, POLICY, Standing, standing

WHY: dict[str, Any] = {"gate": "bank:DE", "reason": "the bank moves"}


@pytest.fixture
async def web(url: str, clock: VirtualClock) -> AsyncIterator[Standing]:
    """A service with a bank that is down, three tasks parked behind it, and one that is well."""
    async with standing(url, clock) as made:
        made.app.gate("bank:*", concurrency=5, rate="20/s", breaker=Breaker(failures=2, probe=30))
        for number in range(5):
            await made.app.add("mail", key=f"mail-{number}", gate="bank:DE")
        ledger = await made.app.tasks.ledger()
        claims = await ledger.claim(2, LEASE)
        failed = [decide(claim, Failed(TransientError("no")), POLICY) for claim in claims]
        assert await ledger.settle(failed, worker="test") == []
        await made.app.add("mail", gate="bank:FR")
        yield made


async def test_gates_are_listed_and_shown(web: Standing):
    """What holds first; filters, pages, rules, and one gate with its last hour."""
    found = await web.get("/api/gates")
    assert [(one["name"], one["does"], one["parked"]) for one in found["gates"]] == [
        ("bank:DE", "holding", 3), ("bank:FR", "letting through", 1),
    ]  # fmt: skip
    assert found["gates"][0]["limits"]["breaker"]["failures"] == 2
    assert [(rule["pattern"], rule["set_by"]) for rule in found["rules"]] == [("bank:*", "code")]
    page = await web.get("/api/gates", limit=1)
    rest = await web.get("/api/gates", limit=1, cursor=page["cursor"])
    assert [one["name"] for one in page["gates"] + rest["gates"]] == ["bank:DE", "bank:FR"]
    assert (await web.get("/api/gates", does="paused"))["gates"] == []
    assert len((await web.get("/api/gates", prefix="bank:F"))["gates"]) == 1
    await (await web.app.tasks.gate_reader()).record()
    one = await web.get("/api/gates/redrive_task/bank:DE")
    assert (one["next_probe"], [span["does"] for span in one["spans"]]) == (one["until"], ["holding"])
    missing = await web.local.get("/api/gates/redrive_task/bank:UK")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "gate_unknown")


@pytest.mark.every_store
async def test_two_at_once_act_once(web: Standing):
    """Both saw the same version: the second gets 409 and the name of the first; what was done stands in the audit log."""
    [seen] = (await web.get("/api/gates", does="holding"))["gates"]
    body = WHY | {"version": seen["version"]}
    done = await web.post("/api/gates/pause", body | {"span": "1h"})
    assert (done["changed"], done["gate"]["does"], done["gate"]["paused_by"]) == (True, "paused", "operator")
    late = await web.post("/api/gates/pause", body, role="admin", status=409)
    assert late["error"]["code"] == "changed_meanwhile"
    assert "operator was quicker (gate paused) on 'bank:DE'" in late["error"]["message"]
    await web.post("/api/gates/set", body | {"concurrency": 1}, status=409)
    assert (await web.post("/api/gates/resume", WHY | {"version": done["gate"]["version"]}))["changed"]
    assert not (await web.post("/api/gates/resume", WHY))["changed"]
    set_ = await web.post("/api/gates/set", WHY | {"rate": "5/s", "breaker": None})
    assert (set_["gate"]["limits"]["concurrency"], set_["gate"]["limits"]["rate"]) == (5, "5/s")
    assert set_["gate"]["limits"]["breaker"] is None
    await web.post("/api/gates/set", WHY | {"unset": True})
    deeds = [(one["act"], one["task_id"], one["actor"], one["reason"]) for one in (await web.get("/api/audit"))["acts"]]
    assert deeds == [
        (f"gate {act}", "gate:bank:DE", "operator", WHY["reason"])
        for act in ("limits removed", "limits set", "resumed", "paused")
    ]


async def test_kinds_and_ledgers_are_paused(web: Standing, clock: VirtualClock):
    """Their tasks say by what they are held, and until when at least."""
    until = (clock.now() + minutes(5)).isoformat()
    await web.post("/api/gates/pause", {"gate": "kind:*", "reason": "no", "until": until})
    one = await web.get("/api/tasks/redrive_task/mail-4")
    assert one["parked"]["sentence"].startswith("held by the pause of the whole ledger, earliest ")
    assert one["preview"][0]["at"] == one["parked"]["earliest"]
    assert (await web.post("/api/gates/resume", {"gate": "kind:*", "reason": "yes"}))["changed"]
    one = await web.get("/api/tasks/redrive_task/mail-4")
    assert (one["parked"]["by"], one["parked"]["before"]) == ("bank:DE", 2)
    assert "next probe" in one["parked"]["explained"]
    assert one["preview"][0]["at"] == one["parked"]["next_probe"]


@pytest.mark.parametrize(
    ("act", "body"),
    [
        ("pause", {"gate": "bank:DE"}),
        ("pause", {"gate": "bank:DE", "reason": "  "}),
        ("pause", WHY | {"span": "1h", "until": "2199-01-01T00:00:00Z"}),
        ("pause", WHY | {"gate": ""}),
        ("resume", WHY | {"surprise": 1}),
        ("set", WHY),
        ("set", WHY | {"unset": True, "rate": "5/s"}),
        ("set", WHY | {"concurrency": 0}),
        ("set", WHY | {"rate": "many"}),
        ("set", WHY | {"gate": "kind:mail", "rate": "5/s"}),
        ("pause", WHY | {"until": "1999-01-01T00:00:00Z"}),
    ],
)
async def test_an_act_that_cannot_be_is_refused(web: Standing, act: str, body: dict[str, Any]):
    """With a sentence, and nothing is changed."""
    answer = await web.local.post(f"/api/gates/{act}", json=body, headers=web.headers())
    assert answer.status_code in (400, 422), answer.text
    assert (await web.get("/api/audit"))["acts"] == []


@pytest.mark.parametrize("act", ["pause", "resume", "set"])
async def test_viewers_look_and_do_not_touch(web: Standing, act: str):
    """A key without the scope is refused, and none at all too."""
    body = WHY | ({"rate": "5/s"} if act == "set" else {})
    await web.post(f"/api/gates/{act}", body, role="viewer", status=403)
    assert (await web.local.post(f"/api/gates/{act}", json=body)).status_code == 401
    assert (await web.get("/api/audit"))["acts"] == []


async def test_gates_are_on_the_pages_and_in_the_metrics(web: Standing):
    """The overview names what holds first, the page of gates explains it, the task says what holds it, and scrapes count it."""
    assert [(one["name"], one["does"]) for one in (await web.get("/api/overview"))["gates"]] == [("bank:DE", "holding")]
    overview = (await web.local.get("/")).text
    assert overview.index(">bank:DE</a>") < overview.index("All tasks, now")
    assert "has been holding" in overview
    page = (await web.local.get("/gates", params={"does": "holding"})).text
    assert "1 is holding" in page
    assert "The breaker tripped after 2 failures within 1m." in page
    assert "data-gate-act" not in page, "nobody is logged in"
    task = (await web.local.get("/tasks/redrive_task/mail-4")).text
    assert "parked behind bank:DE, earliest" in task
    assert "2 before it" in task
    text = (await web.local.get("/metrics")).text
    assert 'redrive_gate_state{gate="bank:DE",ledger="redrive_task",state="holding"} 1.0' in text
    assert 'redrive_gate_parked{gate="bank:DE",ledger="redrive_task"} 3.0' in text
    for wrong in ("?does=open", "?ledger=redrive_task&cursor=x", "?ledger=nothing"):
        assert (await web.local.get(f"/gates{wrong}", headers={"Accept": "text/html"})).status_code in (400, 404)
