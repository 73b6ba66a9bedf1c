"""Acting by the API: who, why, how many, and that two who press at once act once. On both databases."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from redrive import Redrive, minutes, seconds
from redrive.core.outcome import Failed
from redrive.core.states import State
from redrive.ledgers.sql import schema
from redrive.operator.json_views import instant_json
from redrive.testing import VirtualClock
from redrive.web.api import acts
from tests.web.standing import LEASE, Standing, standing


@pytest.fixture
async def web(url: str, clock: VirtualClock) -> AsyncIterator[Standing]:
    """A service that stands still."""
    async with standing(url, clock) as made:
        yield made


async def states(web: Standing) -> Counter[str]:
    """How many tasks are in which state, by the table itself."""
    t = schema.task
    asked = select(t.c.state, func.count()).group_by(t.c.state)
    return Counter(dict((await web.app.database.read(lambda connection: connection.execute(asked).all())) or ()))  # type: ignore[arg-type]


async def deeds(web: Standing) -> list[Any]:
    """What the audit log holds."""
    return await web.app.database.read(lambda connection: list(connection.execute(select(schema.deed))))


async def test_redrive_by_ids(web: Standing):
    """Dead ones go back, others stay; who and why is recorded with each, under the name of the key's owner."""
    dead = await web.dead("x", "y")
    done = await web.done(1)
    body = {"ids": [*dead, *done, 999_999], "reason": "  the bank is back "}
    seen = await web.post("/api/tasks/redrive", body | {"dry_run": True})
    assert (seen["matched"], seen["changed"], await deeds(web)) == (2, 0, [])
    said = await web.post("/api/tasks/redrive", body)
    assert (said["matched"], said["changed"]) == (2, 2)
    assert said["refused"] == {
        str(done[0]): "it is done: only dead tasks can be redriven",
        "999999": "there is no such task",
    }
    assert await states(web) == {"waiting": 2, "done": 1}
    assert {(row.task_id, row.act, row.actor, row.reason) for row in await deeds(web)} == {
        (str(id_), "redrive", "operator", "the bank is back") for id_ in dead
    }


async def test_keys_work_where_ids_do(web: Standing):
    """For every act; a text that means no task, or two, is refused and nothing is done."""
    [first] = await web.dead("x")
    key = (await web.get(f"/api/tasks/redrive_task/{first}"))["task"]["key"]
    refused = await web.post("/api/tasks/redrive", {"ids": [key, "nobody"], "reason": "x"}, status=400)
    assert "there is no task with the id or key 'nobody'" in refused["error"]["message"]
    assert (await web.post("/api/tasks/redrive", {"ids": [key, str(first)], "reason": "x"}))["changed"] == 1
    assert (await web.post("/api/tasks/cancel", {"ids": [key], "reason": "x"}))["changed"] == 1
    [second] = await web.dead("y")
    await web.app.add("mail", key=str(second))
    both = await web.post("/api/tasks/resolve", {"ids": [str(second)], "state": "done", "reason": "x"}, status=400)
    assert "is the id of one task and the key of another" in both["error"]["message"]
    assert (await web.post("/api/tasks/resolve", {"ids": [second], "state": "done", "reason": "x"}))["changed"] == 1


async def test_cancel_by_filter(web: Standing):
    """Waiting ones of a kind end; what runs is not touched."""
    await web.put(3)
    await web.put(2, kind="print")
    [held] = await (await web.app.tasks.ledger()).claim(1, LEASE, kinds=["print"])
    body = {"filter": {"state": "waiting", "kind": "print"}, "reason": "sent by hand"}
    assert (await web.post("/api/tasks/cancel", body))["changed"] == 1
    assert await states(web) == {"waiting": 3, "claimed": 1, "cancelled": 1}
    assert held.task.kind == "print"


@pytest.mark.parametrize("by", [{"error": "gone"}, {"kind": "mail"}, {"state": "dead"}, {}, {"older_than": "0s"}])
async def test_the_number_shown_is_the_number_acted_on(web: Standing, by: dict[str, Any]):
    """What died between the look and the act is not in it, and so is what was redriven and died again."""
    first, again = await web.dead("gone 1", "gone 2")
    seen = await web.post("/api/tasks/redrive", {"filter": by, "reason": "x", "dry_run": True})
    assert seen["matched"] == 2
    web.clock.advance(seconds(1))
    await (await web.app.tasks.ledger()).redrive([again], _actor())
    [claim] = await (await web.app.tasks.ledger()).claim(1, LEASE, kinds=["mail"])
    await _die(web, claim, "gone 3")
    late = await web.dead("gone 4")
    said = await web.post("/api/tasks/redrive", {"filter": {**by, "until": seen["until"]}, "reason": "x"})
    assert (said["matched"], said["changed"], said["until"]) == (1, 1, seen["until"])
    shown = await web.get("/api/tasks", state="dead")
    assert sorted(task["id"] for task in shown["tasks"]) == sorted([again, *late])
    assert first not in (again, *late)


