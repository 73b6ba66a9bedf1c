"""Looking by the API: numbers, pages, single tasks, causes, search and previews, on both databases."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from redrive import Redrive, minutes, seconds
from redrive.cli import app as command_line
from redrive.core.outcome import Done, Failed
from redrive.core.states import State
from redrive.operator.roster import WorkerSign
from redrive.operator.sql.figures import SqlFigures
from redrive.ports import Filter
from redrive.settings import SYSTEMS
from redrive.testing import VirtualClock
from redrive.web.api import overview, searches
from redrive.wiring import attach_systems

from .standing import LEASE, Standing, standing


@pytest.fixture
async def web(url: str, clock: VirtualClock) -> AsyncIterator[Standing]:
    """A service that stands still."""
    async with standing(url, clock) as made:
        yield made


# --- numbers ----------------------------------------------------------------------------------------------------------


async def test_an_empty_service_has_every_number(web: Standing):
    """Zero where nothing is, null where nothing can be known."""
    said = await web.get("/api/overview")
    assert said["states"] == dict.fromkeys(("waiting", "claimed", "done", "dead", "cancelled"), 0)
    assert (said["success_rate"], said["counted_at"], said["oldest_due_seconds"]) == (None, None, None)
    assert (said["took"]["p50"], sum(said["took"]["amounts"])) == (None, 0)
    assert said["ledgers"] == ["redrive_task"]
    assert [one["amount"] for one in said["tries"]] == [0] * 6
    series = await web.get("/api/series")
    assert [len(series["points"]), len(series["depth"])] == [60, 60]
    assert all(point[name] == 0 for point in series["points"] for name in point if name != "start")
    assert all(depth["waiting"] is None for depth in series["depth"])


async def test_the_overview_counts_what_is_there(web: Standing):
    """States, rates, tries and times; also what changed since the census."""
    await web.done(3)
    await web.dead("gone")
    await web.put(2)
    await web.put(1, kind="unheard")
    await web.count()
    web.clock.advance(seconds(90))
    await web.done(1)
    [claim] = await (await web.app.tasks.ledger()).claim(1, LEASE, kinds=["mail"])
    said = await web.get("/api/overview", range="24h")
    assert said["states"] == {"waiting": 2, "claimed": 1, "done": 4, "dead": 1, "cancelled": 0}
    assert said["success_rate"] == pytest.approx(0.8)
    assert said["tries"][0] == {"tries": "1", "amount": 5}
    assert (sum(said["took"]["amounts"]), len(said["took"]["bounds_seconds"])) == (4, 16)
    assert said["oldest_due_seconds"] == pytest.approx(90)
    [ledger] = said["by_ledger"]
    assert (ledger["ledger"], ledger["system"], ledger["without_handler"]) == ("redrive_task", None, ["unheard"])
    assert claim.task.kind == "mail"


@pytest.mark.parametrize(("range", "step", "amount"), [("1h", 60, 60), ("24h", 600, 144), ("7d", 3600, 168)])
async def test_series_fill_every_step(web: Standing, range: str, step: int, amount: int):
    """The steps are whole, one behind the other, up to the present one; sums are where they happened."""
    await web.done(2)
    web.clock.advance(timedelta(seconds=step))
    await web.dead("x")
    said = await web.get("/api/series", range=range)
    starts = [datetime.fromisoformat(point["start"]) for point in said["points"]]
    assert (said["step_seconds"], len(starts)) == (step, amount)
    assert {after - before for before, after in pairwise(starts)} == {timedelta(seconds=step)}
    assert starts[-1] <= web.clock.now() < starts[-1] + timedelta(seconds=step)
    assert [(point["done"], point["added"], point["dead"]) for point in said["points"][-2:]] == [(2, 2, 0), (0, 1, 1)]


async def test_depths_are_carried_over_steps_without_a_count(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """A slow census leaves no holes; after a long silence the depth is not known."""
    await web.put(4)
    await web.count()
    web.clock.advance(minutes(5))
    depths = [depth["waiting"] for depth in (await web.get("/api/series"))["depth"]]
    assert depths[-6:] == [4] * 6
    assert depths[0] is None
    web.clock.advance(minutes(20))
    monkeypatch.setattr(overview, "FRESH_SECONDS", 0.0)  # else the answer would hold for a second of real time
    assert (await web.get("/api/series"))["depth"][-1]["waiting"] is None


async def test_unknown_ledgers_and_ranges_are_refused(web: Standing):
    """With what there is."""
    answer = await web.local.get("/api/overview", params={"ledger": "nothing"})
    assert (answer.status_code, answer.json()["error"]["details"]) == (404, {"ledgers": ["redrive_task"]})
    assert (await web.local.get("/api/overview", params={"range": "1y"})).status_code == 422
    assert (await web.local.get("/api/tasks", params={"limit": 0})).status_code == 422
    assert (await web.local.get("/api/tasks", params={"older_than": "soon"})).status_code == 400
    assert (await web.local.get("/api/tasks", params={"cursor": "x"})).status_code == 400


async def test_while_the_store_is_not_open(web: Standing):
    """503, and when to come back."""
    web.service.is_open = False
    answer = await web.local.get("/api/overview")
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


async def test_many_who_look_at_once_ask_once(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """One answer is made for all of them."""
    made, sums = 0, SqlFigures.sums

    async def counted(self: SqlFigures, *args: Any) -> Any:
        nonlocal made
        made += 1
        return await sums(self, *args)

    monkeypatch.setattr(SqlFigures, "sums", counted)
    await asyncio.gather(*(web.get("/api/overview") for _ in range(20)))
    assert made == 1


# --- pages and tasks --------------------------------------------------------------------------------------------------


async def test_pages_by_cursor(web: Standing):
    """Each task once, payloads never."""
    ids = await web.dead(*["x"] * 5, payload={"n": 1})
    await web.put(1)
    found: list[Any] = []
    cursor = None
    while True:
        page = await web.get("/api/tasks", state="dead", limit=2, cursor=cursor, newest_first=True)
        found += page["tasks"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(task["id"] for task in found) == ids
    assert all("payload" not in task and task["ledger"] == "redrive_task" for task in found)


@pytest.mark.every_store
async def test_a_filter_that_no_index_serves_is_refused_in_time(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """It says where to search instead."""
    await web.put(3)
    monkeypatch.setattr("redrive.operator.sql.reads.LOOK_WITHIN", seconds(0.1))
    monkeypatch.setattr("redrive.operator.sql.pages.SqlTaskPages._by_id", _slowly)
    answer = await web.local.get("/api/tasks", params={"error": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "needs_search")
    assert answer.json()["error"]["details"] == {"search": "/api/searches"}


@pytest.mark.parametrize("path", ["/api/overview", "/"])
async def test_a_look_that_takes_too_long_is_told_when_to_come_back(
    web: Standing, path: str, monkeypatch: pytest.MonkeyPatch
):
    """The database has much else to do: 503, to programs and to readers."""
    await web.put(1)
    await web.count()
    monkeypatch.setattr("redrive.operator.sql.census.LOOK_WITHIN", seconds(0.1))
    monkeypatch.setattr("redrive.ledgers.sql.ledger.SqlLedger.count_held", _slowly)
    answer = await web.local.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_busy")
    assert (answer.headers["Retry-After"], "try again" in answer.json()["error"]["message"]) == ("5", True)
    if path == "/":
        page = await web.local.get(path, headers={"Accept": "text/html"})
        assert page.status_code == 503
        assert "<h1" in page.text
        assert "The database is not responding" in page.text
        assert "The database took too long to answer." in page.text


NUL = "\0"


@pytest.fixture
async def shop(url: str, clock: VirtualClock) -> AsyncIterator[Standing]:
    """A service with a ledger whose ids are text."""
    app = Redrive(url, clock=clock, durable=False)
    attach_systems(app, ["webhooks"])
    async with standing(url, clock, app=app) as made:
        yield made


async def test_a_nul_is_refused_wherever_it_is_asked_for(shop: Standing):
    """PostgreSQL takes none: a sentence, on both databases, and never a 500."""
    await shop.put(1)
    for name in ("kind", "key", "error", "cause"):
        for ledger in ("redrive_task", "events"):
            answer = await shop.local.get("/api/tasks", params={"ledger": ledger, name: f"a{NUL}"})
            assert (answer.status_code, "without it" in answer.json()["error"]["message"]) == (400, True), name
        page = await shop.local.get("/tasks", params={name: NUL}, headers={"Accept": "text/html"})
        assert page.status_code == 200  # as with every filter that cannot be used, the page says so
        assert "No task holds a NUL character: ask without it." in page.text
        acted = {"filter": {name: NUL}, "reason": "x"}
        assert "without it" in str(await shop.post("/api/tasks/redrive", acted, status=400))
    for asked in ({"text": f"a{NUL}b"}, {"kind": NUL}, {"text": "a", "kind": NUL}):
        assert "without it" in str(await shop.post("/api/searches", asked, status=422))


async def test_a_nul_is_no_id(shop: Standing):
    """Nobody has it, whatever the type of the ids."""
    for ledger in ("redrive_task", "events"):
        for path in (f"/api/tasks/{ledger}/%00", f"/tasks/{ledger}/%00"):
            assert (await shop.local.get(path)).status_code == 404, path
        for act in ("redrive", "resolve"):
            body = {"ledger": ledger, "ids": [NUL], "reason": "x"} | ({"state": "done"} if act == "resolve" else {})
            await shop.post(f"/api/tasks/{act}", body, status=400)
    told = (await shop.local.get("/api/tasks/events/%00")).json()["error"]["message"]
    assert told == r"there is no task '\x00' in 'events'"
    cursor = base64.urlsafe_b64encode(json.dumps([None, NUL]).encode()).decode()
    assert (await shop.local.get("/api/tasks", params={"ledger": "events", "cursor": cursor})).status_code == 400


def _slowly(_browser: Any, connection: Any, *_: Any, **__: Any) -> list[Any]:
    endless = {
        "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "postgresql": "SELECT pg_sleep(60)",
    }[connection.dialect.name]
    return list(connection.exec_driver_sql(endless))


async def test_who_works(web: Standing):
    """The API and the page name each worker, its version and what it holds, as text and never as markup."""
    now = await web.app.store.present()
    holds = {"redrive_task": {"<b>mail": 3}}
    sign = WorkerSign(name="w<i>1", host="h", pid=7, started_at=now, version="4f2a", slots=9, holds=holds,
                      tries_a_minute=94, held_since=now)  # fmt: skip
    await web.app.store.roster.sign(sign)
    [said] = await web.get("/api/workers")
    assert (said["state"], said["version"], said["held"], said["slots"], said["holds"]) == (
        "working",
        "4f2a",
        3,
        9,
        holds,
    )
    assert said["tries_a_minute"] == 94
    assert 0 <= said["oldest_held_seconds"] < 60
    page = (await web.local.get("/workers")).text
    assert '<td data-name="Tries/min" class="number">94</td>' in page
    assert 'data-name="Oldest held"' in page
    assert 'data-name="Drift"' in page
    assert "w&lt;i&gt;1" in page
    assert "3 &lt;b&gt;mail</a>" in page
    assert '3 <span class="quiet">of 9</span>' in page


async def test_where_a_try_failed(web: Standing):
    """The API and the page say which line failed, the user's own first, as text and never as markup."""
    try:
        raise ValueError("<b>odd</b>")
    except ValueError as error:
        [id_] = await web.end([Failed(error)])
    [attempt] = (await web.get(f"/api/tasks/redrive_task/{id_}"))["attempts"]
    [raised] = attempt["stack"]
    assert raised["error"] == "ValueError"
    [frame] = raised["frames"]
    assert frame["file"] == "tests/web/test_api.py"
    assert frame["name"] == "test_where_a_try_failed"
    assert frame["own"]
    page = (await web.local.get(f"/tasks/redrive_task/{id_}")).text
    assert f"{frame['file']}:{frame['line']}" in page
    assert "raise ValueError(&#34;&lt;b&gt;odd&lt;/b&gt;&#34;)" in page
    assert "<b>odd" not in page


