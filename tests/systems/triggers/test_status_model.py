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

from redrive import Filter, State
from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, LeaseExpired, Released, Snoozed
from redrive.core.task import Claim, ClaimLocked
from redrive.errors import PermanentError, TransientError
from redrive.systems.triggers.status import fold
from redrive.testing import VirtualClock

from .conftest import ITEMS, House, make_app
from .stored import read_events, wipe_events

SEED = 41
ACTS_ON_ITEMS = 30
LEASE = timedelta(seconds=30)
OUTCOMES: list[Any] = [
    Done(), Done(), Failed(TransientError("no")), Failed(TransientError("no")), Failed(PermanentError("never")),
    Snoozed(timedelta(seconds=5)), Released(), LeaseExpired(),
]  # fmt: skip


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
                outcomes = [
                    OUTCOMES[(number + place) % len(OUTCOMES)] if one.abandoned is None else LeaseExpired()
                    for place, one in enumerate(some)
                ]
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
        events, counts = await read_events(self.house.app)
        assert {event.id for event in events} == set(self.status)
        for event in events:
            user, before = self.status[event.id]
            stands, mine = event.stands, event.deliveries
            assert (stands.status, stands.next_retry_at) == expected(mine, before), event
            live = [one.retry_attempts for one in mine if one.status != "cancelled"]
            if before != "delivered" and live:
                assert stands.retry_attempts == max(live), event
            assert fold(stands, mine, self.house.clock.now()) == stands, event
            self.status[event.id] = (user, stands.status)
        assert counts == Counter((event.user_id, event.stands.status) for event in events)


VERBS = ("post", "post", "claim", "claim", "claim", "settle", "settle", "settle", "acknowledge", "delete",
         "unsubscribe", "redrive", "cancel", "resolve")  # fmt: skip


ACTS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 63), st.sampled_from([0, 1, 60])), max_size=40)
PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


async def begin(house: House) -> Story:
    """Nothing but four endpoints."""
    story = Story(house, await house.triggers.lane.ledger())
    for number, user in enumerate(("ada", "bob", "ada", "bob")):
        story.endpoints.append(await house.endpoint(f"http://127.0.0.1:9/{number}", user=user))
    return story


async def play(house: House, acts: list[tuple[str, int, int]]) -> None:
    """One act after the other, and a look after each."""
    await wipe_events(house.app)
    story = await begin(house)
    for verb, number, seconds in acts:
        await story.act(verb, number)
        house.clock.advance(timedelta(seconds=seconds))
        await story.check()


@given(ACTS)
@hypothesis.settings(max_examples=12, **PATIENT)
@pytest.mark.on_sql
async def test_any_sequence_of_acts(house: House, acts: list[tuple[str, int, int]]) -> None:
    """Claim, settle in every way, lose a lease, acknowledge, redrive, cancel, delete: the event always follows, the counters too."""
    await play(house, acts)


@given(ACTS)
@hypothesis.settings(max_examples=3, **PATIENT)
@pytest.mark.parametrize("store", [ITEMS])
async def test_any_sequence_of_acts_on_items(house: House, acts: list[tuple[str, int, int]]) -> None:
    """The same where each call goes to a server, of fewer sequences."""
    house.triggers.stores.endpoints._users.clear()  # type: ignore[attr-defined]  # what it knew is wiped
    await play(house, acts)


async def test_every_way_of_its_life(house: House) -> None:
    """A long story without luck: each of the moves that an event may make is made."""
    rng = random.Random(SEED)
    story = await begin(house)
    seen = set()
    for _ in range(150 if house.app.store.keeps_tasks else ACTS_ON_ITEMS):
        before = dict(story.status)
        await story.act(rng.choice(VERBS), rng.randrange(64))
        house.clock.advance(timedelta(seconds=rng.choice([0, 1, 60])))
        await story.check()
        seen |= {(before[id_][1], now[1]) for id_, now in story.status.items() if id_ in before}
    assert {("received", "queued"), ("queued", "failed"), ("queued", "delivered"), ("failed", "queued")} <= seen, seen


async def test_deliveries_of_one_event_settled_at_once(url: str, clock: VirtualClock, house: House) -> None:
    """Two processes settle the two deliveries of an event in the same moment: neither misses the other."""
    for number in range(2):
        await house.endpoint(f"http://127.0.0.1:9/{number}")
    amount, rounds = 10, 4 if house.app.store.keeps_tasks else 1  # as many as an endpoint takes at once
    other, _ = make_app(url, clock)
    ids = list[str]()
    async with other:
        ledgers = [await app.lanes["trigger_deliveries"].ledger() for app in (house.app, other)]
        for _ in range(rounds):
            ids += await house.post_many(amount)
            claims: list[Claim] = []
            while some := await ledgers[0].claim(100, LEASE):  # a queue may hand them out in pieces
                claims += some
            assert len(claims) == 2 * amount
            of_event: dict[str, list[Claim]] = {}
            for claim in claims:
                of_event.setdefault(claim.task.payload["event_id"], []).append(claim)
            halves: list[list[Any]] = [[], []]
            for pair in of_event.values():
                for half, claim in zip(halves, pair, strict=True):
                    half.append(decide(claim, Done(), house.triggers.policy))
            await asyncio.gather(*(settle_all(ledger, half) for ledger, half in zip(ledgers, halves, strict=True)))
    assert {(await house.event(id_)).status for id_ in ids} == {"delivered"}


async def settle_all(ledger: Any, settlements: list[Any]) -> None:
    """Settle them; on a slow machine one may hold its events so long that the other has to come back."""
    while settlements:
        unwritten = await ledger.settle(settlements, worker="w")
        assert all(isinstance(one, ClaimLocked) for one in unwritten)
        settlements = settlements if unwritten else []
