"""Minutes over items: folded once, whoever folds and whatever is cut, and read whole while somebody folds."""

import asyncio
from typing import Any

import pytest

from redrive.core.durations import days, hours, minutes
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.history import minute_action
from redrive.operator.aws.minutes import ItemMinutes
from tests.kept import Kept
from tests.kept import kept_in_items as kept_in_items
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.homes import START


async def count(kept: Kept, ledger: str = "mail", worker: str = "w", shard: int = 0, **amounts: float) -> None:
    """What a worker adds to the present minute."""
    assert kept.dynamo is not None
    minute = kept.clock.now().replace(second=0, microsecond=0)
    await kept.dynamo.write([minute_action(minute, shard, ledger, worker, amounts)])


def cut(kept: Kept, client: Any) -> ItemMinutes:
    assert kept.dynamo is not None
    return ItemMinutes(Dynamo(client, kept.dynamo.table), clock=kept.clock)


async def test_of_two_who_fold_at_once_each_minute_is_added_once(kept_in_items: Kept):
    """And what was counted in one ledger is not in the numbers of another."""
    kept = kept_in_items
    for place in range(6):
        await count(kept, worker=f"w{place}", shard=place, done=1, run_seconds=0.5)
    await count(kept, "print", done=7)
    kept.clock.advance(minutes(30))
    folded = await asyncio.gather(*(kept.figures.fold(kept.clock.now()) for _ in range(3)))
    assert sum(folded) == 7
    assert (await kept.figures.sums(["mail"], START))["done"] == 6
    assert (await kept.figures.sums(["mail"], START))["run_seconds"] == 3
    assert (await kept.figures.sums(["mail", "print"], START))["done"] == 13
    assert await kept.figures.ledgers() == ["mail", "print"]


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_fold_may_be_cut(kept_in_items: Kept, where: str):
    """Each of its calls: nothing is lost and nothing is added twice, and the next fold finds nothing left."""
    kept = kept_in_items
    assert kept.dynamo is not None
    for number in range(4):
        await count(kept, done=1)
        kept.clock.advance(minutes(30))
        client = CuttingClient(kept.dynamo._client, lambda at, _, number=number: where if at == number else None)
        await cut(kept, client).fold(kept.clock.now())
        assert (await kept.figures.sums(["mail"], START))["done"] == number + 1
        assert await kept.figures.fold(kept.clock.now()) == 0


async def test_what_is_added_while_it_is_folded_is_not_lost(kept_in_items: Kept):
    """A minute that has changed since it was read is folded another time."""
    kept = kept_in_items
    assert kept.dynamo is not None
    await count(kept, done=1)
    late = kept.clock.now()

    class Late(CuttingClient):
        """Somebody adds to the minute just before it is folded."""

        def __getattr__(self, call: str) -> Any:
            send = super().__getattr__(call)

            async def asked(**request: Any) -> Any:
                if call == "transact_write_items":
                    await kept.dynamo.write([minute_action(late, 0, "mail", "w", {"done": 1})])  # type: ignore[union-attr]
                return await send(**request)

            return asked

    kept.clock.advance(minutes(30))
    assert await cut(kept, Late(kept.dynamo._client)).fold(kept.clock.now()) == 0
    assert (await kept.figures.sums(["mail"], START))["done"] == 2
    assert await kept.figures.fold(kept.clock.now()) == 1
    assert (await kept.figures.sums(["mail"], START))["done"] == 2


async def test_a_range_begins_where_it_is_asked_for(kept_in_items: Kept):
    """To the minute where minutes are still known, whether folded or not; to the hour where that is long ago."""
    kept = kept_in_items
    for _ in range(3):
        await count(kept, done=1)
        kept.clock.advance(minutes(40))
    figures = kept.figures
    for fold in (False, True):
        if fold:
            await figures.fold(kept.clock.now())
        assert (await figures.sums(["mail"], START + minutes(1)))["done"] == 2
        assert (await figures.sums(["mail"], START + minutes(40)))["done"] == 2
        assert (await figures.sums(["mail"], START + minutes(41)))["done"] == 1
        assert [point.start for point in await figures.series(["mail"], START, minutes(30))] == [
            START, START + minutes(30), START + minutes(60),
        ]  # fmt: skip
    kept.clock.advance(days(60))
    await count(kept, done=5)
    assert [point.sums["done"] for point in await figures.series(["mail"], START, minutes(30))] == [2, 1, 5]
    assert (await figures.sums(["mail"], START + hours(1)))["done"] == 6
    kept.clock.advance(days(345))  # nobody is shown more than four hundred days
    assert (await figures.sums(["mail"], START))["done"] == 5