async def test_one_task_with_all_that_is_known(web: Standing):
    """Row, payload without secrets, tries with their explanation, deeds, and the exact times to come."""
    payload = {"password": "hunter2", "card": {"token": "abc123"}, "note": "Authorization: Bearer abc.def.ghi", "n": 7}
    [id_] = await web.end([Failed(TimeoutError("slow"))], payload=payload)
    said = await web.get(f"/api/tasks/redrive_task/{id_}")
    assert said["task"]["state"] == "waiting"
    shown = str(said["task"]["payload"])
    assert not any(secret in shown for secret in ("hunter2", "abc123", "abc.def.ghi"))
    assert said["task"]["payload"]["n"] == 7
    [attempt] = said["attempts"]
    assert (attempt["outcome"], attempt["error"]) == ("failed", "TimeoutError: slow")
    assert "transient" in attempt["sentence"]
    assert attempt["explanation"]["policy"] == "test"
    due = datetime.fromisoformat(said["task"]["due_at"])
    tries = [(one["number"], datetime.fromisoformat(one["at"])) for one in said["preview"]]
    assert tries == [(2, due), (3, due + seconds(60)), (4, due + seconds(120))]
    await web.app.tasks.cancel(Filter(ids=[id_]), actor="ada", reason="not needed")
    said = await web.get(f"/api/tasks/redrive_task/{id_}")
    assert (said["preview"], said["deeds"][0]["actor"], said["deeds"][0]["act"]) == ([], "ada", "cancel")


