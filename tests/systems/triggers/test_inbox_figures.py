"""What people see counted of triggers are events, also those without a delivery."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select

from redrive.alerting import Watch
from redrive.core.states import State
from redrive.ledgers.sql import schema
from redrive.operator.bookkeeper import Bookkeeper
from redrive.operator.census_pace import rest_after
from redrive.settings import Settings
from redrive.systems.triggers.inbox import WORDS, amounts
from redrive.systems.triggers.status import STATUSES

from .conftest import House
from .receiver import Receiver, status


async def overview(house: House, path: str = "overview") -> Any:
    """What the dashboard is drawn from."""
    house.service.is_open = True
    await house.triggers.stores.flushed()
    async with house.client(await house.key("viewer")) as client:
        answer = await client.get(f"/api/{path}", params={"ledger": "trigger_deliveries"})
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is asked of the database."""
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_events_without_an_endpoint_are_seen(house: House) -> None:
    """Received and acknowledged ones have no delivery, and are in every figure all the same."""
    ids = [await house.post() for _ in range(6)]
    house.clock.advance(timedelta(seconds=2))
    for id_ in ids[:4]:
        await house.triggers.inbox.acknowledge("ada", id_)
    seen = await overview(house)
    assert (seen["of"], seen["words"]) == ("events", {state.value: word for state, word in WORDS.items()})
    assert seen["states"] == {"waiting": 2, "claimed": 0, "done": 4, "dead": 0, "cancelled": 0}
    assert (seen["success_rate"], seen["tries"][0]) == (1.0, {"tries": "1", "amount": 4})
    assert 1 <= seen["took"]["p50"] <= 3
    flow = (await overview(house, "series"))["points"]
    assert (sum(one["added"] for one in flow), sum(one["done"] for one in flow)) == (6, 4)


async def test_an_event_counts_once_however_many_deliveries_it_has(house: House, receiver: Receiver) -> None:
    """Two endpoints, one of which fails: each event that it wants has failed, once, and the others are delivered."""
    receiver.answer = lambda got: status(404 if got.path == "/bad" else 200)
    base = receiver.url.removesuffix("/hook")
    await house.endpoint(f"{base}/good")
    await house.endpoint(f"{base}/bad", "bad")
    for event_type in ("good", "bad", "good"):
        await house.post(event_type)
    await house.run()
    seen = await overview(house)
    assert seen["states"] == {"waiting": 0, "claimed": 0, "done": 2, "dead": 1, "cancelled": 0}
    assert seen["success_rate"] == 2 / 3
    flow = (await overview(house, "series"))["points"]
    assert [sum(one[name] for one in flow) for name in ("added", "done", "dead")] == [3, 2, 1]


@pytest.mark.on_sql
async def test_of_all_ledgers_together_events_are_counted_too(house: House) -> None:
    """The sum of the ledgers' rows is what the tiles say."""
    await house.post()
    await house.app.add("mail")
    house.service.is_open = True
    async with house.client(await house.key("viewer")) as client:
        seen = (await client.get("/api/overview")).json()
    assert seen["of"] == "tasks"
    rows = {one["ledger"]: one for one in seen["by_ledger"]}
    assert rows["trigger_deliveries"]["states"]["waiting"] == 1
    assert seen["states"]["waiting"] == sum(one["states"]["waiting"] for one in rows.values())


@pytest.mark.on_sql
async def test_the_statuses_are_counted_by_one_statement(house: House) -> None:
    """So they add up at any instant, however much happens meanwhile."""
    assert set(WORDS.values()) == set(STATUSES)
    await house.post()
    with statements() as said:
        assert amounts(await house.triggers.inbox.totals())[State.WAITING] == 1
    assert len(said) == 1


@pytest.mark.parametrize("store", ["postgres"])
@pytest.mark.on_sql
async def test_figures_cost_no_statement_of_their_own(house: House, receiver: Receiver) -> None:
    """What comes and ends is counted for the charts in the statement that counts it for its user."""
    await house.endpoint(receiver.url)
    with statements() as said:
        id_ = await house.post()
        await house.run()
    assert (await house.event(id_)).status == "delivered"
    counting = [one for one in said if "INSERT INTO trigger_counts" in one]
    assert ["INSERT INTO redrive_minute" in one for one in counting] == [True, False, True]
    assert len([one for one in said if "INSERT INTO redrive_minute" in one]) == 3  # and the settlement itself


@pytest.mark.on_sql
async def test_depths_are_of_events(house: House) -> None:
    """Each census of the deliveries writes down how many events there are."""
    await house.post()
    ledger = await house.triggers.lane.ledger()

    async def ledgers() -> list[Any]:
        return [(ledger, house.triggers.lane.headcount)]

    assert await Bookkeeper(house.app.store, ledgers).round() == 1
    s = schema.sample
    kept = await house.app.database.read(
        lambda connection: connection.execute(
            select(s.c.waiting).where(s.c.ledger == house.triggers.lane.counted_as)
        ).scalar_one()
    )
    assert kept == 1
    assert (await overview(house, "series"))["depth"][-1]["waiting"] == 1


async def alarms(house: House) -> list[str]:
    """The texts of what is wrong, of the share of what failed."""
    await house.triggers.stores.flushed()
    watch = Watch(house.app, Settings(_env_file=None))
    found, problem = await watch._alarms()
    assert problem is None
    return [alarm.text for alarm in found if alarm.rule == "failed_share"]


@pytest.mark.long_on("sqlite")
async def test_a_failed_try_is_no_failed_event(house: House, receiver: Receiver) -> None:
    """All are delivered at the second try: nobody is called. All fail for good: somebody is, and hears of events."""
    answers = {"again": 500, "never": 404}
    receiver.answer = lambda got: status(answers.get(got.json["type"].partition(".")[0], 200))
    await house.endpoint(receiver.url, "never")
    for number in range(5):  # so few for each that none of them is held
        await house.endpoint(receiver.url, f"again.{number}")
        for _ in range(6):
            await house.post(f"again.{number}")
    await house.run()
    answers.clear()
    await house.run(after=timedelta(minutes=1))
    assert await alarms(house) == []
    answers["never"] = 404
    for _ in range(10):
        await house.post("never")
    await house.run()
    assert await alarms(house) == ["trigger_deliveries: 25% of 40 events that ended in 5m failed (limit 5%)"]


async def test_totals_are_never_long_behind(house: House) -> None:
    """A look five minutes later sees what was taken in meanwhile, however long it takes to add up."""
    inbox: Any = house.triggers.inbox
    if not house.app.store.keeps_tasks:
        inbox._census._rest = rest_after
    for amount in (0, 1, 2):
        assert (await inbox.totals()).get("received", 0) == amount
        await house.post()
        house.clock.advance(timedelta(minutes=5))
