"""The life of an event: its four words, its counts and its times, in virtual time."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from .conftest import House
from .receiver import Receiver, status

MINUTE = timedelta(minutes=1)


def body(event: Any) -> tuple[Any, ...]:
    return (event.status, event.retry_attempts, event.last_retry_at, event.next_retry_at, event.failed_at)


async def test_an_event_that_always_fails(house: House, receiver: Receiver) -> None:
    """Tries at 0, 1, 6 and 21 min; 1, 2, 3, 3 attempts; failed with its time; every step is exact."""
    receiver.answer = lambda _: status(503)
    await house.endpoint(receiver.url)
    start = house.clock.now()
    id_ = await house.post()
    assert body(await house.event(id_)) == ("received", 0, None, None, None)
    for tried, (after, attempts) in enumerate([(0, 1), (1, 2), (5, 3)], start=1):
        if after:  # a moment too early nothing happens
            assert (await house.run(after=after * MINUTE - timedelta(milliseconds=2))).settlements == []
            house.clock.advance(timedelta(milliseconds=2))
        await house.run()
        now = house.clock.now()
        wait = [1, 5, 15][tried - 1] * MINUTE
        assert body(await house.event(id_)) == ("queued", attempts, now, now + wait, None)
        assert len(receiver.received) == tried
    await house.run(after=15 * MINUTE)
    now = house.clock.now()
    assert now - start == 21 * MINUTE
    assert body(await house.event(id_)) == ("failed", 3, now, None, now)
    assert len(receiver.received) == 4
    await house.run(after=timedelta(days=400))
    assert body(await house.event(id_)) == ("failed", 3, now, None, now)
    assert len(receiver.received) == 4


@pytest.mark.every_store
async def test_a_failed_event_is_brought_back(house: House, receiver: Receiver) -> None:
    """A redrive gives a fresh budget; the event is queued again, then delivered."""
    receiver.answer = lambda _: status(404)
    await house.endpoint(receiver.url)
    id_ = await house.post()
    await house.run()
    failed = house.clock.now()
    assert body(await house.event(id_)) == ("failed", 1, failed, None, failed)
    house.clock.advance(MINUTE)
    await house.redrive(id_)
    assert body(await house.event(id_)) == ("queued", 0, failed, house.clock.now(), None)
    receiver.answer = lambda _: status(200)
    await house.run()
    assert body(await house.event(id_)) == ("delivered", 0, failed, None, None)


async def test_an_event_is_as_far_as_its_deliveries(house: House, receiver: Receiver) -> None:
    """Two endpoints: queued while one is open, the largest count, the latest failure, the earliest next try."""
    receiver.answer = lambda got: status(500 if got.path == "/bad" else 200)
    base = receiver.url.removesuffix("/hook")
    await house.endpoint(base + "/good")
    await house.endpoint(base + "/bad")
    await house.endpoint(base + "/other", "invoice.*")
    id_ = await house.post()
    await house.run()
    first = house.clock.now()
    assert body(await house.event(id_)) == ("queued", 1, first, first + MINUTE, None)
    assert [got.path for got in receiver.received].count("/good") == 1
    for after in (1, 5, 15):
        await house.run(after=after * MINUTE)
    now = house.clock.now()
    assert body(await house.event(id_)) == ("failed", 3, now, None, now)
    assert sorted(got.path for got in receiver.received) == ["/bad"] * 4 + ["/good"]


async def test_without_endpoints_it_waits_in_the_inbox(house: House) -> None:
    """Nobody to deliver to: received, until it is acknowledged."""
    id_ = await house.post()
    await house.run(after=timedelta(days=1))
    assert (await house.event(id_)).status == "received"
    assert await house.triggers.inbox.acknowledge("ada", id_) == "delivered"
    assert await house.triggers.inbox.acknowledge("ada", id_) == "delivered"
    assert (await house.event(id_)).delivered_at == house.clock.now()


async def test_only_what_is_delivered_wakes_a_worker(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that waits in the inbox is nothing to look for; one that has an endpoint is looked for at once."""
    woken: list[str] = []
    monkeypatch.setattr(house.app.database, "wake", woken.append)
    await house.post()
    assert woken == []
    await house.endpoint(receiver.url)
    await house.post(user="bob")
    assert woken == []
    await house.post()
    assert woken == ["trigger_deliveries"]


