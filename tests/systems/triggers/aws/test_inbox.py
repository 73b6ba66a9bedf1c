"""The inbox over items: how few questions a page takes, and deletions that a crash cut short."""

import asyncio
import math
import os
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import LedgerAwayError
from redrive.ledgers.aws.client import KEYS_MAX
from redrive.ledgers.aws.owner import ItemOwning
from redrive.operator.census_pace import REST_MAX, rest_after
from redrive.systems.triggers.aws import inbox
from redrive.systems.triggers.values import NewEvent

from ..conftest import House

ROWS = int(os.environ.get("REDRIVE_TEST_ROWS") or 120)
Asked = list[tuple[str, dict[str, Any]]]


async def fill(house: House, amount: int, **given: Any) -> list[str]:
    """So many events of a user, oldest first."""
    values = {"user_id": "ada", "event_type": "order.made", "payload": "1", "correlation_id": "c"} | given
    taken = []
    for start in range(0, amount, 50):
        taken += await house.triggers.intake.take([NewEvent(**values)] * min(50, amount - start))
        house.clock.advance(timedelta(seconds=1))
    return sorted(one.id for one in taken)


async def test_a_page_asks_the_index_once(house: House, asked: Asked) -> None:
    """However many events there are and wherever the page begins: one question to the index, one for the counters, and strong reads.

    `REDRIVE_TEST_ROWS` says how many there are, 10,000 for instance, on a server that carries them (`REDRIVE_TEST_AWS=ministack`).
    """
    limit = max(10, ROWS // 100)
    sizes: Counter[str] = Counter()
    for amount in (3 * limit, ROWS):
        user = f"user {amount}"
        ids = await fill(house, amount, user_id=user)
        await house.triggers.stores.flushed()
        after: str | None = None
        seen: list[str] = []
        while True:
            asked.clear()
            page = await house.triggers.inbox.page(user, "received", event_type=None, after=after, limit=limit)
            queries = [request for call, request in asked if call == "query"]
            assert [request.get("IndexName") for request in queries].count("StatusIndex") == 1
            assert [request.get("ConsistentRead") for request in queries if "IndexName" not in request] == [True]
            reads = [request for call, request in asked if call == "batch_get_item"]
            assert all(table["ConsistentRead"] for request in reads for table in request["RequestItems"].values())
            read = sum(len(table["Keys"]) for request in reads for table in request["RequestItems"].values())
            assert (read, len(reads)) == (2 * limit, math.ceil(2 * limit / KEYS_MAX))
            assert len(asked) == 2 + len(reads)
            sizes[" + ".join(sorted(call for call, _ in asked))] += 1
            seen += [event.id for event in page.events]
            assert page.total == amount
            if not page.has_more:
                break
            after = page.last
        assert seen == ids
    print(f"{ROWS:,} rows, pages of {limit}: {dict(sizes)}")
    assert len(sizes) == 1


async def test_a_filter_goes_through_some_pages_only(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves over is looked for in so many entries of the index; a short page says that there is more, and goes on."""
    monkeypatch.setattr(inbox, "INDEX_PAGE", 5)
    monkeypatch.setattr(inbox, "INDEX_PAGES_MAX", 2)
    await fill(house, 14)
    [wanted] = await fill(house, 1, event_type="rare")
    first = await house.triggers.inbox.page("ada", "received", event_type="rare", after=None, limit=3)
    assert (first.events, first.has_more) == ([], True)
    second = await house.triggers.inbox.page("ada", "received", event_type="rare", after=first.last, limit=3)
    assert ([event.id for event in second.events], second.has_more) == ([wanted], False)


async def test_what_a_crash_left_is_deleted_later(house: House, monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    """An event whose deletion was cut short is gone for everybody at once, and what is left of it after a while."""
    [kept, gone] = [await house.post(idempotency_key=key) for key in ("a", "b")]

    async def crash(_ledger: object, _id: str) -> None:
        raise LedgerAwayError("away")

    with monkeypatch.context() as broken:
        broken.setattr(ItemOwning, "_clear", crash)
        assert await house.triggers.inbox.delete("ada", gone)
    assert await house.event(gone) is None
    assert (await house.triggers.inbox.totals())["received"] == 1
    assert not await house.triggers.inbox.delete("ada", gone)
    again = await house.post(idempotency_key="b")
    assert again != gone
    house.clock.advance(timedelta(minutes=5))
    asked.clear()
    assert await house.triggers.inbox.forget_delivered(None) == 0
    deleted = {request["Key"]["pk"]["S"] for call, request in asked if call == "delete_item"}
    assert deleted == {f"E#{gone}"}
    assert await house.event(kept) is not None


async def test_totals_are_counted_by_one_at_a_time(house: House, asked: Asked) -> None:
    """However many look at once, the counters of users are added up once, by whoever has the turn; the others see the last sum."""
    inbox: Any = house.triggers.inbox
    inbox._census._rest = rest_after
    await house.post()
    assert (await inbox.totals())["received"] == 1
    await house.post()
    house.clock.advance(REST_MAX)
    asked.clear()
    seen = await asyncio.gather(*(inbox.totals() for _ in range(5)))
    assert {totals["received"] for totals in seen} <= {1, 2}
    counted = [
        request
        for call, request in asked
        if call == "query" and {"S": "C#ada"} in request["ExpressionAttributeValues"].values()
    ]
    assert len(counted) == 1
    assert (await inbox.totals())["received"] == 2


async def test_a_payload_that_no_item_holds_is_refused_with_the_number(house: House) -> None:
    """413 with what is stored at most; in a batch it costs none of the others."""
    large = {"event_type": "order.made", "payload": "x" * 400_001}
    async with house.client(await house.key()) as client:
        alone = await client.post("/v1/events", json=large)
        assert (alone.status_code, alone.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
        assert "400,000" in alone.json()["error"]["message"]
        fits = await client.post("/v1/events", json=large | {"payload": "x" * 399_998})
        assert fits.status_code == 201
        batch = await client.post("/v1/events/batch", json={"events": [large, {"event_type": "a", "payload": 1}]})
    first, second = batch.json()["results"]
    assert first["error"]["code"] == "PAYLOAD_TOO_LARGE"
    assert second["status"] == "received"


async def test_an_event_of_a_batch_that_could_not_be_stored_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are stored; if none could be, the request is refused as a whole."""
    intake: Any = house.triggers.intake
    take = intake._ledger.take
    refused = {"b"}

    async def some(head: Any, **given: Any) -> None:
        if head.facts["event_type"] in refused:
            raise LedgerAwayError("DynamoDB does not answer")
        await take(head, **given)

    monkeypatch.setattr(intake._ledger, "take", some)
    events = {"events": [{"event_type": name, "payload": 1} for name in "ab"]}
    async with house.client(await house.key()) as client:
        first, second = (await client.post("/v1/events/batch", json=events)).json()["results"]
        assert (first["status"], second["error"]["code"]) == ("received", "SERVICE_UNAVAILABLE")
        refused.add("a")
        assert (await client.post("/v1/events/batch", json=events)).status_code == 503
