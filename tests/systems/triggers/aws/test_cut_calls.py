"""Every call of the stores cut before and after its effect: asked again, it comes to the same as without the cut."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive.systems.triggers.values import NewEvent
from tests.ledgers.aws.cutting import CuttingClient

from ..conftest import House

NEW = NewEvent(user_id="ada", event_type="order.made", payload="1", correlation_id="c", idempotency_key="k")


async def take(house: House) -> object:
    [first], [second] = await house.triggers.intake.take([NEW]), await house.triggers.intake.take([NEW])
    return first.new, second.new, first.id == second.id, await totals(house)  # type: ignore[union-attr]


async def acknowledge(house: House) -> object:
    id_ = await house.post()
    return await house.triggers.inbox.acknowledge("ada", id_), await totals(house)


async def delete(house: House) -> object:
    id_ = await house.post()
    return await house.triggers.inbox.delete("ada", id_), await house.event(id_), await totals(house)


async def endpoint(house: House) -> object:
    made = await house.endpoint("http://127.0.0.1:9/")
    changed = await house.triggers.endpoints.change("ada", made.id, {"description": "new"}, rotate=False)
    switched = await house.triggers.stores.book.switch([made.id], enabled=False, actor="grace", reason="r")
    told = [one.message for one in await house.triggers.endpoints.notices("ada")]
    gone = await house.triggers.endpoints.delete("ada", made.id)
    return changed is not None, len(switched.changed), told, gone, await house.triggers.endpoints.of_user("ada")


async def totals(house: House) -> dict[str, int]:
    return await house.triggers.inbox.totals()


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("act", [take, acknowledge, delete, endpoint])
async def test_a_cut_call_changes_nothing(house: House, act: Callable[[House], Awaitable[object]], where: str) -> None:
    """Each call of each act in turn."""
    items: Any = house.app.store
    counted = CuttingClient(items.dynamo._client)
    plain, items.dynamo._client = items.dynamo._client, counted

    async def run() -> object:
        await house.triggers.stores.flushed()
        await wipe(plain, items.dynamo.table)
        house.triggers.stores.endpoints._users.clear()  # type: ignore[attr-defined]
        return await act(house)

    wanted = await run()
    calls, cuts = counted.calls.total(), 0
    for number in range(calls):
        cutting = CuttingClient(plain, lambda at, _, number=number: where if at == number else None)
        items.dynamo._client = cutting
        assert await run() == wanted, number
        cuts += cutting.cuts
    assert cuts > calls // 2  # points of charts are written in the background: how many calls they take is chance
    await house.triggers.stores.flushed()


async def wipe(client: Any, table: str) -> None:
    """Begin anew; the one place where all is read."""
    raw = client._client
    for item in (await raw.scan(TableName=table))["Items"]:
        await raw.delete_item(TableName=table, Key={name: item[name] for name in ("pk", "sk")})