@pytest.mark.every_store
async def test_an_acknowledged_event_is_not_delivered_any_more(house: House, receiver: Receiver) -> None:
    """Acknowledging ends what waits, and what was under way cannot bring the event back."""
    receiver.answer = lambda _: status(500)
    await house.endpoint(receiver.url)
    id_ = await house.post()
    await house.run()
    assert await house.triggers.inbox.acknowledge("ada", id_) == "delivered"
    assert (await house.event(id_)).next_retry_at is None
    await house.run(after=timedelta(days=1))
    assert len(receiver.received) == 1
    [delivery] = await house.deliveries(id_)
    assert delivery.state == "cancelled"

    # The same while it is under way: the try fails, and the next one finds the event acknowledged.
    id_ = await house.post()
    ledger = await house.triggers.lane.ledger()
    assert len(await ledger.claim(1, timedelta(seconds=30))) == 1
    assert await house.triggers.inbox.acknowledge("ada", id_) == "delivered"
    [delivery] = await house.deliveries(id_)
    assert delivery.state == "claimed"
    house.clock.advance(timedelta(minutes=5))
    await house.run()
    await house.run(after=MINUTE)
    assert (await house.event(id_)).status == "delivered"
    [delivery] = await house.deliveries(id_)
    assert delivery.state == "cancelled"
    assert len(receiver.received) == 1


async def test_a_deleted_endpoint_ends_what_waits_for_it(house: House, receiver: Receiver) -> None:
    """An event that was picked up and has nowhere to go has failed; one that was not stays in the inbox."""
    receiver.answer = lambda _: status(500)
    endpoint = await house.endpoint(receiver.url)
    tried = await house.post()
    await house.run()
    fresh = await house.post()
    assert await house.triggers.endpoints.delete("ada", endpoint.id)
    event = await house.event(tried)
    assert (event.status, event.failed_at, event.next_retry_at) == ("failed", house.clock.now(), None)
    assert (await house.event(fresh)).status == "received"
    assert not await house.triggers.endpoints.delete("ada", endpoint.id)


async def test_a_crash_beside_others_costs_no_attempt(house: House, receiver: Receiver) -> None:
    """A delivery whose worker is lost comes back at once and uncharged, and the event is delivered by the next one."""
    await house.endpoint(receiver.url)
    id_ = await house.post()
    ledger = await house.triggers.lane.ledger()
    assert len(await ledger.claim(1, timedelta(seconds=30))) == 1
    assert body(await house.event(id_)) == ("queued", 0, None, None, None)
    await house.run(after=timedelta(seconds=31))
    event = await house.event(id_)
    assert (event.status, body(event)[1]) == ("delivered", 0)


@pytest.mark.every_store
@pytest.mark.on_sql
async def test_the_store_refuses_other_words_and_counts(house: House, receiver: Receiver) -> None:
    """Four words and 0 to 3, by CHECKs of the store itself."""
    await house.endpoint(receiver.url)
    await house.post()
    for table, assignment in (
        ("trigger_events", "status = 'lost'"),
        ("trigger_events", "retry_attempts = 4"),
        ("trigger_events", "retry_attempts = -1"),
        ("trigger_deliveries", "retry_attempts = 4"),
    ):
        with pytest.raises(DBAPIError):
            await house.app.database.write(
                lambda connection, set_=f"UPDATE {table} SET {assignment}": connection.execute(text(set_))
            )


async def test_no_events_are_taken_in_as_none(house: House) -> None:
    """Nothing to store is nothing stored, and no fault."""
    assert await house.triggers.intake.take([]) == []
