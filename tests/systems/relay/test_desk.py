"""Manual review by people: what they see, what their acts do, and what happens when two things happen at once."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
import structlog
from sqlalchemy import Connection, select

from redrive import Redrive
from redrive.errors import TooSlowError
from redrive.events import Act
from redrive.lane import Actor
from redrive.observe.logs import LogObserver
from redrive.operator import acts
from redrive.systems.relay import Relay
from redrive.systems.relay import desk as review
from redrive.systems.relay.desk import Asked
from redrive.systems.relay.tables import retry_queue

from ..figures import are_counted_soon, take_long_to_count
from .kit import ADA, PATH, arrival, in_review, outcome, row, rows, statuses

# --- acts -------------------------------------------------------------------------------------------------------------


async def test_resolve_closes(app: Redrive, relay: Relay) -> None:
    """The row is resolved and its headers are as they were."""
    [id_] = await in_review(app, "m-1")
    assert outcome(await relay.desk.act(Act.RESOLVE, [id_], ADA)) == ([id_], {})
    found = await row(app, "m-1")
    assert (found["status"], found["next_retry_at"], found["headers"]) == ("resolved", None, {"tenant": "ada"})


async def test_acts_are_logged(app: Redrive, relay: Relay) -> None:
    """One line for each act, with who and why."""
    app.observers.append(LogObserver())
    ids = await in_review(app, "m-1", "m-2")
    with structlog.testing.capture_logs() as logged:
        await relay.desk.act(Act.REDRIVE, ids, ADA)
    [line] = [one for one in logged if one["event"] == "tasks_changed"]
    assert (line["act"], line["amount"], line["actor"], line["system"]) == ("redrive", 2, "ada", "relay")


@pytest.mark.every_store
async def test_a_hidden_text_is_not_found_by_its_error(app: Redrive, relay: Relay) -> None:
    """What an upstream's error hides from people finds nothing: no message, no number, and nothing is acted on."""
    ids = await in_review(app, "m-1", "m-2", error_reason="refused: token=abcdefgh12 for bob")
    for asked, found in (
        (Asked(error="abcdefgh"), []),
        (Asked(error="for bob"), ids),
        (Asked(error="[redacted]"), ids),
    ):
        page = await relay.desk.page(asked, limit=2)
        assert ([row.id for row in page.items], page.cursor) == (found[::-1], None)
        assert await relay.desk.count(asked) == len(found)
        assert [row.id for row in (await relay.desk.page(asked, limit=1)).items] == found[-1:]
    assert (await relay.desk.act_on_all(Act.RESOLVE, Asked(error="abcdefgh"), ADA)).changed == []
    assert list((await relay.desk.act_on_all(Act.RESOLVE, Asked(error="for bob"), ADA)).changed) == ids


# --- two of everything ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [Act.REDRIVE, Act.RESOLVE])
@pytest.mark.every_store
async def test_two_people_act_once(app: Redrive, relay: Relay, others: Act) -> None:
    """Each message is changed by one of them, and the other is told why not."""
    ids = await in_review(app, *(f"m-{n}" for n in range(40)))
    mine, theirs = await asyncio.gather(
        relay.desk.act(Act.REDRIVE, ids, ADA), relay.desk.act(others, ids[::-1], Actor(name="grace"))
    )
    assert sorted([*mine.changed, *theirs.changed]) == ids
    assert set(mine.refused) == set(theirs.changed)
    assert set(theirs.refused) == set(mine.changed)
    for id_ in ids:
        assert len(await relay.lane.deeds(id_)) == 1
    for each in await rows(app):
        by = each["headers"].get("x-resubmitted-by")
        mark = "ada" if each["id"] in mine.changed else "grace" if others is Act.REDRIVE else None
        assert (by, each["status"]) == (mark, "resolved" if mark is None else "pending")


async def test_why_not(app: Redrive, relay: Relay) -> None:
    """Of each that is not in review any more it is said where it stands."""
    now = datetime.now(UTC)
    ids = [
        (await in_review(app, f"m-{status}-{leased}", status=status, **given))[0]
        for status, leased, given in (
            ("pending", False, {"next_retry_at": now}),
            ("pending", True, {"next_retry_at": now, "lease_until": now + timedelta(1), "claim_id": uuid4()}),
            ("retried", False, {}),
            ("resolved", False, {}),
        )
    ]
    before = await rows(app)
    for act in (Act.REDRIVE, Act.RESOLVE):
        changed, refused = outcome(await relay.desk.act(act, [*ids, 999], ADA))
        assert changed == []
        assert refused == dict(
            zip(
                [*ids, 999],
                ["it waits for its retry already", "it is being published right now", "it has gone out again already",
                 "it was resolved already", "there is no such message"],
                strict=True,
            )
        )  # fmt: skip
    assert await rows(app) == before


async def test_a_duplicate_that_arrives_after_a_resubmission_changes_nothing(app: Redrive, relay: Relay) -> None:
    """The row waits already: the fresh count, the payload and the headers stay."""
    [id_] = await in_review(app, "m-1")
    await relay.desk.act(Act.REDRIVE, [id_], ADA)
    before = await row(app, "m-1")
    stored = await relay._intake.store([arrival("m-1", retry_count=3, payload=b"old", queue="orders")])
    assert [one.message_id for one in stored.known] == ["m-1"]
    assert await row(app, "m-1") == before


