"""What is written beside deliveries: an event that a stranger has locked holds up no delivery of another."""

import asyncio
from datetime import timedelta

import psycopg
import pytest

from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.engine.patience import Patience
from redrive.engine.settler import Settler
from redrive.events import AttemptEnded
from tests.engine.workbench import Heard

from .conftest import House

LEASE = timedelta(seconds=30)


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
