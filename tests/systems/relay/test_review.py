"""Manual review by people: what they see, what their acts write, and what happens when two things happen at once."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
import structlog
from sqlalchemy import Connection, insert, select, text, update
from web.conftest import client_of

from redrive import Filter, Redrive, State
from redrive.errors import TooSlowError, UsageError
from redrive.observe.logs import LogObserver
from redrive.ports import Actor
from redrive.settings import Settings
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay import desk as review
from redrive.systems.relay.desk import Asked, Deed
from redrive.systems.relay.preview import READ_BYTES_MAX, TEXT_CHARS_MAX, preview
from redrive.systems.relay.tables import retry_queue
from redrive.wiring import Service

from ..figures import are_counted_soon, take_long_to_count
from .kit import arrival, row, rows

NOWHERE = "amqp://guest:guest@127.0.0.1:1/"
ADA = Actor(name="ada", reason="the bank is back")
PATH = "/api/relay/review"


@pytest.fixture
async def relay(app: Redrive) -> AsyncIterator[Relay]:
    """A relay on an open application, without a broker and without a worker."""
    made = Relay(app, RelaySettings(_env_file=None, rabbitmq_url=NOWHERE))
    async with app:
        yield made


@pytest.fixture
async def service(app: Redrive, relay: Relay) -> Service:
    """A service that answers and does not work."""
    made = Service(app, Settings(_env_file=None))
    made.is_open = True
    return made


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """An operator on another machine."""
    key = await service.keys.create("ada", ["operator"])
    async with client_of(service, client="192.0.2.7", base_url="http://redrive.example") as made:
        made.headers["X-API-Key"] = key.secret
        yield made


async def in_review(app: Redrive, *message_ids: str, **given: Any) -> list[int]:
    """Messages whose retries are spent; the ids of their rows."""
    now = datetime.now(UTC)
    values = {
        "original_payload": b'{"order": 7}', "original_queue": "orders", "error_reason": "it broke", "retry_count": 3,
        "max_retries": 3, "status": "failed", "headers": {"tenant": "ada"}, "created_at": now, "updated_at": now,
    }  # fmt: skip

    def write(connection: Connection) -> list[int]:
        made = [values | {"message_id": message_id} | given for message_id in message_ids]
        connection.execute(insert(retry_queue), made)
        c = retry_queue.c
        return list(connection.execute(select(c.id).where(c.message_id.in_(message_ids)).order_by(c.id)).scalars())

    return await app.database.write(write)


async def statuses(app: Redrive) -> dict[str, str]:
    """Where each message stands."""
    return {one["message_id"]: one["status"] for one in await rows(app)}


# --- acts -------------------------------------------------------------------------------------------------------------


async def test_resubmit_is_a_redrive_with_who_and_when(app: Redrive, relay: Relay) -> None:
    """The row is pending, due now, with a count of 0; its headers say who and when, and keep what they had."""
    [id_] = await in_review(app, "m-1")
    assert await relay.review.act(Deed.RESUBMIT, [id_], ADA) == ([id_], {})
    found = await row(app, "m-1")
    assert (found["status"], found["retry_count"], found["lease_until"]) == ("pending", 0, None)
    assert found["next_retry_at"] <= found["updated_at"]
    assert found["headers"] == {
        "tenant": "ada", "x-resubmitted-by": "ada",
        "x-resubmitted-at": found["updated_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }  # fmt: skip
    [deed] = await relay.lane.deeds(id_)
    assert (deed.act, deed.actor, deed.reason) == ("redrive", "ada", "the bank is back")


async def test_a_redrive_from_anywhere_means_the_same(app: Redrive, relay: Relay) -> None:
    """Who redrives the ledger, as the tasks page and the command line do, resubmits: the same headers, in the same commit."""
    await in_review(app, "m-1")
    await relay.lane.redrive(Filter(), actor="grace", reason="all of them")
    assert (await row(app, "m-1"))["headers"]["x-resubmitted-by"] == "grace"
    assert (await relay.lane.ledger()).beside is None, "claims and settlements stay one statement each"


async def test_headers_and_row_change_together_or_not_at_all(
    app: Redrive, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the headers cannot be written, nothing is: no message goes out that does not say who sent it."""
    [id_] = await in_review(app, "m-1")
    monkeypatch.setattr(review, "_MARK", update(retry_queue).values(no_such_column=text("1 / 'x'")))
    with pytest.raises(Exception, match="no_such_column"):
        await relay.review.act(Deed.RESUBMIT, [id_], ADA)
    found = await row(app, "m-1")
    assert (found["status"], found["headers"]) == ("failed", {"tenant": "ada"})
    assert await relay.lane.deeds(id_) == []