async def test_what_came_back_meanwhile_is_left_alone(app: Redrive, relay: Relay) -> None:
    """A message that returned while somebody looked at it has its own way again: neither act touches it."""
    [id_] = await in_review(app, "m-1")
    await relay._intake.store([arrival("m-1", retry_count=3, payload=b"new")])
    for act in (Act.REDRIVE, Act.RESOLVE):
        assert outcome(await relay.desk.act(act, [id_], ADA)) == ([], {id_: "it waits for its retry already"})
    found = await row(app, "m-1")
    assert (found["status"], found["retry_count"], found["original_payload"]) == ("pending", 3, b"new")


@pytest.mark.every_store
async def test_returns_and_acts_at_once(app: Redrive, relay: Relay) -> None:
    """Whoever is first, each message ends as one of both wrote it, whole."""
    names = [f"m-{n}" for n in range(30)]
    ids = await in_review(app, *names)
    came_back = [arrival(name, retry_count=3, payload=b"new", headers={"tenant": "new"}) for name in names]
    stored, done = await asyncio.gather(relay._intake.store(came_back), relay.desk.act(Act.REDRIVE, ids, ADA))
    returned = {id_ for id_, _, _ in stored.returned}
    assert returned.isdisjoint(done.changed)
    assert set(done.refused) == returned
    for each in await rows(app):
        marked = "x-resubmitted-by" in each["headers"]
        told = (each["status"], each["retry_count"], each["headers"]["tenant"], each["original_payload"])
        assert told == (("pending", 3, "new", b"new") if not marked else ("pending", 0, "ada", b'{"order": 7}'))
        assert marked == (each["id"] in done.changed)


async def test_a_resolved_message_that_comes_back_is_open_again(app: Redrive, relay: Relay) -> None:
    """To close a message is no wall: what fails again is retried or reviewed again."""
    [id_] = await in_review(app, "m-1")
    await relay.desk.act(Act.RESOLVE, [id_], ADA)
    stored = await relay._intake.store([arrival("m-1", retry_count=1)])
    assert len(stored.returned) == 1
    assert (await row(app, "m-1"))["status"] == "pending"


# --- all that match ---------------------------------------------------------------------------------------------------


