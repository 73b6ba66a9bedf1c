"""Each endpoint has a gate: one that hangs or is down costs its owner, and nobody else."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event

from redrive import Filter, State
from redrive.errors import SettingsError
from redrive.ports import Actor
from redrive.settings import load
from redrive.systems.triggers import TriggerSettings
from redrive.systems.triggers.values import NewEvent
from redrive.testing import VirtualClock

from ..conftest import House, make_app
from ..receiver import Receiver, status

LEASE = timedelta(seconds=30)
PROBE = timedelta(seconds=30)
BASE = "/api/triggers/endpoints"


async def gate_of(house: House, endpoint: Any) -> Any:
    ledger: Any = await house.triggers.lane.ledger()
    found = await ledger.gate(endpoint.id)
    assert found is not None
    return found[0]


async def test_a_hanging_endpoint_takes_ten_slots_and_no_more(house: House) -> None:
    """Without any setting: of thirty due deliveries to one endpoint ten are held at once, and another user's delivery is among the first."""
    hanging = await house.endpoint("http://127.0.0.1:9/a")
    quick = await house.endpoint("http://127.0.0.1:9/b", user="bob")
    for _ in range(30):
        await house.post()
    await house.post(user="bob")
    ledger = await house.triggers.lane.ledger()
    claims = [claim for _ in range(5) for claim in await ledger.claim(20, LEASE)]
    assert Counter(claim.task.gate for claim in claims) == {hanging.id: 10, quick.id: 1}
    assert quick.id in [claim.task.gate for claim in claims[:20]]
    assert {claim.task.tenant for claim in claims} == {"ada", "bob"}
    assert all(claim.task.payload["endpoint_id"] == claim.task.gate for claim in claims)


@pytest.mark.long_on("postgres")
async def test_an_outage_fails_no_event(house: House, receiver: Receiver) -> None:
    """Ten minutes of 503: ten tries and one every probe, while fifty events wait and none fails; then all of them are delivered."""
    receiver.answer = lambda _: status(503)
    endpoint = await house.endpoint(receiver.url)
    ids = [await house.post() for _ in range(50)]
    await house.run()
    assert len(receiver.received) == 10
    for probes in range(1, 21):
        await house.run(after=PROBE)
        assert len(receiver.received) <= 10 + probes
    assert len(receiver.received) >= 25
    assert (await gate_of(house, endpoint)).state == "tripped"
    assert {(await house.event(id_)).status for id_ in ids} <= {"received", "queued"}
    receiver.answer = lambda _: status(200)
    for _ in range(40):
        await house.run(after=timedelta(seconds=30))
    events = [await house.event(id_) for id_ in ids]
    assert {event.status for event in events} == {"delivered"}
    assert (await gate_of(house, endpoint)).state == "flowing"