async def test_one_task_by_its_key(shop: Standing):
    """Wherever an id does, whatever ids look like; where a key looks like the id of another task, the id goes first."""
    first = (await shop.app.add("mail", key="invoice-7")).id
    await shop.app.add("mail", key=str(first))
    assert (await shop.get("/api/tasks/redrive_task/invoice-7"))["task"]["id"] == first
    assert (await shop.get(f"/api/tasks/redrive_task/{first}"))["task"]["key"] == "invoice-7"
    hook = (await shop.app.lanes["events"].add("order.created", {}, key="hook/1")).id
    assert (await shop.get("/api/tasks/events/hook/1"))["task"]["id"] == str(hook)


async def test_one_task_without_a_handler_has_no_preview(web: Standing):
    """Nobody here knows its policy."""
    [id_] = await web.put(1, kind="unheard")
    said = await web.get(f"/api/tasks/redrive_task/{id_}")
    assert (said["preview"], said["has_handler"]) == ([], False)


@pytest.mark.parametrize("path", ["redrive_task/999999", "redrive_task/x", "redrive_task/9" + "9" * 40, "nothing/1"])
async def test_tasks_that_are_not_there(web: Standing, path: str):
    """404, whatever was asked for."""
    assert (await web.local.get(f"/api/tasks/{path}")).status_code == 404