async def test_all_that_match(client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the dry run is the number acted on, page by page; what came into review since is left alone."""
    monkeypatch.setattr(acts, "CHUNK", 2)
    await in_review(app, "a-1", "a-2", "a-3", "a-4", "a-5", error_reason="503 from 100% of pay.example")
    await in_review(app, "b-1", error_reason="503 from 1000 of pay.example")
    await in_review(app, "c-1", original_queue="mail", error_reason="503 from 100% of pay.example")
    asked = {"filter": {"queue": "orders", "error": "100%"}, "reason": "the bank is back"}
    counted = (await client.post(f"{PATH}/resubmit", json=asked | {"dry_run": True})).json()
    assert (counted["matched"], counted["changed"], set((await statuses(app)).values())) == (5, 0, {"failed"})
    late = datetime.fromisoformat(counted["until"]) + timedelta(seconds=1)
    await in_review(app, "a-6", error_reason="503 from 100% of pay.example", updated_at=late)
    asked["filter"] = {**asked["filter"], "until": counted["until"]}
    done = (await client.post(f"{PATH}/resubmit", json=asked)).json()
    assert done == {"matched": 5, "changed": 5, "refused": {}, "until": counted["until"], "complete": True}
    left = {name for name, status in (await statuses(app)).items() if status == "failed"}
    assert left == {"a-6", "b-1", "c-1"}
    again = (await client.post(f"{PATH}/resubmit", json=asked)).json()
    assert (again["matched"], again["changed"]) == (0, 0)
    rest = (await client.post(f"{PATH}/resolve", json={"filter": {"message_id": "b-1"}, "reason": "by hand"})).json()
    assert (rest["changed"], (await statuses(app))["b-1"]) == (1, "resolved")


@pytest.mark.every_store
async def test_a_large_act_comes_back_between_two_pages(
    client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is not complete, and goes on where it was when it is sent again."""
    monkeypatch.setattr(acts, "CHUNK", 2)
    monkeypatch.setattr(review, "ACT_WITHIN", timedelta(seconds=-1))
    await in_review(app, *(f"m-{n}" for n in range(5)))
    asked: dict[str, Any] = {"filter": {}, "reason": "all"}
    made = []
    for _ in range(3):
        made.append((await client.post(f"{PATH}/resolve", json=asked)).json())
        asked["filter"] = {"until": made[0]["until"]}
    assert [(one["changed"], one["complete"]) for one in made] == [(2, False), (2, False), (1, True)]


@pytest.mark.every_store
async def test_no_more_than_was_shown(client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended before the look and was committed after it has an instant before `until`: the number keeps it out."""
    monkeypatch.setattr(acts, "CHUNK", 2)
    await in_review(app, *(f"m-{n}" for n in range(4)))
    asked: dict[str, Any] = {"filter": {}, "reason": "all"}
    counted = (await client.post(f"{PATH}/resolve", json=asked | {"dry_run": True})).json()
    early = datetime.fromisoformat(counted["until"]) - timedelta(seconds=1)
    await in_review(app, "late", updated_at=early)
    asked |= {"filter": {"until": counted["until"]}, "at_most": counted["matched"]}
    done = (await client.post(f"{PATH}/resolve", json=asked)).json()
    assert (done["matched"], done["changed"], done["complete"]) == (4, 4, True)
    assert {name for name, status in (await statuses(app)).items() if status == "failed"} == {"late"}
    nothing = (await client.post(f"{PATH}/resolve", json=asked | {"at_most": 0})).json()
    assert (nothing["matched"], nothing["changed"], nothing["complete"]) == (0, 0, True)


@pytest.mark.every_store
async def test_a_page_that_takes_too_long(
    client: httpx.AsyncClient, app: Redrive, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After others have changed it is an act that is not complete; before, it is a refusal."""
    monkeypatch.setattr(acts, "CHUNK", 2)
    await in_review(app, *(f"m-{n}" for n in range(5)))
    find, pages = review.ReviewDesk._ids, 0

    async def slow(*given: Any, **named: Any) -> list[int]:
        nonlocal pages
        pages += 1
        if pages % 2 == 0:
            raise TooSlowError("it takes too long")
        return await find(*given, **named)

    monkeypatch.setattr(review.ReviewDesk, "_ids", slow)
    asked = {"filter": {"error": "broke"}, "reason": "all"}
    done = (await client.post(f"{PATH}/resolve", json=asked)).json()
    assert (done["matched"], done["changed"], done["complete"]) == (2, 2, False)
    pages = 1
    refused = await client.post(f"{PATH}/resolve", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_slow")
    assert list((await statuses(app)).values()).count("failed") == 3


# --- the routes -------------------------------------------------------------------------------------------------------


async def test_whoever_acts_sees_it_in_the_figures(client: httpx.AsyncClient, app: Redrive, relay: Relay) -> None:
    """They are counted soon, also where counting takes long; what changes nothing hurries nobody."""
    ids = await in_review(app, "m-1", "m-2")
    for body, soon in (
        ({"ids": ids[:1]}, True),
        ({"ids": ids[:1]}, False),
        ({"filter": {}}, True),
        ({"filter": {}}, False),
    ):
        await take_long_to_count(relay.lane)
        assert (await client.post(f"{PATH}/resolve", json=body | {"reason": "x"})).status_code == 200
        assert await are_counted_soon(relay.lane) is soon, body


@pytest.mark.every_store
async def test_looks_use_their_indexes(app: Redrive, relay: Relay, store: str) -> None:
    """Pages, queues and counts read the partial indexes of what is in review, never the whole table."""
    asked = {
        "retry_queue_failed_idx": Asked(),
        "retry_queue_review_idx": Asked(queue="orders"),
    }

    def plan(connection: Connection, where: Sequence[Any]) -> str:
        found = select(retry_queue.c.id).where(*where).order_by(retry_queue.c.id.desc()).limit(50)
        sql = str(found.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
        how = "EXPLAIN QUERY PLAN" if store == "sqlite" else "EXPLAIN"
        return "\n".join(str(line) for line in connection.exec_driver_sql(f"{how} {sql}"))

    for index, one in asked.items():
        assert index in await app.database.read(plan, relay.desk._conditions(one))


async def test_alarms_name_the_queues(app: Redrive, relay: Relay) -> None:
    """One for each queue whose messages wait for a person, gone when nobody is needed."""
    assert await relay.alarms() == []
    ids = await in_review(app, "m-1", "m-2")
    await in_review(app, "mail-1", original_queue="mail")
    assert [(one.name, one.rule) for one in await relay.alarms()] == [
        ("relay review orders", "system"), ("relay review mail", "system")
    ]  # fmt: skip
    assert "'orders' wait for a person: 2" in (await relay.alarms())[0].text
    await relay.desk.act(Act.RESOLVE, ids, ADA)
    assert [one.name for one in await relay.alarms()] == ["relay review mail"]


async def test_alarms_of_many_queues(client: httpx.AsyncClient, app: Redrive, relay: Relay) -> None:
    """As many are named as there may be, the oldest; a new one pushes none of them out, and one alarm stands for the rest."""
    for number in range(review.QUEUES_MAX):
        await in_review(app, f"m-{number}", original_queue=f"q-{number:02}")
    before = {one.name for one in await relay.alarms()}
    assert before == {f"relay review q-{number:02}" for number in range(review.QUEUES_MAX)}
    await in_review(app, "new-1", "new-2", original_queue="a-new-one")
    after = {one.name: one.text for one in await relay.alarms()}
    assert set(after) == before | {"relay review"}
    assert after["relay review"] == "relay: messages of more queues wait for a person: see /systems/relay"
    assert (await client.get(f"{PATH}/queues")).json()["more"] is True


# --- previews ---------------------------------------------------------------------------------------------------------
