"""An endpoint that its failures have disabled calls a person, once; and once more when it is over. On both databases."""

import json
from datetime import timedelta
from typing import Any

import pytest

from redrive.alerting import Watch
from redrive.operator.alerts import QUIET
from redrive.settings import Settings
from redrive.systems.triggers import desk

from .conftest import House
from .receiver import Receiver, status

DAY = timedelta(days=1)


async def look(house: House, watch: Watch, times: int = 3) -> None:
    """Look again and again, long enough for what is over to be told."""
    for _ in range(times):
        await watch.round()
        house.clock.advance(QUIET)


async def test_from_the_first_failure_to_the_end_of_the_alert(house: House, receiver: Receiver) -> None:
    """Five days of failures disable it; the message goes out once, by HTTP; enabled again, that is told, once."""
    async with Receiver() as phone:
        # Only what is told of endpoints; the rules over ledgers have tests of their own.
        address = f"json://127.0.0.1:{phone.port}/"
        quiet = {"alert_depth": 0, "alert_oldest_due": "0s", "alert_failed_percent": 100}
        watch = Watch(house.app, Settings(_env_file=None, alert_urls=address, **quiet))
        receiver.answer = lambda _: status(503)
        endpoint = await house.endpoint(f"{receiver.url}?token=hunter2")
        for _ in range(6):
            await house.post()
            await house.run()
            await look(house, watch, 1)
            house.clock.advance(DAY - QUIET)
        off = await house.triggers.endpoints.get("ada", endpoint.id)
        assert off is not None
        assert off.disabled_at is not None
        await look(house, watch)
        [told] = _about_endpoints(phone)
        at = off.disabled_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert told == (
            f"STARTED triggers: the endpoint {endpoint.id} of ada at 127.0.0.1:{receiver.port} was disabled at {at}: every "
            "delivery has failed for 5 days. No event goes there until it is enabled: see that it answers, enable it and "
            "retry what failed, or keep it disabled if it should stay off: /systems/triggers?state=disabled"
        )
        async with house.client(await house.key("operator")) as client:
            house.service.is_open = True
            [alert] = [one for one in (await client.get("/api/alerts")).json() if one["rule"] == "endpoint_disabled"]
            assert alert["text"] == told.removeprefix("STARTED ")
            body = {"ids": [endpoint.id], "reason": "it answers again"}
            assert (await client.post("/api/triggers/endpoints/enable", json=body)).json()["changed"] == 1
            await look(house, watch)
            assert _about_endpoints(phone)[1:] == [told.replace("STARTED", "ENDED")]
            assert [one for one in (await client.get("/api/alerts")).json() if one["rule"] == "endpoint_disabled"] == []
        assert "hunter2" not in str(phone.received)


def _about_endpoints(phone: Receiver) -> list[str]:
    messages = [json.loads(got.body)["message"] for got in phone.received]
    return [line for message in messages for line in message.splitlines() if "endpoint 0" in line]


@pytest.mark.parametrize("way", ["owner enables", "operator enables", "operator disables", "owner disables", "deleted"])
async def test_what_ends_it(house: House, receiver: Receiver, way: str) -> None:
    """Whoever deals with it: switched on again, switched off by a person because it should stay off, or deleted."""
    receiver.answer = lambda _: status(410)
    endpoint = await house.endpoint(receiver.url)
    await house.post()
    await house.run()
    [alarm] = await house.triggers.alarms()
    assert (alarm.name, alarm.rule) == (f"endpoint_disabled {endpoint.id}", "endpoint_disabled")
    assert "it answered 410 Gone" in alarm.text
    owner, operator = house.triggers.endpoints, house.triggers.desk
    match way:
        case "owner enables" | "owner disables":
            await owner.change("ada", endpoint.id, {"enabled": way == "owner enables"}, rotate=False)
        case "operator enables":
            assert (await operator.enable([endpoint.id], actor="grace", reason="back")).changed == [endpoint.id]
        case "operator disables":
            assert (await operator.disable([endpoint.id], actor="grace", reason="it should stay off")).changed == [
                endpoint.id
            ]
        case _:
            await owner.delete("ada", endpoint.id)
    assert await house.triggers.alarms() == []


async def test_nobody_is_called_for_what_people_switch_off(house: House) -> None:
    """Neither by its owner nor by an operator; and not for one that still fails and is tried."""
    first, second, third = [await house.endpoint("http://127.0.0.1:9/") for _ in range(3)]
    await house.triggers.endpoints.change("ada", first.id, {"enabled": False}, rotate=False)
    await house.triggers.desk.disable([second.id], actor="grace", reason="x")
    await house.triggers.endpoints.note(third, delivered=False)
    assert await house.triggers.alarms() == []


async def test_many_are_a_few_lines(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones by name and the others as a number; one that comes later pushes none of them out."""
    monkeypatch.setattr(desk, "ALARMS_MAX", 3)
    made = [await house.endpoint("http://127.0.0.1:9/", user="x" * 200) for _ in range(6)]
    names: list[Any] = []
    for endpoint in reversed(made):
        house.clock.advance(DAY)
        await house.triggers.endpoints.disable(endpoint, "it answered 410 Gone")
        names.append([alarm.name for alarm in await house.triggers.alarms()])
    by_name = [f"endpoint_disabled {endpoint.id}" for endpoint in reversed(made)]
    rest = "endpoint_disabled and more"
    assert names == [by_name[:1], by_name[:2], by_name[:3], *[[*by_name[:3], rest]] * 3]
    last = (await house.triggers.alarms())[-1].text
    assert last == "triggers: 3 more endpoints were disabled by their failures: see /systems/triggers?state=disabled"
    assert max(len(alarm.text) for alarm in await house.triggers.alarms()) < 600
