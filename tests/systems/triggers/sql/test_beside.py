"""What is written beside deliveries: an event that a stranger has locked holds up no delivery of another."""

import asyncio
from datetime import timedelta

import psycopg
import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, Outcome, Released
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.errors import PermanentError, TransientError
from redrive.events import AttemptEnded
from redrive.systems.triggers.values import StatusChanged
from tests.engine.workbench import Heard

from ..conftest import House

LEASE = timedelta(seconds=30)
PATIENCE_SECONDS = 60


@pytest.mark.parametrize("store", ["postgres"])
async def test_a_locked_event_holds_up_its_own_deliveries_alone(house: House, url: str) -> None:
    """While a stranger has locked one event, the deliveries of the others are settled; its own are when the lock goes."""
    await house.endpoint("http://127.0.0.1:9/")
    ids = [await house.post() for _ in range(5)]
    ledger = await house.triggers.lane.ledger()
    claims = await ledger.claim(10, LEASE)
    heard = Heard()
    settler = Settler(ledger, "w", Patience(ledger.name, heard.tell), heard.tell, batch=100)
    running = asyncio.create_task(settler.run())
    async with await psycopg.AsyncConnection.connect(url) as stranger, asyncio.timeout(60):
        await stranger.execute("SELECT 1 FROM trigger_events WHERE id = %s FOR UPDATE", [ids[2]])
        for claim in claims:
            settler.put(decide(claim, Done(), house.triggers.policy))
        await heard.amount(AttemptEnded, 4)
        assert [(await house.event(id_)).status == "delivered" for id_ in ids] == [True, True, False, True, True]
        await stranger.rollback()
        await heard.amount(AttemptEnded, 5)
        assert (await house.event(ids[2])).status == "delivered"
    running.cancel()
    await asyncio.wait([running])
    assert len(heard.events) == 5


@pytest.mark.parametrize("store", ["postgres"])
async def test_a_claim_does_not_wait_for_a_locked_event(house: House, url: str) -> None:
    """While a stranger has locked one event, all deliveries are claimed, and the other events are queued."""
    await house.endpoint("http://127.0.0.1:9/")
    ids = [await house.post() for _ in range(5)]
    ledger = await house.triggers.lane.ledger()
    async with await psycopg.AsyncConnection.connect(url) as stranger, asyncio.timeout(PATIENCE_SECONDS):
        await stranger.execute("SELECT 1 FROM trigger_events WHERE id = %s FOR UPDATE", [ids[2]])
        claims = await ledger.claim(10, LEASE)
        assert len(claims) == 5
        assert [(await house.event(id_)).status for id_ in ids] == ["queued", "queued", "received", "queued", "queued"]
        await stranger.rollback()
    assert await ledger.settle([decide(claim, Done(), house.triggers.policy) for claim in claims], worker="w") == []
    assert [(await house.event(id_)).status for id_ in ids] == ["delivered"] * 5
    assert {word: amount for word, amount in (await house.triggers.inbox.totals()).items() if amount} == {
        "delivered": 5
    }


@pytest.mark.parametrize("store", ["postgres"])
@pytest.mark.parametrize(
    ("outcome", "story"),
    [
        (Done(), ["received", "queued", "delivered"]),
        (Failed(PermanentError("no")), ["received", "queued", "failed"]),
        (Failed(TransientError("no")), ["received", "queued"]),
        (Released(), ["received", "queued"]),
    ],
)
async def test_what_a_claim_left_out_is_made_up_for(house: House, url: str, outcome: Outcome, story: list[str]) -> None:
    """However a delivery ends, its event was queued in between, at the time of the claim, and the log says so in order."""
    told: list[StatusChanged] = []
    house.triggers.inbox._status.order._tell = lambda changes: told.extend(
        one for one in changes if isinstance(one, StatusChanged)
    )
    await house.endpoint("http://127.0.0.1:9/")
    id_ = await house.post()
    ledger = await house.triggers.lane.ledger()
    house.clock.advance(timedelta(seconds=1))
    async with await psycopg.AsyncConnection.connect(url) as stranger, asyncio.timeout(PATIENCE_SECONDS):
        await stranger.execute("SELECT 1 FROM trigger_events WHERE id = %s FOR UPDATE", [id_])
        [claim] = await ledger.claim(10, LEASE)
        await stranger.rollback()
    house.clock.advance(timedelta(seconds=1))
    assert await ledger.settle([decide(claim, outcome, house.triggers.policy)], worker="w") == []
    assert [one.new_status for one in told] == story
    assert [one.old_status for one in told] == [None, *story[:-1]]
    assert [one.at.second for one in told] == list(range(len(story)))
    assert (await house.event(id_)).status == story[-1]