async def test_what_is_parked_is_said(house: House, receiver: Receiver) -> None:
    """Behind a gate that holds, the next try of an event is not before the gate's next look; people see since when and until when."""
    receiver.answer = lambda _: status(503)
    endpoint = await house.endpoint(receiver.url)
    ids = [await house.post() for _ in range(12)]
    await house.run()
    await house.run(after=timedelta(seconds=61))  # the tries are due again, and one of them was the probe
    gate = await gate_of(house, endpoint)
    assert gate.state == "tripped"
    due = [await house.event(id_) for id_ in ids]
    overdue = next(event for event in due if event.next_retry_at and event.next_retry_at <= house.clock.now())
    async with house.client(await house.key()) as client:
        said = (await client.get(f"/v1/events/{overdue.id}/status")).json()
        whole = (await client.get(f"/v1/events/{overdue.id}")).json()
    assert (
        said["next_retry_at"]
        == whole["next_retry_at"]
        == gate.wake_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
    async with house.client(await house.key("operator", user="olga")) as client:
        [seen] = (await client.get(BASE)).json()["endpoints"]
    assert (seen["state"], seen["held"]["state"], seen["held"]["reason"]) == (
        "failing", "holding", "its deliveries failed",
    )  # fmt: skip
    assert seen["held"]["since"] < seen["held"]["next_at"]
    waiting = sum(task.due_at is None or task.due_at <= house.clock.now() for task in await _open(house))
    assert seen["held"]["waiting"] == waiting > 1
    well = await house.endpoint("http://127.0.0.1:9/")
    async with house.client(await house.key()) as client:
        mine = {one["endpoint_id"]: one for one in (await client.get("/v1/endpoints")).json()["endpoints"]}
        one = (await client.get(f"/v1/endpoints/{endpoint.id}")).json()
        changed = (await client.patch(f"/v1/endpoints/{endpoint.id}", json={"description": "the shop"})).json()
    assert mine[endpoint.id]["held"] == one["held"] == changed["held"] == seen["held"], "its owner sees it, too"
    assert mine[well.id]["held"] is None


async def _open(house: House) -> list[Any]:
    return list((await house.triggers.lane.find(Filter(state=State.WAITING), limit=100)).items)


@pytest.mark.long_on("postgres")
async def test_what_is_parked_is_queued(house: House, receiver: Receiver) -> None:
    """An event that a gate keeps back is `queued`, though it was never tried: one that comes while the gate holds at once, and one that
    was there before with the next look. Its next try is the gate's next look; where nothing is held, nobody looks."""
    receiver.answer = lambda _: status(503)
    endpoint = await house.endpoint(receiver.url)
    other = await house.endpoint("http://127.0.0.1:9/", user="bob")
    before = [await house.post() for _ in range(30)]
    await house.run()
    gate = await gate_of(house, endpoint)
    assert gate.state == "tripped"
    untried = [id_ for id_ in before if (await house.event(id_)).status == "received"]
    assert len(untried) == 20
    [taken] = await house.triggers.intake.take(
        [NewEvent(user_id="ada", event_type="a", payload="1", correlation_id="c-1")]
    )
    free = await house.post(user="bob")
    await house.triggers.stores.queue_parked()
    await house.triggers.stores.queue_parked()
    assert (taken.status, (await house.event(free, "bob")).status) == ("queued", "received")
    totals = await house.triggers.inbox.totals()
    assert (totals["queued"], totals["received"]) == (31, 1)
    async with house.client(await house.key()) as client:
        for id_ in (taken.id, untried[-1]):
            said = (await client.get(f"/v1/events/{id_}/status")).json()
            at = gate.wake_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
            assert (said["status"], said["retry_attempts"], said["next_retry_at"]) == ("queued", 0, at)
    receiver.answer = lambda _: status(200)
    assert await house.triggers.endpoints.delete("bob", other.id)
    for _ in range(40):
        await house.run(after=timedelta(seconds=30))
    assert {(await house.event(id_)).status for id_ in (*before, taken.id)} == {"delivered"}
    totals = await house.triggers.inbox.totals()
    assert (totals["queued"], totals["delivered"]) == (0, 31)


@pytest.mark.long_on("sqlite")
async def test_what_is_parked_fails_when_its_endpoint_is_disabled(house: House, receiver: Receiver) -> None:
    """No event waits for ever behind an endpoint that is switched off."""
    receiver.answer = lambda _: status(503)
    endpoint = await house.endpoint(receiver.url)
    ids = [await house.post() for _ in range(30)]
    await house.run()
    assert (await gate_of(house, endpoint)).state == "tripped"
    await house.triggers.desk.disable([endpoint.id], actor="olga", reason="it is gone")
    for _ in range(30):
        await house.run(after=timedelta(seconds=30))
    assert {(await house.event(id_)).status for id_ in ids} == {"failed"}
    assert len(receiver.received) == 10


async def test_an_endpoint_that_is_deleted_leaves_no_gate(house: House) -> None:
    """Whether or not its gate was paused; what waited for it is cancelled."""
    ledger: Any = await house.triggers.lane.ledger()
    for pause in (False, True):
        endpoint = await house.endpoint("http://127.0.0.1:9/")
        await house.post()
        assert not pause or await ledger.pause_gate(endpoint.id, Actor(name="olga", reason="it moves"))
        assert await ledger.gate(endpoint.id) is not None
        assert await house.triggers.endpoints.delete("ada", endpoint.id)
        assert await ledger.gate(endpoint.id) is None


async def test_limits_can_be_set(url: str, clock: VirtualClock) -> None:
    """The settings are the limits of each endpoint; without any, as many go there as there are slots."""
    for given, most in (({"endpoint_concurrency": 3}, 3), ({"endpoint_concurrency": 0}, 20)):
        app, triggers = make_app(url, clock, **given)
        async with app:
            house = House(app, triggers, clock)
            endpoint = await house.endpoint("http://127.0.0.1:9/")
            for _ in range(20):
                await house.post()
            claims = await (await triggers.lane.ledger()).claim(50, LEASE)
            assert sum(claim.task.gate == endpoint.id for claim in claims) == most
            assert await triggers.endpoints.delete("ada", endpoint.id)


def test_limits_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate must say of which span."""
    monkeypatch.setenv("ENDPOINT_RATE", "fast")
    with pytest.raises(SettingsError, match="ENDPOINT_RATE"):
        load(TriggerSettings)


async def test_deliveries_have_a_quota(url: str, clock: VirtualClock) -> None:
    """Fan-out counts: a user whose events have made as many deliveries as a minute has is refused with the remedy, and nobody else is."""
    app, triggers = make_app(url, clock, deliveries_per_minute=100)
    async with app:
        house = House(app, triggers, clock)
        for number in range(20):
            await house.endpoint(f"http://127.0.0.1:9/{number}")
        ada, bob = await house.key(), await house.key(user="bob")
        answers = []
        async with house.client(ada) as client, house.client(bob) as other:
            body = {"event_type": "a", "payload": 1}
            for number in range(6):
                answers.append(await client.post("/v1/events", json=body, headers={"Idempotency-Key": str(number)}))
            assert (await other.post("/v1/events", json=body)).status_code == 201
            batch = await client.post("/v1/events/batch", json={"events": [body]})
            house.clock.advance(timedelta(minutes=1))
            again = await client.post("/v1/events", json=body)
    assert [answer.status_code for answer in answers] == [201] * 5 + [429]
    refused = answers[-1].json()["error"]
    assert (refused["code"], answers[-1].headers["Retry-After"]) == ("RATE_LIMIT_EXCEEDED", "60")
    assert "fewer endpoints" in refused["message"]
    assert "DELIVERIES_PER_MINUTE" in refused["message"]
    assert (batch.status_code, again.status_code) == (429, 201)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_gates_are_locked_before_counters(house: House, receiver: Receiver) -> None:
    """By whoever takes in, settles or brings back: in two orders they would wait for each other in a circle."""
    orders = list[list[str]]()

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        written = connection.info.setdefault("written", [])
        # PostgreSQL settles tasks and their gates in one statement, which comes before what is written beside.
        tables = [
            name for name in ("redrive_gate", "trigger_counts") if f"{name} " in statement and "rule" not in statement
        ]
        written += [name for name in tables if not statement.lstrip().startswith("SELECT") or "FOR UPDATE" in statement]

    def ended(connection: Any) -> None:
        orders.append(connection.info.pop("written", []))

    receiver.answer = lambda _: status(404)
    await house.endpoint(receiver.url)
    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "commit", ended)
    try:
        id_ = await house.post()
        await house.run()
        await house.redrive(id_)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        event.remove(Engine, "commit", ended)
    both = [order for order in orders if len(set(order)) == 2]
    assert len(both) >= 2
    for order in both:
        assert order == sorted(order), "gates first"
