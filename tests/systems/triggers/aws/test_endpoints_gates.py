"""The gates of endpoints on DynamoDB: what they promise on databases, and what people see of them."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.testing import VirtualClock

from ..conftest import House, make_app
from ..receiver import Receiver, status

# The same test, run on this store because it is in this folder.
from ..sql.test_endpoints_gates import test_what_is_parked_is_said  # noqa: F401

LEASE = timedelta(seconds=30)
PROBE = timedelta(seconds=30)


async def test_ten_at_once_without_any_setting(house: House) -> None:
    """Of twelve due deliveries to one endpoint ten are held at once, and another user's delivery is among the first."""
    hanging = await house.endpoint("http://127.0.0.1:9/a")
    quick = await house.endpoint("http://127.0.0.1:9/b", user="bob")
    for _ in range(12):
        await house.post()
    await house.post(user="bob")
    ledger = await house.triggers.lane.ledger()
    claims = [claim for _ in range(3) for claim in await ledger.claim(20, LEASE)]
    assert Counter(claim.task.gate for claim in claims) == {hanging.id: 10, quick.id: 1}


async def test_what_is_parked_is_queued(house: House, receiver: Receiver) -> None:
    """An event that a gate keeps back is `queued`, though it was never tried, from the write that parks it on."""
    receiver.answer = lambda _: status(503)
    await house.endpoint(receiver.url)
    ids = [await house.post() for _ in range(14)]
    for _ in range(3):
        await house.run()
    assert len(receiver.received) < len(ids)
    assert {(await house.event(id_)).status for id_ in ids} == {"queued"}
    totals = await house.triggers.inbox.totals()
    assert (totals["queued"], totals["received"]) == (len(ids), 0)
    receiver.answer = lambda _: status(200)
    for _ in range(10):
        await house.run(after=timedelta(seconds=30))
    assert {(await house.event(id_)).status for id_ in ids} == {"delivered"}


async def test_an_outage_fails_no_event(house: House, receiver: Receiver) -> None:
    """Ten failures, then one try every probe, while twelve events wait and none fails; then all of them are delivered."""
    receiver.answer = lambda _: status(503)
    endpoint = await house.endpoint(receiver.url)
    ids = [await house.post() for _ in range(12)]
    await house.run()
    tried = len(receiver.received)
    assert tried >= 10
    for probes in range(1, 4):
        await house.run(after=PROBE)
        assert len(receiver.received) <= tried + probes
    ledger: Any = await house.triggers.lane.ledger()
    found = await ledger.gate(endpoint.id)
    assert found is not None
    assert found[0].state == "tripped"
    assert {(await house.event(id_)).status for id_ in ids} <= {"received", "queued"}
    receiver.answer = lambda _: status(200)
    for _ in range(12):
        await house.run(after=timedelta(minutes=1))
    assert {(await house.event(id_)).status for id_ in ids} == {"delivered"}


async def test_what_is_parked_fails_when_its_endpoint_is_disabled(house: House) -> None:
    """No event waits for ever behind an endpoint that is switched off."""
    endpoint = await house.endpoint("http://127.0.0.1:9/a")
    ledger: Any = await house.triggers.lane.ledger()
    await house.triggers.lane.pause_gate(endpoint.id, actor="olga", reason="it moves")
    ids = [await house.post() for _ in range(3)]
    await house.run()
    assert {(await house.event(id_)).status for id_ in ids} == {"queued"}
    await house.triggers.desk.disable([endpoint.id], actor="olga", reason="it is gone")
    await house.triggers.lane.resume_gate(endpoint.id, actor="olga", reason="it is gone")
    await house.run()
    assert {(await house.event(id_)).status for id_ in ids} == {"failed"}
    assert await ledger.next_due() is None or await ledger.next_due() > timedelta(0)


async def test_people_see_and_change_gates(house: House) -> None:
    """By the API, on the page and in the metrics; what is not built is refused with its remedy, and acts are in the audit log."""
    endpoint = await house.endpoint("http://127.0.0.1:9/a")
    await house.post()
    ledger, name = "trigger_deliveries", endpoint.id
    await house.service.open()
    async with house.client(await house.key("operator", user="olga")) as client:
        paused = await client.post("/api/gates/pause", json={"ledger": ledger, "gate": name, "reason": "it moves"})
        assert (paused.status_code, paused.json().get("changed")) == (200, True), paused.text
        await house.run()
        seen = (await client.get(f"/api/gates/{ledger}/{name}")).json()
        assert (seen["does"], seen["parked"], seen["paused_by"]) == ("paused", 1, "olga")
        assert seen["limits"]["concurrency"] == 10
        listed = (await client.get("/api/gates")).json()
        assert [gate["name"] for gate in listed["gates"]] == [name]
        assert name in (await client.get("/gates")).text
        refused = await client.post(
            "/api/gates/set", json={"ledger": ledger, "gate": name, "rate": "5/s", "reason": "slow"}
        )
        assert refused.status_code in (400, 422)
        assert "no rate and no budget" in refused.text
        fewer = {"ledger": ledger, "gate": name, "concurrency": 2, "reason": "slow", "version": seen["version"]}
        assert (await client.post("/api/gates/set", json=fewer)).json()["changed"]
        assert (await client.post("/api/gates/set", json=fewer | {"concurrency": 3})).status_code == 409
        gates = {"ledger": ledger, "gate": name, "reason": "it is back"}
        assert (await client.post("/api/gates/resume", json=gates)).json()["changed"]
        audit = (await client.get("/api/audit")).text
        assert all(f"gate {act}" in audit for act in ("paused", "resumed", "limits set"))


async def test_a_rate_is_refused_at_the_start(url: str, clock: VirtualClock) -> None:
    """Set and unusable is an error, and not ignored in silence."""
    with pytest.raises(SettingsError, match="ENDPOINT_RATE is not for events in DynamoDB: set ENDPOINT_CONCURRENCY"):
        make_app(url, clock, endpoint_rate="5/s")
