"""An event is what its deliveries say, after any sequence of acts and by however many processes at once."""

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, select

from redrive import Filter, Redrive, State
from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, LeaseExpired, Released, Snoozed
from redrive.core.task import Claim
from redrive.errors import PermanentError, TransientError
from redrive.systems.triggers import Triggers
from redrive.systems.triggers import tables as t
from redrive.testing import VirtualClock

from .conftest import House, settings

LEASE = timedelta(seconds=30)
OUTCOMES: list[Any] = [
    Done(), Done(), Failed(TransientError("no")), Failed(TransientError("no")), Failed(PermanentError("never")),
    Snoozed(timedelta(seconds=5)), Released(), LeaseExpired(),
]  # fmt: skip


def read(connection: Connection) -> tuple[list[Any], list[Any], dict[tuple[str, str], int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in connection.execute(select(t.counts)):
        counts[row.user_id, row.status] += row.amount
    return list(connection.execute(select(t.events))), list(connection.execute(select(t.deliveries))), +counts


def expected(event: Any, deliveries: list[Any], before: str) -> tuple[Any, ...]:
    """The status, count and next try of an event, in plain words, from its deliveries and the status that it had."""
    live = [one for one in deliveries if one.status != "cancelled"]
    open_ = [one for one in live if one.status in ("waiting", "claimed")]
    picked = any(one.claimed_at is not None for one in deliveries)
    if before == "delivered":
        status = before
    elif open_:
        status = "queued" if picked or before != "received" else "received"
    elif before == "failed" or any(one.status == "dead" for one in live):
        status = "failed"
    elif any(one.status == "done" for one in live):
        status = "delivered"
    else:
        status = "failed" if before == "queued" else before
    waits = [one.due_at for one in open_ if one.status == "waiting" and one.claimed_at is not None]
    return status, min(waits, default=None) if status == "queued" else None


async def test_any_sequence_of_acts(house: House) -> None:
    """Claim, settle in every way, lose a lease, acknowledge, redrive, delete: the event always follows, the counters too."""
    rng = random.Random(7)
    ledger = await house.triggers.lane.ledger()
    endpoints = [
        await house.endpoint(f"http://127.0.0.1:9/{n}", user=user) for n in range(2) for user in ("ada", "bob")
    ]
    held: list[Claim] = []
    status: dict[str, str] = {}
    seen: Counter[str] = Counter()

    async def post() -> None:
        user = rng.choice(["ada", "bob"])
        status[await house.post(user=user)] = "received"

    async def claim() -> None:
        held.extend(await ledger.claim(rng.randint(1, 4), LEASE))

    async def settle() -> None:
        rng.shuffle(held)
        some = [held.pop() for _ in range(min(len(held), rng.randint(1, 4)))]
        decided = [decide(one, rng.choice(OUTCOMES), house.triggers.policy) for one in some]
        await ledger.settle(decided, worker="w")

    async def act() -> None:
        id_ = rng.choice(list(status))
        user = rng.choice(["ada", "bob"])
        chosen = rng.random()
        if chosen < 0.4:
            if await house.triggers.events.acknowledge(user, id_) == "delivered":
                status[id_] = "delivered"
        elif chosen < 0.5:
            if await house.triggers.events.delete(user, id_):
                del status[id_]
        elif chosen < 0.6 and len(endpoints) > 2:
            gone = endpoints.pop(rng.randrange(len(endpoints)))
            await house.triggers.endpoints.delete(gone.user_id, gone.id)
            endpoints.append(await house.endpoint("http://127.0.0.1:9/", user=gone.user_id))
        else:
            await house.triggers.lane.redrive(Filter(state=State.DEAD), actor="ada")

    for step in range(150):
        if status:
            await rng.choice([post, claim, claim, settle, settle, act])()
        else:
            await post()
        house.clock.advance(timedelta(seconds=rng.choice([0, 1, 60])))
        events, deliveries, counts = await house.app.database.read(read)
        assert {event.id for event in events} == set(status)
        for event in events:
            mine = [one for one in deliveries if one.event_id == event.id]
            assert (event.status, event.next_retry_at) == expected(event, mine, status[event.id]), (step, event, mine)
            live = [one.retry_attempts for one in mine if one.status != "cancelled"]
            if status[event.id] != "delivered" and live:
                assert event.retry_attempts == max(live), (step, event, mine)
            assert (event.failed_at is not None) == (event.status == "failed")
            seen[f"{status[event.id]} {event.status}"] += 1
            status[event.id] = event.status
        assert counts == Counter((event.user_id, event.status) for event in events), step
    assert {"received queued", "queued failed", "queued delivered", "failed queued"} <= set(seen), seen


async def test_deliveries_of_one_event_settled_at_once(url: str, clock: VirtualClock, house: House) -> None:
    """Two processes settle the two deliveries of an event in the same moment: neither misses the other."""
    for number in range(2):
        await house.endpoint(f"http://127.0.0.1:9/{number}")
    ids = [await house.post() for _ in range(40)]
    other = Redrive(url, clock=clock, durable=False)
    Triggers(other, settings())
    async with other:
        ledgers = [await app.lanes["trigger_deliveries"].ledger() for app in (house.app, other)]
        claims = await ledgers[0].claim(100, LEASE)
        assert len(claims) == 80
        of_event: dict[str, list[Claim]] = {}
        for claim in claims:
            of_event.setdefault(claim.task.payload["event_id"], []).append(claim)
        for start in range(0, len(ids), 10):
            halves: list[list[Any]] = [[], []]
            for id_ in ids[start : start + 10]:
                for half, claim in zip(halves, of_event[id_], strict=True):
                    half.append(decide(claim, Done(), house.triggers.policy))
            lost = await asyncio.gather(
                *(ledger.settle(half, worker="w") for ledger, half in zip(ledgers, halves, strict=True))
            )
            assert lost == [[], []]
    assert {(await house.event(id_)).status for id_ in ids} == {"delivered"}
