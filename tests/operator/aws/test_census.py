"""The census over items: from counters, and with no cause left out."""

import asyncio

import pytest

from redrive.core.outcome import Failed
from redrive.core.states import State
from redrive.errors import PermanentError
from redrive.ledgers.aws.expressions import delete, put
from redrive.ledgers.aws.history import cause_partition
from redrive.operator.aws.census import ItemCensus
from redrive.operator.aws.figures import ItemFigures
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import ItemHome, make_ledger
from tests.ledgers.homes import ADA, LEASE, settlement

STORES = ("aws",)


async def dead(home: ItemHome, *errors: str) -> None:
    """Deliveries that died of these errors."""
    await home.put(len(errors))
    claims = await home.ledger.claim(len(errors), LEASE)
    ended = [settlement(claim, Failed(PermanentError(error))) for claim, error in zip(claims, errors, strict=True)]
    assert await home.ledger.settle(ended, worker="w1") == []


async def test_of_two_who_count_at_once_one_has_counted(home: ItemHome) -> None:
    """What was taken in is counted as added once."""
    await ItemCensus(home.ledger).take()
    await home.put(4)
    taken = await asyncio.gather(*(ItemCensus(home.ledger).take() for _ in range(3)))
    assert sum(taken) == 1
    figures = ItemFigures(home.ledger.dynamo, clock=home.clock)
    assert (await figures.sums([home.ledger.name], home.clock.now()))["added"] == 4
    assert (await figures.states())[home.ledger.name].amounts[State.WAITING] == 4


@pytest.mark.parametrize("where", ["before", "after"])
async def test_the_write_of_a_census_may_be_cut(home: ItemHome, where: str) -> None:
    """It is taken all the same, and what was added is added once."""
    await ItemCensus(home.ledger).take()
    await home.put(3)
    writes = iter(range(100))

    def cut(_: int, call: str) -> str | None:
        return where if call in ("transact_write_items", "update_item") and next(writes) == 0 else None

    dynamo = home.ledger.dynamo
    client = CuttingClient(dynamo._client, cut)
    cutting = make_ledger(type(dynamo)(client, dynamo.table), home.ledger.queue, home.clock)
    assert await ItemCensus(cutting).take()
    assert client.cuts == 1
    figures = ItemFigures(dynamo, clock=home.clock)
    assert (await figures.sums([home.ledger.name], home.clock.now()))["added"] == 3


async def test_a_cause_that_nobody_wrote_down_is_found(home: ItemHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill between a settlement and its cause: censuses go through the dead, some at a time, until all are known."""
    monkeypatch.setattr("redrive.operator.aws.census.LISTED_MAX", 2)
    await dead(home, "one", "one", "two", "two", "three")
    figures = ItemFigures(home.ledger.dynamo, clock=home.clock)
    await ItemCensus(home.ledger).take()
    known = await figures.groups([home.ledger.name])
    assert sorted((group.text.split(": ")[-1], group.amount) for group in known) == [
        ("one", 2),
        ("three", 1),
        ("two", 2),
    ]
    for group in known:
        await home.ledger.dynamo.write([delete((cause_partition(home.ledger.name), group.id))])
    for _ in range(3):
        await ItemCensus(home.ledger).take()
    assert await figures.groups([home.ledger.name]) == known


async def test_how_many_there_are_is_one_look_where_there_are_many_users(
    home: ItemHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters of a few users are added up; of more, the census has done so."""
    ids = await home.put(3)
    assert len(await home.ledger.cancel(ids[:2], ADA)) == 2
    await ItemCensus(home.ledger).take()
    exact = await home.ledger.counts()
    assert (exact[State.CANCELLED], exact[State.WAITING]) == (2, 1)
    for number in range(3):
        user = f"user-{number}"
        await home.ledger.dynamo.write([put((f"U#{user}", "U"), {"listing": "users", "listing_at": user})])
    monkeypatch.setattr("redrive.ledgers.aws.reader.USERS_COUNTED_MAX", 2)
    asked = []
    monkeypatch.setattr(type(home.ledger), "counters", lambda *_: asked.append(1))
    assert await home.ledger.counts() == exact
    assert asked == []