@pytest.mark.parametrize("by", [{"state": "dead"}, {"cause": True}])
async def test_an_age_is_that_at_the_look(web: Standing, by: dict[str, Any]):
    """What grew old enough between the look and the act is not in it."""
    await web.dead("gone 1", "gone 2")
    web.clock.advance(minutes(5))
    await web.dead("gone 3")
    web.clock.advance(minutes(8))
    await web.count()
    if "cause" in by:
        by = {"cause": (await web.get("/api/groups"))[0]["cause"]}
    by = {**by, "older_than": "10m"}
    seen = await web.post("/api/tasks/redrive", {"filter": by, "reason": "x", "dry_run": True})
    assert seen["matched"] == 2
    web.clock.advance(minutes(5))
    said = await web.post("/api/tasks/redrive", {"filter": {**by, "until": seen["until"]}, "reason": "x"})
    assert (said["matched"], said["changed"]) == (2, 2)


async def test_never_more_than_was_shown(web: Standing):
    """What was just being written when the others were counted has an earlier time than the look: the number holds."""
    await web.dead("gone 1", "gone 2", "gone 3")
    seen = await web.post("/api/tasks/redrive", {"filter": {}, "reason": "x", "dry_run": True})
    await web.dead("at the same moment")
    body = {"filter": {"until": seen["until"]}, "reason": "x", "at_most": seen["matched"]}
    said = await web.post("/api/tasks/redrive", body)
    assert (said["changed"], said["complete"]) == (3, True)
    assert (await web.post("/api/tasks/redrive", body | {"at_most": 0}))["changed"] == 0


async def _die(web: Standing, claim: Any, error: str) -> None:
    from redrive.core.decide import decide
    from redrive.errors import PermanentError
    from tests.web.standing import POLICY

    ended = decide(claim, Failed(PermanentError(error)), POLICY, elapsed=seconds(1))
    assert await (await web.app.tasks.ledger()).settle([ended], worker="test") == []


def _actor() -> Any:
    from redrive.ports import Actor

    return Actor(name="somebody", reason="earlier")


async def test_a_group_is_redriven_as_it_was_seen(web: Standing):
    """By its cause; what died of the same since then stays, and so do other groups."""
    await web.dead(*(f"order {number} is gone" for number in range(5)), "another")
    await web.count()
    group = (await web.get("/api/groups"))[0]
    by = {"cause": group["cause"]}
    seen = await web.post("/api/tasks/redrive", {"filter": by, "reason": "x", "dry_run": True})
    assert seen["matched"] == group["amount"] == 5
    web.clock.advance(minutes(1))
    await web.dead("order 7 is gone")
    await web.count()
    said = await web.post("/api/tasks/redrive", {"filter": {**by, "until": seen["until"]}, "reason": "x"})
    assert (said["matched"], said["changed"]) == (5, 5)
    assert await states(web) == {"waiting": 5, "dead": 2}


@pytest.mark.every_store
async def test_two_operators_act_once(url: str, web: Standing, clock: VirtualClock):
    """Through two services on one database, at the same moment: each task changes once, and each deed has one actor."""
    ids = await web.dead(*(f"order {number}" for number in range(60)))
    await web.count()
    cause = (await web.get("/api/groups"))[0]["cause"]
    seen = await web.post("/api/tasks/redrive", {"filter": {"cause": cause}, "reason": "x", "dry_run": True})
    other = Redrive(url, clock=clock, durable=False)
    async with standing(url, clock, app=other) as second:
        bodies = [
            {"filter": {"cause": cause, "until": seen["until"]}, "reason": "a"},
            {"filter": {"state": "dead", "until": seen["until"]}, "reason": "b"},
            {"ids": ids, "reason": "c"},
        ]
        both = [
            (web if number % 2 else second).post("/api/tasks/redrive", body, role=role)
            for number in range(2)
            for body in bodies
            for role in ("operator", "admin")
        ]
        answers = await asyncio.gather(*both)
    assert sum(answer["changed"] for answer in answers) == len(ids)
    assert Counter(row.task_id for row in await deeds(web)) == Counter(str(id_) for id_ in ids)
    rows = await web.app.database.read(
        lambda connection: list(connection.execute(select(schema.task.c.redrives)).scalars())
    )
    assert rows == [1] * len(ids)


