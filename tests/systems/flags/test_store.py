"""Changing flags by hand: one commit with its line in the audit log, one by one or by ids."""

import pytest

from .conftest import MINUTE, Api, Home, act, deeds, execute


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
    done = [deed for deed in await deeds(home) if deed[0] == "feature_flags"]  # not the making of keys
    assert [(act, reason) for _, _, act, _, reason in done] == [
        ("create", "enabled = true, rollout_percentage = 10"),
        ("change", described),
        ("override", "include u-1: she asked"),
        ("override", "exclude u-2"),
        ("remove override", "u-1"),
        ("delete", "it had enabled = true, rollout_percentage = 10"),
    ]
    assert {one[:2] + one[3:4] for one in done} == {("feature_flags", "production/promo", "ada")}


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
