"""Every call of the stores cut before and after its effect: asked again, it comes to the same as without the cut."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive.items import delete as delete_item
from redrive.systems.triggers.values import NewEvent
from tests.ledgers.aws.cutting import CutPlaces, CuttingClient

from ..conftest import House

LIVES = 3
"""Over how many runs the cuts are dealt: each call is cut in one of them."""


async def take(house: House, user: str) -> object:
    new = NewEvent(user_id=user, event_type="order.made", payload="1", correlation_id="c", idempotency_key="k")
    [first], [second] = await house.triggers.intake.take([new]), await house.triggers.intake.take([new])
    return first.new, second.new, first.id == second.id, await counters(house, user)  # type: ignore[union-attr]


async def acknowledge(house: House, user: str) -> object:
    id_ = await house.post(user=user)
    return await house.triggers.inbox.acknowledge(user, id_), await counters(house, user)


async def delete(house: House, user: str) -> object:
    id_ = await house.post(user=user)
    return await house.triggers.inbox.delete(user, id_), await house.event(id_, user), await counters(house, user)


async def endpoint(house: House, user: str) -> object:
    made = await house.endpoint("http://127.0.0.1:9/", user=user)
    changed = await house.triggers.endpoints.change(user, made.id, {"description": "new"}, rotate=False)
    switched = await house.triggers.stores.book.switch([made.id], enabled=False, actor="grace", reason="r")
    told = [one.message for one in await house.triggers.endpoints.notices(user)]
    gone = await house.triggers.endpoints.delete(user, made.id)
    return changed is not None, len(switched.changed), told, gone, await house.triggers.endpoints.of_user(user)


async def health(house: House, user: str) -> object:
    """An endpoint fails, is noted, and is switched off once."""
    made = await house.endpoint("http://127.0.0.1:9/", user=user)
    await house.triggers.endpoints.note(made, delivered=False)
    off = [await house.triggers.endpoints.disable(made, "it is gone") for _ in range(2)]
    told = [one.message for one in await house.triggers.endpoints.notices(user)]
    [now] = await house.triggers.endpoints.of_user(user)
    return off, told, now.enabled, now.failing_since is not None


async def filters(house: House, user: str) -> object:
    """Every way of looking into the inbox."""
    await house.endpoint("http://127.0.0.1:9/", "never", user=user)
    rare, _ = await house.post("rare", user=user), await house.post("other", user=user)
    inbox = house.triggers.inbox
    page = await inbox.page(user, "received", event_type="rare", after=None, limit=5)
    failed = await inbox.failed(user, event_type="rare", endpoint_id=None, since=None, until=None, limit=5)
    tries = await inbox.attempts(user, event_id=rare), await inbox.attempts(user, endpoint_id="none")
    dead = await inbox.dead_deliveries(user, rare)
    return [event.id == rare for event in page.events], failed, tries, dead


async def limit(house: House, user: str) -> object:
    """What was given out is counted at least once; where an answer is lost, twice."""
    return 5 <= await house.triggers.stores.limits.add(user, 1, 5) <= 10


async def cursor_secret(house: House, _user: str) -> object:
    """Whoever needs it first makes it, and everybody has the same."""
    items: Any = house.app.store
    await items.dynamo.write([delete_item(("S#cursor", "S"))])
    return len({await house.triggers.stores.cursor_secret.read() for _ in range(3)})


async def counters(house: House, user: str) -> dict[str, int]:
    ledger: Any = await house.triggers.lane.ledger()
    return {name: amount for name, amount in (await ledger.counters(user)).items() if amount}


ACTS = [take, acknowledge, delete, endpoint, health, filters, limit, cursor_secret]


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("act", ACTS)
async def test_a_cut_call_changes_nothing(
    house: House, act: Callable[[House, str], Awaitable[object]], where: str
) -> None:
    """Each call of each act, in one run or another, each run with a user of its own."""
    items: Any = house.app.store
    plain = items.dynamo._client

    async def run(user: str, cuts: CutPlaces) -> object:
        items.dynamo._client = CuttingClient(plain, cuts)
        done = await act(house, user)
        await house.triggers.stores.flushed()
        return done

    whole = CutPlaces({})
    wanted, cut = await run("ada", whole), 0
    for number in range(LIVES):
        cuts = CutPlaces(dict.fromkeys(whole.places[number::LIVES], where))
        planned = len(cuts.left)
        assert await run(f"user {number}", cuts) == wanted, number
        cut += planned - len(cuts.left)
    assert (
        cut > len(whole.places) // 2
    )  # points of charts are written in the background: how many calls they take is chance
