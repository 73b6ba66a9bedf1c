"""An event is what its deliveries say, after any sequence of acts and by however many processes at once."""

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from redrive import Filter, Redrive, State
from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, LeaseExpired, Released, Snoozed
from redrive.core.task import Claim, ClaimLocked
from redrive.errors import PermanentError, TransientError
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.sql.beside import EVERYBODY
from redrive.systems.triggers.status import Delivery, Standing, fold
from redrive.testing import VirtualClock

from .conftest import House, settings

LEASE = timedelta(seconds=30)
OUTCOMES: list[Any] = [
    Done(), Done(), Failed(TransientError("no")), Failed(TransientError("no")), Failed(PermanentError("never")),
    Snoozed(timedelta(seconds=5)), Released(), LeaseExpired(),
]  # fmt: skip


def read(connection: Connection) -> tuple[list[Any], list[Any], dict[tuple[str, str], int]]:
    counts: Counter[tuple[str, str]] = Counter()
    everybody: Counter[str] = Counter()
    for row in connection.execute(select(t.counts)):
        if row.user_id == EVERYBODY:
            everybody[row.status] += row.amount
        else:
            counts[row.user_id, row.status] += row.amount
            everybody[row.status] -= row.amount
    assert not any(everybody.values())  # all users together are what each of them has
    return list(connection.execute(select(t.events))), list(connection.execute(select(t.deliveries))), +counts


def wipe(connection: Connection) -> None:
    for table in (t.deliveries, t.events, t.endpoints, t.counts):
        connection.execute(table.delete())


def expected(deliveries: list[Any], before: str) -> tuple[Any, ...]:
    """The status and next try of an event, in plain words, from its deliveries and the status that it had."""
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


class Story:
    """Acts on events of two users, each drawn from numbers, and the status that each event had after the last one."""

    def __init__(self, house: House, ledger: Any) -> None:
        self.house = house
        self.ledger = ledger
        self.held: list[Claim] = []
        self.status: dict[str, tuple[str, str]] = {}
        self.endpoints: list[Any] = []

    async def act(self, verb: str, number: int) -> None:
        triggers, user = self.house.triggers, ("ada", "bob")[number % 2]
        event = sorted(self.status)[number % len(self.status)] if self.status else "none"
        match verb:
            case "post":
                self.status[await self.house.post(user=user)] = (user, "received")
            case "claim":
                self.held += await self.ledger.claim(1 + number % 4, LEASE)
            case "settle":
                some = [self.held.pop(number % len(self.held)) for _ in range(min(len(self.held), 1 + number % 4))]
                outcomes = [OUTCOMES[(number + place) % len(OUTCOMES)] for place in range(len(some))]
                decided = [decide(one, outcome, triggers.policy) for one, outcome in zip(some, outcomes, strict=True)]
                await self.ledger.settle(decided, worker="w")
            case "acknowledge":
                if await triggers.inbox.acknowledge(user, event) == "delivered":
                    self.status[event] = (user, "delivered")
            case "delete":
                if await triggers.inbox.delete(user, event):
                    del self.status[event]
            case "unsubscribe":
                gone = self.endpoints.pop(number % len(self.endpoints))
                await triggers.endpoints.delete(gone.user_id, gone.id)
                self.endpoints.append(await self.house.endpoint("http://127.0.0.1:9/", user=gone.user_id))
            case "redrive":
                await triggers.lane.redrive(Filter(state=State.DEAD), actor="ada")
            case "cancel":
                await triggers.lane.cancel(Filter(state=State.WAITING), actor="ada")
            case "resolve":
                dead = (await triggers.lane.find(Filter(state=State.DEAD), limit=1)).items
                await triggers.lane.resolve([task.id for task in dead], State.DONE, actor="ada")

    async def check(self) -> None:
        """The stored events are what their deliveries say, in plain words and by the fold, and so are the counters."""
        events, deliveries, counts = await self.house.app.database.read(read)
        assert {event.id for event in events} == set(self.status)
        for event in events:
            user, before = self.status[event.id]
            mine = [one for one in deliveries if one.event_id == event.id]
            assert (event.status, event.next_retry_at) == expected(mine, before), (event, mine)
            live = [one.retry_attempts for one in mine if one.status != "cancelled"]
            if before != "delivered" and live:
                assert event.retry_attempts == max(live), (event, mine)
            stands = Standing(*(getattr(event, name) for name in Standing._fields))
            facts = [Delivery(*(getattr(one, name) for name in Delivery._fields)) for one in mine]
            assert fold(stands, facts, self.house.clock.now()) == stands, (event, mine)
            self.status[event.id] = (user, event.status)
        assert counts == Counter((event.user_id, event.status) for event in events)


VERBS = ("post", "post", "claim", "claim", "claim", "settle", "settle", "settle", "acknowledge", "delete",
         "unsubscribe", "redrive", "cancel", "resolve")  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 63), st.sampled_from([0, 1, 60])), max_size=40))
@hypothesis.settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@pytest.mark.on_sql
async def test_any_sequence_of_acts(house: House, acts: list[tuple[str, int, int]]) -> None:
    """Claim, settle in every way, lose a lease, acknowledge, redrive, cancel, delete: the event always follows, the counters too."""
    await house.app.database.write(wipe)
    story = Story(house, await house.triggers.lane.ledger())
    for number, user in enumerate(("ada", "bob", "ada", "bob")):
        story.endpoints.append(await house.endpoint(f"http://127.0.0.1:9/{number}", user=user))
    for verb, number, seconds in acts:
        await story.act(verb, number)
        house.clock.advance(timedelta(seconds=seconds))
        await story.check()


@pytest.mark.on_sql
async def test_every_way_of_its_life(house: House) -> None:
    """A long story without luck: each of the moves that an event may make is made."""
    rng = random.Random(7)
    story = Story(house, await house.triggers.lane.ledger())
    for number, user in enumerate(("ada", "bob", "ada", "bob")):
        story.endpoints.append(await house.endpoint(f"http://127.0.0.1:9/{number}", user=user))
    seen = set()
    for _ in range(150):
        before = dict(story.status)
        await story.act(rng.choice(VERBS), rng.randrange(64))
        house.clock.advance(timedelta(seconds=rng.choice([0, 1, 60])))
        await story.check()
        seen |= {(before[id_][1], now[1]) for id_, now in story.status.items() if id_ in before}
    assert {("received", "queued"), ("queued", "failed"), ("queued", "delivered"), ("failed", "queued")} <= seen, seen


@pytest.mark.on_sql
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
            await asyncio.gather(*(settle_all(ledger, half) for ledger, half in zip(ledgers, halves, strict=True)))
    assert {(await house.event(id_)).status for id_ in ids} == {"delivered"}


async def settle_all(ledger: Any, settlements: list[Any]) -> None:
    """Settle them; on a slow machine one may hold its events so long that the other has to come back."""
    while settlements:
        unwritten = await ledger.settle(settlements, worker="w")
        assert all(isinstance(one, ClaimLocked) for one in unwritten)
        settlements = settlements if unwritten else []