@pytest.mark.every_store
async def test_cancel_and_redrive_and_resolve_at_once(web: Standing):
    """Whoever comes second finds nothing to do: every task ends in one place, by one deed."""
    ids = await web.dead(*["x"] * 30)
    await asyncio.gather(
        web.post("/api/tasks/resolve", {"ids": ids, "state": "done", "reason": "by hand"}),
        web.post("/api/tasks/resolve", {"ids": ids, "state": "cancelled", "reason": "no"}, role="admin"),
        web.post("/api/tasks/redrive", {"ids": ids, "reason": "again"}),
    )
    assert Counter(row.task_id for row in await deeds(web)) == Counter(str(id_) for id_ in ids)
    assert sum((await states(web)).values()) == 30
    assert (await states(web))["dead"] == 0


async def test_resolve(web: Standing):
    """Dead ones end as done or cancelled, others do not change."""
    first, second = await web.dead("x", "y")
    [waiting] = await web.put(1)
    said = await web.post("/api/tasks/resolve", {"ids": [first, waiting], "state": "done", "reason": "paid by hand"})
    refused = {str(waiting): "it is waiting: only dead tasks can be resolved"}
    assert (said["matched"], said["changed"], said["refused"]) == (1, 1, refused)
    assert (await web.post("/api/tasks/resolve", {"ids": [second], "state": "cancelled", "reason": "x"}))[
        "changed"
    ] == 1
    assert await states(web) == {"done": 1, "cancelled": 1, "waiting": 1}
    await web.post("/api/tasks/resolve", {"ids": [first], "state": "waiting", "reason": "x"}, status=422)


async def test_resolve_by_filter(web: Standing):
    """As redrive and cancel: counted first, then what was counted and nothing else."""
    await web.dead(*["x"] * 3)
    [late] = await web.dead("late", kind="print")
    body: dict[str, Any] = {"filter": {"kind": "mail"}, "state": "cancelled", "reason": "not wanted"}
    counted = await web.post("/api/tasks/resolve", body | {"dry_run": True})
    assert (counted["matched"], counted["changed"]) == (3, 0)
    body["filter"]["until"] = counted["until"]
    said = await web.post("/api/tasks/resolve", body | {"at_most": 2})
    assert (said["matched"], said["changed"], said["complete"]) == (2, 2, True)
    assert await states(web) == {"cancelled": 2, "dead": 2}
    assert (await web.app.tasks.get_by_id(late)).state is State.DEAD


async def test_a_large_act_stops_and_goes_on(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """It says that it is not complete; sent again with its `until` it takes the rest, and nothing else."""
    await web.dead(*["x"] * 7)
    monkeypatch.setattr("redrive.operator.acts.CHUNK", 3)
    monkeypatch.setattr(acts, "ACT_WITHIN", timedelta(seconds=-1))
    first = await web.post("/api/tasks/redrive", {"filter": {}, "reason": "x"})
    assert (first["changed"], first["complete"]) == (3, False)
    web.clock.advance(seconds(1))
    await web.dead("late", kind="print")
    body = {"filter": {"until": first["until"]}, "reason": "x"}
    answers = [await web.post("/api/tasks/redrive", body) for _ in range(3)]
    assert [(one["changed"], one["complete"]) for one in answers] == [(3, False), (1, True), (0, True)]
    assert (await states(web))["dead"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"ids": [1]},
        {"ids": [1], "reason": "   "},
        {"ids": [], "reason": "x"},
        {"reason": "x"},
        {"ids": [1], "filter": {}, "reason": "x"},
        {"ids": [1], "reason": "x", "unknown": True},
        {"ids": list(range(1001)), "reason": "x"},
        {"filter": {"state": "nonsense"}, "reason": "x"},
        {"filter": {"older_than": "soon"}, "reason": "x"},
        {"filter": {"state": "done"}, "reason": "x"},
        {"ids": ["abc"], "reason": "x"},
        {"ids": [1], "reason": "x" * 501},
        {"ids": [1], "reason": "a\u0000b"},
        {"ledger": "nothing", "ids": [1], "reason": "x"},
    ],
)
async def test_an_act_that_cannot_be_is_refused(web: Standing, body: dict[str, Any]):
    """With a sentence, and nothing is changed."""
    await web.dead("x")
    answer = await web.local.post("/api/tasks/redrive", json=body, headers=web.headers())
    assert answer.status_code in (400, 404, 422), answer.text
    assert await deeds(web) == []