async def test_groups_by_cause(web: Standing):
    """The largest first, with when and how many; secrets that others wrote are hidden."""
    await web.dead("order 1 is gone", "order 2 is gone", "no route")
    web.clock.advance(minutes(5))
    await web.dead("order 3 is gone")
    await web.count()
    first, second = await web.get("/api/groups")
    assert (first["amount"], second["amount"]) == (3, 1)
    assert "order <number> is gone" in first["text"]
    assert datetime.fromisoformat(first["last_seen"]) - datetime.fromisoformat(first["first_seen"]) == minutes(5)
    page = await web.get("/api/tasks", state="dead", cause=first["cause"])
    assert len(page["tasks"]) == 3


# --- search -----------------------------------------------------------------------------------------------------------


async def ended(web: Standing, id: str) -> dict[str, Any]:
    """A search when it has ended."""
    async with asyncio.timeout(60):
        while (said := await web.get(f"/api/searches/{id}"))["state"] == "running":
            await asyncio.sleep(0.01)
    return said


async def test_a_search_runs_in_the_background(web: Standing):
    """It tells how far it is and what it found; who may not see a secret cannot find it."""
    [id_] = await web.put(1, payload={"to": "Anna", "password": "hunter2"})
    await web.put(20, payload={"to": "Bob"})
    await web.count()
    begun = await web.post("/api/searches", {"text": "anna"}, role="viewer", status=202)
    said = await ended(web, begun["id"])
    assert (said["state"], said["looked_at"], said["total"], said["found"]) == ("done", 21, 21, 1)
    assert [task["id"] for task in said["tasks"]] == [id_]
    assert "payload" not in said["tasks"][0]
    hidden = await web.post("/api/searches", {"text": "hunter2"}, role="viewer", status=202)
    assert (await ended(web, hidden["id"]))["found"] == 0


async def test_a_search_by_state_and_kind_finds_the_rest(web: Standing):
    """What a page refused can be asked for here."""
    await web.dead("x", kind="mail")
    await web.put(3)
    begun = await web.post("/api/searches", {"state": "dead", "kind": "mail"}, role="viewer", status=202)
    assert (await ended(web, begun["id"]))["found"] == 1
    await web.post("/api/searches", {"text": "  "}, role="viewer", status=422)