async def test_headers_that_sql_could_not_change_are_kept(app: Redrive, relay: Relay) -> None:
    """A NUL, a large number and a name of somebody with odd signs: all of it is there afterwards."""
    odd = {"nul": "a\0b", "large": 2**62, "nested": {"$bytes": "AP8="}}
    [id_] = await in_review(app, "m-1", headers=odd)
    await relay.review.act(Deed.RESUBMIT, [id_], Actor(name="ada\u202e" + "x" * 500))
    found = (await row(app, "m-1"))["headers"]
    assert {name: found[name] for name in odd} == odd
    assert len(found["x-resubmitted-by"]) == review.NAME_CHARS_MAX
    assert found["x-resubmitted-by"].startswith("ada\u202ex")


async def test_resolve_closes(app: Redrive, relay: Relay) -> None:
    """The row is resolved and its headers are as they were."""
    [id_] = await in_review(app, "m-1")
    assert await relay.review.act(Deed.RESOLVE, [id_], ADA) == ([id_], {})
    found = await row(app, "m-1")
    assert (found["status"], found["next_retry_at"], found["headers"]) == ("resolved", None, {"tenant": "ada"})


async def test_nobody_can_say_that_a_message_went_out(app: Redrive, relay: Relay) -> None:
    """`retried` is what the broker confirmed: to resolve as done is refused, with the remedy, and changes nothing."""
    [id_] = await in_review(app, "m-1")
    with pytest.raises(UsageError, match="resolve it as cancelled"):
        await relay.lane.resolve([id_], State.DONE, actor="ada")
    assert await statuses(app) == {"m-1": "failed"}
    assert await relay.lane.deeds(id_) == []


async def test_acts_are_logged(app: Redrive, relay: Relay) -> None:
    """One line for each act, with who and why."""
    app.observers.append(LogObserver())
    ids = await in_review(app, "m-1", "m-2")
    with structlog.testing.capture_logs() as logged:
        await relay.review.act(Deed.RESUBMIT, ids, ADA)
    [line] = [one for one in logged if one["event"] == "tasks_changed"]
    assert (line["act"], line["amount"], line["actor"], line["system"]) == ("redrive", 2, "ada", "relay")


# --- two of everything ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [Deed.RESUBMIT, Deed.RESOLVE])
async def test_two_people_act_once(app: Redrive, relay: Relay, others: Deed) -> None:
    """Each message is changed by one of them, and the other is told why not."""
    ids = await in_review(app, *(f"m-{n}" for n in range(40)))
    (mine, not_mine), (theirs, not_theirs) = await asyncio.gather(
        relay.review.act(Deed.RESUBMIT, ids, ADA), relay.review.act(others, ids[::-1], Actor(name="grace"))
    )
    assert sorted([*mine, *theirs]) == ids
    assert set(not_mine) == set(theirs)
    assert set(not_theirs) == set(mine)
    for id_ in ids:
        assert len(await relay.lane.deeds(id_)) == 1
    for each in await rows(app):
        by = each["headers"].get("x-resubmitted-by")
        mark = "ada" if each["id"] in mine else "grace" if others is Deed.RESUBMIT else None
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
    for deed in Deed:
        changed, refused = await relay.review.act(deed, [*ids, 999], ADA)
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
    await relay.review.act(Deed.RESUBMIT, [id_], ADA)
    before = await row(app, "m-1")
    stored = await relay._store.store([arrival("m-1", retry_count=3, payload=b"old", queue="orders")])
    assert [one.message_id for one in stored.known] == ["m-1"]
    assert await row(app, "m-1") == before


