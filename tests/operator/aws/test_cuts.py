"""Every call of what is kept in items, cut before and after it had its effect: the answer is the same, and so is what is written."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive.core.durations import minutes
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.table import definition
from redrive.testing import VirtualClock
from tests.kept import Kept, in_items
from tests.kept import kept_in_items as kept_in_items
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.test_ledger import set_faults

CALLS = {f"{call}_item" for call in ("get", "batch_get", "put", "update", "delete")} | {"query", "transact_write_items"}


async def make_and_revoke(kept: Kept) -> Any:
    made = await kept.keys.create("bob", ["viewer"])
    assert await kept.keys.find(made.secret) == made.key
    kept.clock.advance(minutes(1))
    changed = await kept.keys.change(made.key.id, scopes=["operator"])
    assert changed is not None
    kept.clock.advance(minutes(1))
    revoked = await kept.keys.revoke(made.key.id)
    assert revoked is not None
    assert await kept.keys.find(made.secret) is None
    return [key.scopes for key in await kept.keys.list()]


async def make_the_first(kept: Kept) -> Any:
    secret = await kept.keys.ensure_first()
    assert secret is not None
    assert await kept.keys.find(secret) is not None
    await kept.keys.ensure_first("given from outside")
    await kept.keys.ensure_first("and another one")
    return sorted(key.owner for key in await kept.keys.list())


async def take_turns(kept: Kept) -> Any:
    until = await kept.turns.take("chore", minutes(1))
    assert until is not None
    nobody = await kept.turns.take("chore", minutes(1))
    await kept.turns.give_back("chore", until)
    again = await kept.turns.take("chore", minutes(1))
    return until - kept.clock.now(), nobody, again is not None


async def tell_alerts(kept: Kept) -> Any:
    told = []
    for found in ({"a": ("r", "one")}, {"a": ("r", "two")}, {}, {}):
        news = await kept.alerts.note(found)
        told += [[one.name for one in some] for some in (news.started, news.ended)]
        await kept.alerts.told([one.name for one in news.started], [one.name for one in news.ended])
        kept.clock.advance(minutes(5))
    return told, await kept.alerts.known()


@pytest.mark.parametrize("where", [pytest.param("before", marks=pytest.mark.wide), "after"])
@pytest.mark.parametrize("story", [make_and_revoke, make_the_first, take_turns, tell_alerts])
async def test_each_call_may_be_cut(kept_in_items: Kept, story: Callable[[Kept], Awaitable[Any]], where: str):
    """Each of them, one after the other, in a table of its own; and nothing is ever scanned."""
    dynamo = kept_in_items.dynamo
    assert dynamo is not None

    async def told(cut: int | None) -> tuple[Any, CuttingClient]:
        client = CuttingClient(dynamo._client, lambda number, _: where if number == cut else None)
        name = f"{dynamo.table}-{cut}"
        await dynamo._client.create_table(**definition(name))
        kept = in_items(Dynamo(client, name), VirtualClock())
        said = await story(kept)
        deeds = await in_items(Dynamo(dynamo._client, name), kept.clock).audit.page()
        await dynamo._client.delete_table(TableName=name)
        return (said, [one.act for one in deeds.items]), client

    expected, whole = await told(None)
    assert set(whole.calls) <= CALLS
    cuts = 0
    for number in range(whole.calls.total()):
        said, client = await told(number)
        assert said == expected, f"call {number}"
        cuts += client.cuts
    assert cuts  # what was refused had no effect after which it could be cut


@pytest.mark.parametrize("story", [make_and_revoke, make_the_first, take_turns, tell_alerts])
async def test_what_is_busy_is_asked_again(kept_in_items: Kept, aws: str, story: Callable[[Kept], Awaitable[Any]]):
    """Conflicts of transactions and throttled calls change neither the answer nor what is written."""
    dynamo = kept_in_items.dynamo
    assert dynamo is not None
    set_faults(aws, conflicts=0.3, throttles=0.15, seed=7)
    try:
        said = await story(kept_in_items)
    finally:
        set_faults(aws)
    name = f"{dynamo.table}-calm"
    await dynamo._client.create_table(**definition(name))
    assert said == await story(in_items(Dynamo(dynamo._client, name), VirtualClock()))
    await dynamo._client.delete_table(TableName=name)