@pytest.mark.parametrize("act", ["redrive", "cancel", "resolve"])
async def test_viewers_look_and_do_not_touch(web: Standing, act: str):
    """403 for a viewer; operator and admin may; no act by GET."""
    body = {"ids": [1], "reason": "x"} | ({"state": "done"} if act == "resolve" else {})
    assert (await web.local.post(f"/api/tasks/{act}", json=body, headers=web.headers("viewer"))).status_code == 403
    assert (await web.local.post(f"/api/tasks/{act}", json=body, headers=web.headers("admin"))).status_code == 200
    assert (await web.local.get(f"/api/tasks/{act}", headers=web.headers("admin"))).status_code in (404, 405)


async def test_the_audit_tells_all(web: Standing):
    """Newest first, page by page, of all or of one ledger; from where it was done stands there too."""
    for number in range(3):
        ids = await web.dead("x", kind=f"kind-{number}")
        await web.post("/api/tasks/redrive", {"ids": ids, "reason": f"reason {number}"})
        web.clock.advance(seconds(1))
    page = await web.get("/api/audit", limit=2)
    assert [act["reason"] for act in page["acts"]] == ["reason 2", "reason 1"]
    assert (page["acts"][0]["actor"], page["acts"][0]["origin"]) == ("operator", "API, 127.0.0.1")
    rest = await web.get("/api/audit", limit=2, cursor=page["cursor"])
    assert ([act["reason"] for act in rest["acts"]], rest["cursor"]) == (["reason 0"], None)
    of_ledger = await web.get("/api/audit", ledger="redrive_task")
    assert (len(of_ledger["acts"]), of_ledger["cursor"]) == (3, None)
    assert await web.get("/api/audit", ledger="of another service") == {"acts": [], "cursor": None}
    assert (await web.local.get("/api/audit?ledger=%00", headers=web.headers("viewer"))).status_code == 422


async def test_an_act_on_many_is_one_entry_that_opens_to_its_tasks(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """Also one that stopped between two pages and went on: with its count, its filter, and its tasks page by page."""
    monkeypatch.setattr("redrive.operator.acts.CHUNK", 2)
    ids = await web.dead(*["x"] * 5)
    await web.put(1)
    body = {"filter": {"kind": "mail", "until": instant_json(web.clock.now())}, "reason": "mended"}
    await web.post("/api/tasks/redrive", body | {"at_most": 3})
    await web.post("/api/tasks/redrive", body)
    [act] = (await web.get("/api/audit"))["acts"]
    assert (act["act"], act["amount"], act["task_id"], act["things"]) == ("redrive", 5, None, [])
    assert act["asked"]["kind"] == "mail"
    first = await web.get(f"/api/audit/{act['id']}", limit=3)
    rest = await web.get(f"/api/audit/{act['id']}", limit=3, cursor=first["cursor"])
    assert first["things"] + rest["things"] == [str(id_) for id_ in ids]
    assert rest["cursor"] is None
    looks = web.headers("viewer") | {"Accept": "text/html"}
    assert f'<a href="/audit/{act["id"]}">5 tasks</a>' in (await web.local.get("/audit", headers=looks)).text
    page = (await web.local.get(f"/audit/{act['id']}", headers=looks)).text
    assert all(f'<a href="/tasks/redrive_task/{id_}">{id_}</a>' in page for id_ in ids)
    assert (await web.local.get("/audit/999999", headers=looks)).status_code == 404
    for path, status in (("/api/audit/999999", 404), ("/api/audit/x", 400), (f"/api/audit/{act['id']}?cursor=x", 400)):
        assert (await web.local.get(path, headers=web.headers("viewer"))).status_code == status


async def test_what_was_redriven_runs_and_keeps_its_history(web: Standing):
    """Its next try is the first of a new budget; the old ones are still there."""
    [id_] = await web.dead("x")
    await web.post("/api/tasks/redrive", {"ids": [id_], "reason": "again"})
    [claim] = await (await web.app.tasks.ledger()).claim(1, LEASE, kinds=["mail"])
    assert (claim.number, claim.task.state) == (1, State.CLAIMED)
    said = await web.get(f"/api/tasks/redrive_task/{id_}")
    assert (len(said["attempts"]), said["task"]["redrives"], len(said["deeds"])) == (1, 1, 1)