async def test_what_came_back_meanwhile_is_left_alone(app: Redrive, relay: Relay) -> None:
    """A message that returned while somebody looked at it has its own way again: neither act touches it."""
    [id_] = await in_review(app, "m-1")
    await relay._store.store([arrival("m-1", retry_count=3, payload=b"new")])
    for deed in Deed:
        assert await relay.review.act(deed, [id_], ADA) == ([], {id_: "it waits for its retry already"})
    found = await row(app, "m-1")
    assert (found["status"], found["retry_count"], found["original_payload"]) == ("pending", 3, b"new")


async def test_returns_and_acts_at_once(app: Redrive, relay: Relay) -> None:
    """Whoever is first, each message ends as one of both wrote it, whole."""
    names = [f"m-{n}" for n in range(30)]
    ids = await in_review(app, *names)
    came_back = [arrival(name, retry_count=3, payload=b"new", headers={"tenant": "new"}) for name in names]
    stored, (changed, refused) = await asyncio.gather(
        relay._store.store(came_back), relay.review.act(Deed.RESUBMIT, ids, ADA)
    )
    returned = {id_ for id_, _, _ in stored.returned}
    assert returned.isdisjoint(changed)
    assert set(refused) == returned
    for each in await rows(app):
        marked = "x-resubmitted-by" in each["headers"]
        told = (each["status"], each["retry_count"], each["headers"]["tenant"], each["original_payload"])
        assert told == (("pending", 3, "new", b"new") if not marked else ("pending", 0, "ada", b'{"order": 7}'))
        assert marked == (each["id"] in changed)


async def test_a_resolved_message_that_comes_back_is_open_again(app: Redrive, relay: Relay) -> None:
    """To close a message is no wall: what fails again is retried or reviewed again."""
    [id_] = await in_review(app, "m-1")
    await relay.review.act(Deed.RESOLVE, [id_], ADA)
    stored = await relay._store.store([arrival("m-1", retry_count=1)])
    assert len(stored.returned) == 1
    assert (await row(app, "m-1"))["status"] == "pending"


async def test_the_mark_is_gone_when_the_message_comes_back(app: Redrive, relay: Relay) -> None:
    """The headers speak of the round that a person began, not of those after it; forged ones never come in."""
    [id_] = await in_review(app, "m-1")
    await relay.review.act(Deed.RESUBMIT, [id_], ADA)

    def went_out(connection: Connection) -> None:
        gone = {"status": "retried", "retry_count": 1, "next_retry_at": None}
        connection.execute(update(retry_queue).values(**gone))

    await app.database.write(went_out)
    await relay._store.store([arrival("m-1", retry_count=1, headers={"tenant": "ada"})])
    assert (await row(app, "m-1"))["headers"] == {"tenant": "ada"}


# --- all that match ---------------------------------------------------------------------------------------------------