async def test_searches_are_bounded_and_can_be_called_off(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """Only so many at once; one that is called off makes room and is forgotten."""
    blocked = asyncio.Event()

    async def stretch(*_: Any) -> Any:
        await blocked.wait()

    monkeypatch.setattr("redrive.operator.sql.search.SqlSearch.chunk", stretch)
    begun = [await web.post("/api/searches", {"text": "x"}, status=202) for _ in range(searches.RUNNING_MAX)]
    refused = await web.post("/api/searches", {"text": "x"}, status=429)
    assert refused["error"]["code"] == "too_many_searches"
    answer = await web.local.delete(f"/api/searches/{begun[0]['id']}", headers=web.headers("viewer"))
    assert answer.status_code == 204
    assert (await web.local.get(f"/api/searches/{begun[0]['id']}")).status_code == 404
    await web.post("/api/searches", {"text": "x"}, status=202)


async def test_a_search_that_fails_says_so(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """And shows no secret."""

    async def stretch(*_: Any) -> Any:
        raise ValueError("password=hunter2")

    monkeypatch.setattr("redrive.operator.sql.search.SqlSearch.chunk", stretch)
    begun = await web.post("/api/searches", {"text": "x"}, status=202)
    said = await ended(web, begun["id"])
    assert said["state"] == "failed"
    assert "hunter2" not in str(said)


# --- previews ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ({"kind": "exponential", "first": "2s", "cap": "5s"}, [2, 4, 5]),
        ({"kind": "schedule", "waits": [1, "1m"]}, [1, 60, 60]),
        ({"kind": "fixed", "wait": 7}, [7, 7, 7]),
        ({"kind": "linear", "first": "1s", "step": "2s", "cap": "4s"}, [1, 3, 4]),
    ],
)
async def test_a_policy_shows_its_timeline(web: Standing, backoff: dict[str, Any], delays: list[int]):
    """The very times that would happen."""
    body = {"backoff": backoff, "jitter": {"kind": "none"}, "retries": 3, "start": "2030-01-01T00:00:00Z"}
    said = await web.post("/api/preview", body, role="viewer")
    assert [one["delay_seconds"] for one in said["tries"]] == [0, *delays]
    assert said["tries"][0]["at"] == "2030-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("policy", SYSTEMS)
async def test_a_system_has_one_timeline(web: Standing, policy: str):
    """Its name brings the same policy here as on the command line, to the microsecond."""
    said = await web.post(
        "/api/preview", {"policy": policy, "key": "a", "start": "2030-01-01T00:00:00Z"}, role="viewer"
    )
    options = ["--policy", policy, "--key", "a", "--start", "2030-01-01T00:00:00Z", "--json"]
    assert said == json.loads(CliRunner().invoke(command_line, ["preview", *options]).stdout)
    assert said["policy"] == policy


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"policy": "none"},
        {"policy": "flags", "backoff": {"kind": "fixed", "wait": "1s"}},
        {"policy": "flags", "retries": 7},
        {"backoff": {"kind": "magic"}},
        {"backoff": {"kind": "fixed", "wait": "-1s"}},
        {"backoff": {"kind": "fixed", "wait": "1s"}, "retries": 1, "attempts": 1},
        {"backoff": {"kind": "exponential", "first": "5s", "cap": "1s"}},
        {"backoff": {"kind": "fixed", "wait": "1s"}, "unknown": 1},
        {"backoff": {"kind": "schedule", "waits": []}},
    ],
)
async def test_a_policy_that_cannot_be_is_refused(web: Standing, body: dict[str, Any]):
    """With a sentence, not a 500."""
    answer = await web.local.post("/api/preview", json=body)
    assert answer.status_code in (400, 422), answer.text


async def test_adopted_tables_are_looked_at_like_our_own(empty_url: str, store: str, clock: VirtualClock):
    """Numbers, pages and single tasks of a table that somebody else made."""
    from tests.ledgers.homes import build
    from tests.ledgers.shapes import FLAGS

    await build(empty_url, FLAGS, store)
    app = Redrive(empty_url, clock=clock, durable=False)
    lane = app.adopt(FLAGS.on(store))
    async with standing(empty_url, clock, app=app) as web:
        insert = "INSERT INTO feature_flag_schedules (flag_name, enabled, scheduled_at) VALUES ('dark', true, '{}')"
        at = clock.now().strftime("%Y-%m-%d %H:%M:%S+00:00" if store == "postgres" else "%Y-%m-%d %H:%M:%S.%f")
        await app.database.write(lambda connection: connection.exec_driver_sql(insert.format(at)))
        await web.count()
        said = await web.get("/api/overview", ledger="feature_flag_schedules")
        assert (said["states"]["waiting"], said["ledgers"]) == (1, ["redrive_task", "feature_flag_schedules"])
        page = await web.get("/api/tasks", ledger="feature_flag_schedules", state="waiting")
        [task] = page["tasks"]
        one = await web.get(f"/api/tasks/feature_flag_schedules/{task['id']}")
        assert one["task"]["payload"]["flag_name"] == "dark"
        assert (await lane.counts())[State.WAITING] == 1
        refused = await web.local.get("/api/tasks", params={"ledger": "feature_flag_schedules", "kind": "x"})
        assert refused.status_code == 400
        await web.end([Done()])
        assert len((await web.get("/api/overview"))["by_ledger"]) == 2
