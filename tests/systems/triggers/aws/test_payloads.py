"""Large payloads in a bucket: kept, read, delivered and deleted with their events, whatever is cut or killed in between."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import LedgerAwayError
from redrive.ledgers.aws.owner import ItemOwning
from redrive.systems.triggers.aws.payloads import STRAY_AFTER
from redrive.testing import VirtualClock
from tests.ledgers.aws.cutting import CuttingClient, KilledError
from tests.stores.items import item_url

from ..conftest import House, make_app
from ..receiver import Receiver

LARGE = json.dumps({"text": "x" * 500_000})
HOUR = timedelta(hours=1)


@pytest.fixture
async def house(aws: str, clock: VirtualClock) -> AsyncIterator[House]:
    """An application with a bucket."""
    async with item_url(aws, bucket=True) as url:
        app, triggers = make_app(url, clock)
        async with app:
            yield House(app, triggers, clock)
            await triggers.outgoing.close()


async def names(house: House) -> list[str]:
    """The objects of the bucket."""
    items: Any = house.app.store
    return list(await items.objects.names(""))


async def test_a_large_payload_is_kept_in_the_bucket(house: House, receiver: Receiver) -> None:
    """It is read, listed and delivered as any other, no item holds it, and it goes with its event. A small one stays in its item."""
    await house.endpoint(receiver.url, "sent")
    listed, sent, small = [
        await house.post("a", payload=LARGE),
        await house.post("sent", payload=LARGE),
        await house.post("b"),
    ]
    assert await names(house) == [listed, sent]
    assert (await house.event(listed)).payload == LARGE
    page = await house.triggers.inbox.page("ada", "received", event_type=None, after=None, limit=10)
    assert [event.payload for event in page.events] == [LARGE, LARGE, '{"n": 1}']
    await house.run()
    assert (await house.event(sent)).status == "delivered"
    assert [json.loads(got.body)["data"] for got in receiver.received] == [json.loads(LARGE)]
    for id_ in (listed, sent, small):
        assert await house.triggers.inbox.delete("ada", id_)
    assert await names(house) == []


async def test_one_that_is_too_large_is_refused_with_the_number(house: House) -> None:
    """413 with what is stored at most: as much as a request may have."""
    large = {"event_type": "a", "payload": "x" * (1 << 20)}
    async with house.client(await house.key()) as client:
        refused = await client.post(
            "/v1/events/batch", json={"events": [large, {"event_type": "a", "payload": "x" * 500_000}]}
        )
    first, second = refused.json()["results"]
    assert (first["error"]["code"], "1,048,576" in first["error"]["message"]) == ("PAYLOAD_TOO_LARGE", True)
    assert second["status"] == "received"


async def test_what_a_killed_process_left_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object whose event was never stored is deleted when it is an hour old; those of events stay, however old they are."""
    kept = await house.post(payload=LARGE, idempotency_key="k")
    assert await house.post(payload=LARGE, idempotency_key="k") == kept
    assert await names(house) == [kept]  # that of the repetition is gone at once

    async def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as once, pytest.raises(KilledError):
        once.setattr(house.triggers.intake._ledger, "take", killed)  # type: ignore[attr-defined]
        await house.post(payload=LARGE)
    stray = (set(await names(house)) - {kept}).pop()
    await house.triggers.inbox.forget_delivered(None)
    assert set(await names(house)) == {kept, stray}
    house.clock.advance(STRAY_AFTER + timedelta(minutes=1))
    late = await house.post(payload=LARGE)
    await house.triggers.inbox.forget_delivered(None)
    assert await names(house) == [kept, late]
    house.clock.advance(10 * HOUR)
    await house.triggers.inbox.forget_delivered(None)
    assert await names(house) == [kept, late]


async def test_a_deletion_that_was_cut_short_is_finished(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tombstone is found, and the object goes before it does."""
    gone = await house.post(payload=LARGE)

    async def crash(_ledger: object, _id: str) -> None:
        raise LedgerAwayError("away")

    with monkeypatch.context() as broken:
        broken.setattr(ItemOwning, "_clear", crash)
        assert await house.triggers.inbox.delete("ada", gone)
    assert (await house.event(gone), await names(house)) == (None, [gone])
    house.clock.advance(timedelta(minutes=5))
    await house.triggers.inbox.forget_delivered(None)
    assert await names(house) == []


@pytest.mark.parametrize("where", ["before", "after"])
async def test_each_call_is_cut_once(house: House, where: str) -> None:
    """Asked again, it comes to the same."""
    items: Any = house.app.store
    plain, number = items.objects._client, 0
    while number < 10:
        items.objects._client = cutting = CuttingClient(plain, lambda at, _, cut=number: where if at == cut else None)
        id_ = await house.post(payload=LARGE)
        assert (await house.event(id_)).payload == LARGE
        assert await house.triggers.inbox.delete("ada", id_)
        assert await names(house) == []
        if not cutting.cuts:
            break
        number += 1
    assert number == 4  # put, get, delete, and the look of this test


async def test_without_its_bucket_an_event_waits(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes the setting away is told to put it back; no try is charged meanwhile."""
    await house.endpoint(receiver.url)
    id_ = await house.post(payload=LARGE)
    payloads: Any = house.triggers.inbox._payloads  # type: ignore[attr-defined]
    with monkeypatch.context() as unset:
        unset.setattr(payloads, "_objects", None)
        async with house.client(await house.key()) as client:
            answer = await client.get(f"/v1/events/{id_}")
        assert answer.status_code == 503
        with pytest.raises(LedgerAwayError, match="set PAYLOAD_BUCKET to it"):
            await house.event(id_)
        await house.run()
        assert receiver.received == []
    await house.run(after=timedelta(minutes=5))
    event = await house.event(id_)
    assert (event.status, event.retry_attempts) == ("delivered", 0)
