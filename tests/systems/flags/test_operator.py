"""What operators do across flags: cancel, retry and switch by ids, with a reason, wherever they do it from."""

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from redrive import Filter, State, UsageError
from redrive.extend import DEEDS
from redrive.systems.flags import NewSchedule

from ..figures import are_counted_soon, take_long_to_count
from .conftest import MINUTE, Api, Home, MakeHome, execute

one_store = pytest.mark.parametrize("store", ["sqlite"])
ACTS = ("schedules/cancel", "schedules/retry", "switch")


async def act(api: Api, path: str, ids: list[Any], reason: str = "the promotion is off", **more: Any) -> Any:
    answer = await api("POST", f"/api/flags/{path}", {"ids": ids, "reason": reason, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def deeds(home: Home) -> list[tuple[str, str, str, str, str]]:
    found = select(DEEDS).order_by(DEEDS.c.id)
    rows = await home.app.database.read(lambda connection: connection.execute(found).all())
    return [(row.ledger, row.task_id, row.act, row.actor, row.reason) for row in rows]


async def test_cancel_some(home: Home, api: Api) -> None:
    """Those that wait are cancelled, for their time or for a retry; of the others it is said why not. Who and why are kept."""
    waiting, applied = await home.plan("one", 10 * MINUTE), await home.plan("two")
    staged = NewSchedule(scheduled_at=home.now + 10 * MINUTE, updates={"enabled": True})
    await home.flags.put("one", environment="staging", actor="ada")
    [other] = await home.flags.schedule("one", staged, actor="ada", environment="staging")
    retrying = await home.plan_broken()
    await home.drain(until=MINUTE)
    ids = [waiting.id, applied.id, other.id, retrying.id, waiting.id, 4711]
    said = await act(api, "schedules/cancel", ids)
    assert said["changed"] == 3
    assert said["refused"] == {
        str(applied.id): f"schedule {applied.id} is applied for good: only one that waits can be cancelled",
        "4711": "there is no schedule 4711",
    }
    for id_ in (waiting.id, other.id, retrying.id):
        row = await home.row(id_)
        assert (row["status"], row["cancelled_by"], row["cancelled_at"]) == ("cancelled", "ada", home.now)
        [entry] = await home.audit(id_, "cancelled")
        assert (entry.actor, entry.details["reason"]) == ("ada", "the promotion is off")
    assert "the disk says no" in (await home.row(retrying.id))["last_error"]
    kept = ("feature_flag_schedules", str(waiting.id), "cancel", "ada", "the promotion is off")
    assert (await deeds(home)).count(kept) == 1
    assert (await act(api, "schedules/cancel", [waiting.id]))["changed"] == 0
    await home.drain()
    assert not (await home.flags.get("one")).enabled


async def test_retry_some(home: Home, api: Api) -> None:
    """Those that failed for good come back with all their retries; of the others it is said why not. Who and why are kept."""
    dead = [await home.plan(f"broken-{number}", max_retries=0) for number in range(2)]
    gone, edited = await home.plan("broken-gone", max_retries=0), await home.plan("broken-edited", max_retries=0)
    retrying, later = await home.plan_broken(), await home.plan("later", 60 * MINUTE)
    await home.drain(until=MINUTE)
    await home.mend()
    await home.flags.delete("broken-gone", actor="ada")
    await home.flags.put("broken-edited", actor="bob", enabled=False)
    said = await act(
        api, "schedules/retry", [later.id, retrying.id, *(one.id for one in dead), gone.id, edited.id, 4711], "mended"
    )
    assert said["changed"] == len(dead)
    why = said["refused"]
    assert set(why) == {str(id_) for id_ in (later.id, retrying.id, gone.id, edited.id, 4711)}
    for schedule, words in ((later, "is waiting"), (retrying, "is waiting"), (gone, "deleted"), (edited, "superseded")):
        assert words in why[str(schedule.id)]
    assert why["4711"] == "there is no schedule 4711"
    [entry] = [one for one in await home.audit(dead[0].id, "retried") if one.actor == "ada"]
    assert (entry.details["byHand"], entry.details["reason"]) == (True, "mended")
    assert "the disk says no" in entry.details["lastError"]
    assert ("feature_flag_schedules", str(dead[0].id), "redrive", "ada", "mended") in await deeds(home)
    await home.run_due()
    assert [(await home.schedule(one.id)).status for one in dead] == ["applied", "applied"]


async def test_switch_some(home: Home, api: Api) -> None:
    """Flags go on or off and keep their percentage; older retries end as superseded, and the audit log says who and why."""
    waits = await home.plan_broken(updates={"enabled": True})
    await home.drain(until=MINUTE)
    await home.mend()
    broken = await home.flags.get("broken")
    on, _ = await home.flags.put("on", actor="ada", enabled=True, rollout_percentage=10)
    assert await home.flags.is_enabled("on")
    said = await act(api, "switch", [on.id, broken.id, 4711], "checkout is down", enabled=False)
    assert said == {
        "changed": 1,
        "refused": {
            "4711": "flag 4711 is not there any more",
            str(broken.id): "'broken' in 'production' is off already",
        },
    }
    now = await home.flags.get("on")
    assert (now.enabled, now.rollout_percentage) == (False, 10)
    assert not await home.flags.is_enabled("on")
    assert (await home.schedule(waits.id)).next_retry_at is not None  # nothing was changed there
    assert (await act(api, "switch", [broken.id], "by hand", enabled=True))["changed"] == 1
    ended = await home.row(waits.id)
    assert (ended["status"], ended["error_message"]) == ("cancelled", "superseded")
    told = await deeds(home)
    assert ("feature_flags", "production/on", "switch off", "ada", "checkout is down") in told
    assert ("feature_flags", "production/broken", "switch on", "ada", "by hand") in told


async def test_every_change_by_hand_is_in_the_audit_log(home: Home, api: Api) -> None:
    """Who created, changed or deleted a flag or an override, and what was set; what was refused or changed nothing is not there."""
    for method, path, body in (
        ("PUT", "promo", {"enabled": True, "rolloutPercentage": 10}),
        ("POST", "promo", {"description": "d" * 1000}),
        ("PUT", "promo", {}),
        ("POST", "promo/users", {"userId": "u-1", "overrideType": "include", "reason": "she asked"}),
        ("POST", "promo/users", {"userId": "u-2", "overrideType": "exclude"}),
        ("DELETE", "promo/users?user_id=u-1", None),
        ("DELETE", "promo/users?user_id=u-1", None),
        ("DELETE", "promo", None),
        ("DELETE", "promo", None),
    ):
        await api.admin(method, path, body)
    described = f'description = "{"d" * 1000}'[:500] + "…"
    assert [(act, reason) for _, _, act, _, reason in await deeds(home)] == [
        ("create", "enabled = true, rollout_percentage = 10"),
        ("change", described),
        ("override", "include u-1: she asked"),
        ("override", "exclude u-2"),
        ("remove override", "u-1"),
        ("delete", "it had enabled = true, rollout_percentage = 10"),
    ]
    assert {one[:2] + one[3:4] for one in await deeds(home)} == {("feature_flags", "production/promo", "ada")}


async def test_a_change_and_its_line_are_one_commit(home: Home) -> None:
    """Where the log cannot be written the flag stays as it is."""
    await home.flags.put("promo", actor="ada", enabled=True)
    await execute(home.app, "ALTER TABLE redrive_deed RENAME TO elsewhere")
    for change in (
        home.flags.put("promo", actor="ada", enabled=False),
        home.flags.delete("promo", actor="ada"),
        home.flags.put_override("promo", "u-1", "exclude", actor="ada"),
    ):
        with pytest.raises(Exception, match="redrive_deed"):
            await change
    assert (await home.flags.get("promo")).enabled
    assert await home.flags.overrides("promo") == []


async def test_whoever_acts_sees_it_in_the_figures(home: Home, api: Api) -> None:
    """They are counted soon, also where counting takes long; what changes nothing hurries nobody."""
    waits, dead = await home.plan("one", 10 * MINUTE), await home.plan_broken(max_retries=0)
    await home.drain(until=MINUTE)
    for path, id_, soon in (
        ("cancel", waits.id, True),
        ("cancel", waits.id, False),
        ("retry", dead.id, True),
        ("retry", dead.id, False),
    ):
        await take_long_to_count(home.flags.lane)
        await act(api, f"schedules/{path}", [id_])
        assert await are_counted_soon(home.flags.lane) is soon, path


async def test_two_at_once_act_once(make_home: MakeHome) -> None:
    """Whoever comes second, from another process, finds nothing left to do; each change is recorded once."""
    home, other = await make_home(), await make_home()
    waiting = [(await home.plan(f"flag-{number}", 10 * MINUTE)).id for number in range(4)]
    dead = [(await home.plan(f"broken-{number}", max_retries=0)).id for number in range(4)]
    await home.break_()
    await home.drain(until=MINUTE)
    flags = [flag.id for flag in await home.flags.all_flags() if flag.flag_key.startswith("flag")]
    await home.mend()
    results = await asyncio.gather(
        home.flags.cancel_all(waiting, actor="ada", reason="a"),
        other.flags.cancel_all(waiting[::-1], actor="bob", reason="b"),
        home.flags.retry_all(dead, actor="ada", reason="a"),
        other.flags.retry_all(dead[::-1], actor="bob", reason="b"),
        home.flags.switch(flags, enabled=True, actor="ada", reason="a"),
        other.flags.switch(flags[::-1], enabled=True, actor="bob", reason="b"),
    )
    for first, second, meant in ((*results[0:2], waiting), (*results[2:4], dead), (*results[4:6], flags)):
        assert sorted(first.changed + second.changed) == sorted(meant)
        assert sorted([*first.refused, *second.refused]) == sorted(meant)
    people = [entry for entry in await home.audit() if entry.actor in ("ada", "bob")]
    assert sorted(one.schedule_id for one in people if one.action == "flag_schedule.cancelled") == waiting
    assert sorted(one.schedule_id for one in people if one.action == "flag_schedule.retried") == dead
    assert len([one for one in await deeds(home) if one[2] == "switch on"]) == len(flags)


async def test_acts_from_elsewhere_are_in_the_books_too(home: Home) -> None:
    """Who cancels or redrives a schedule as a task, on another page or by command, stands in the audit of the flags."""
    waiting, dead = await home.plan("one", 10 * MINUTE), await home.plan_broken(max_retries=0)
    await home.drain(until=MINUTE)
    await home.flags.lane.cancel(Filter(ids=[waiting.id]), actor="bob", reason="not today")
    assert (await home.row(waiting.id))["cancelled_by"] == "bob"
    [entry] = await home.audit(waiting.id, "cancelled")
    assert (entry.actor, entry.details) == ("bob", {"updates": {"enabled": True}, "reason": "not today"})
    with pytest.raises(UsageError, match="not because somebody says so"):
        await home.flags.lane.resolve([dead.id], State.DONE, actor="bob", reason="I did it myself")
    assert (await home.schedule(dead.id)).status == "failed"
    await home.flags.lane.redrive(Filter(ids=[dead.id]), actor="bob", reason="mended")
    [entry] = [one for one in await home.audit(dead.id, "retried") if one.actor == "bob"]
    assert entry.details["reason"] == "mended"
    await home.run_due()
    await home.flags.lane.resolve([dead.id], State.CANCELLED, actor="bob", reason="given up")
    assert ((await home.row(dead.id))["status"], (await home.row(dead.id))["cancelled_by"]) == ("cancelled", "bob")


@one_store
async def test_who_may_look_and_who_may_act(store: str, api: Api) -> None:
    """A viewer looks, an operator acts; from this machine one may look without a key, and nobody acts without one."""
    viewer = await api.service.keys.create("viewer", ["viewer"])
    stranger = await api.service.keys.create("machine", ["events:write"])

    async def status(method: str, path: str, secret: str, body: Any = None) -> int:
        return (await api(method, f"/api/flags/{path}", body, headers={"X-API-Key": secret})).status_code

    assert [await status("GET", "schedules", one.secret) for one in (viewer, stranger)] == [200, 403]
    for path in ACTS:
        body = {"ids": [1], "reason": "why not"}
        assert [await status("POST", path, one, body) for one in ("rdk_wrong", viewer.secret)] == [401, 403]
        assert await status("GET", path, viewer.secret) == 405
        assert (
            await api.client.post(f"/api/flags/{path}", content=b"x" * 70_000, headers={"X-API-Key": ""})
        ).status_code == 401
    async with httpx.AsyncClient(transport=api.client._transport, base_url="http://127.0.0.1") as local:
        assert (await local.get("/api/flags/schedules")).status_code == 200
        assert (
            await local.post("/api/flags/switch", json={"ids": [1], "reason": "x", "enabled": True})
        ).status_code == 401
        away = {"X-Forwarded-For": "203.0.113.7"}
        assert (await local.get("/api/flags/schedules", headers=away)).status_code == 401


@one_store
async def test_what_does_not_fit_is_refused(store: str, api: Api) -> None:
    """Ids and reasons are limited, unknown fields and values named; nothing of it is a fault of ours."""
    good = {"ids": [1], "reason": "because"}
    bad: list[dict[str, Any]] = [
        {}, {"ids": [1]}, {"reason": "because"}, good | {"ids": []}, good | {"ids": list(range(1, 1002))},
        good | {"ids": ["1"]}, good | {"ids": [0]}, good | {"ids": [2**63]}, good | {"ids": [True]}, good | {"reason": "  "},
        good | {"reason": "x" * 501}, good | {"reason": "a\0b"}, good | {"more": 1},
    ]  # fmt: skip
    for path in ACTS:
        on = {"enabled": True} if path == "switch" else {}
        for body in bad:
            answer = await api("POST", f"/api/flags/{path}", body | on)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "VALIDATION_ERROR"), (path, body)
        most = await api("POST", f"/api/flags/{path}", good | on | {"ids": list(range(2**62, 2**62 + 1000))})
        assert len(most.json()["refused"]) == 1000
    for query in (
        "status=dead",
        "limit=0",
        "limit=1001",
        "cursor=1",
        "cursor=1@x",
        "cursor=x@2",
        "cursor=1@nan",
        "flag=%00",
    ):
        answer = await api("GET", f"/api/flags/schedules?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "VALIDATION_ERROR"), query