async def test_all_that_match(client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the dry run is the number acted on, page by page; what came into review since is left alone."""
    monkeypatch.setattr(review, "PAGE", 2)
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


async def test_a_large_act_comes_back_between_two_pages(
    client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is not complete, and goes on where it was when it is sent again."""
    monkeypatch.setattr(review, "PAGE", 2)
    monkeypatch.setattr(review, "ACT_WITHIN_SECONDS", -1.0)
    await in_review(app, *(f"m-{n}" for n in range(5)))
    asked: dict[str, Any] = {"filter": {}, "reason": "all"}
    made = []
    for _ in range(3):
        made.append((await client.post(f"{PATH}/resolve", json=asked)).json())
        asked["filter"] = {"until": made[0]["until"]}
    assert [(one["changed"], one["complete"]) for one in made] == [(2, False), (2, False), (1, True)]


async def test_no_more_than_was_shown(client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended before the look and was committed after it has an instant before `until`: the number keeps it out."""
    monkeypatch.setattr(review, "PAGE", 2)
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


async def test_a_page_that_takes_too_long(
    client: httpx.AsyncClient, app: Redrive, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After others have changed it is an act that is not complete; before, it is a refusal."""
    monkeypatch.setattr(review, "PAGE", 2)
    await in_review(app, *(f"m-{n}" for n in range(5)))
    find, pages = review._ids, 0

    def slow(*given: Any, **named: Any) -> list[int]:
        nonlocal pages
        pages += 1
        if pages % 2 == 0:
            raise TooSlowError("it takes too long")
        return find(*given, **named)

    monkeypatch.setattr(review, "_ids", slow)
    asked = {"filter": {"error": "broke"}, "reason": "all"}
    done = (await client.post(f"{PATH}/resolve", json=asked)).json()
    assert (done["matched"], done["changed"], done["complete"]) == (2, 2, False)
    pages = 1
    refused = await client.post(f"{PATH}/resolve", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_slow")
    assert list((await statuses(app)).values()).count("failed") == 3


# --- the routes -------------------------------------------------------------------------------------------------------


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
    assert {(one["act"], one["actor"], one["reason"]) for one in audit["deeds"]} == {
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
        review.Review, "page", lambda self, *_, **__: self._look(lambda c: c.execute(text(endless)), review.LOOK_WITHIN)
    )
    answer = await client.get(PATH, params={"error": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "too_slow")


async def test_a_store_that_is_too_busy_is_said(
    client: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an index serves a look, its slowness is the store's and passes: a 503, and a sentence on the page."""
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
        assert index in await app.database.read(plan, relay.review._conditions(one))


async def test_alarms_name_the_queues(app: Redrive, relay: Relay) -> None:
    """One for each queue whose messages wait for a person, gone when nobody is needed."""
    assert await relay.alarms() == []
    ids = await in_review(app, "m-1", "m-2")
    await in_review(app, "mail-1", original_queue="mail")
    assert [(one.name, one.rule) for one in await relay.alarms()] == [
        ("relay review orders", "system"), ("relay review mail", "system")
    ]  # fmt: skip
    assert "'orders' wait for a person: 2" in (await relay.alarms())[0].text
    await relay.review.act(Deed.RESOLVE, ids, ADA)
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


@pytest.mark.parametrize(
    ("payload", "format_", "text_"),
    [
        (b"", "empty", ""),
        (b'{"a": [1, null]}', "json", '{\n  "a": [\n    1,\n    null\n  ]\n}'),
        (b'{"token": "abcdefgh"}', "json", '{\n  "token": "[redacted]"\n}'),
        (b'"\\ud800"', "json", '"?"'),
        (b"[NaN, 1e999]", "json", "[\n  NaN,\n  Infinity\n]"),
        (b"[" * 100_000, "text", "[" * TEXT_CHARS_MAX),
        ("größe=1\n".encode(), "text", "größe=1\n"),
        (b"password=hunter2 rest", "text", "password=[redacted] rest"),
        (b"\x00\xff", "base64", "AP8="),
        (b"\x1b[2J", "base64", "G1sySg=="),
    ],
)
def test_previews(payload: bytes, format_: str, text_: str) -> None:
    """JSON where it is JSON, text where it is text, else base64; never a fault, never a secret."""
    shown = preview(payload[:READ_BYTES_MAX], len(payload))
    assert (shown.format, shown.text, shown.bytes) == (format_, text_, len(payload))
    assert shown.whole == (len(payload) <= TEXT_CHARS_MAX)


def test_previews_are_bounded_and_cut_between_letters() -> None:
    """However long a payload is, and wherever the beginning ends."""
    long = "ä".encode() * READ_BYTES_MAX
    shown = preview(b"x" + long[: READ_BYTES_MAX - 1], 1 + len(long))
    assert (shown.format, len(shown.text), shown.whole) == ("text", TEXT_CHARS_MAX, False)
    binary = preview(b"\xff" * READ_BYTES_MAX, READ_BYTES_MAX * 2)
    assert (binary.format, binary.whole, len(binary.text) < 6000) == ("base64", False, True)


def test_secrets_in_bytes_are_hidden() -> None:
    """A protobuf holds its texts as they are."""
    shown = preview(payload := b"\x0a\xff\x12password=hunter2 \x00", len(payload))
    assert b"hunter2" not in b64decode(shown.text)
