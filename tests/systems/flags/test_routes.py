"""The flags over HTTP: keys, bodies, limits, and refusals in their one form."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from redrive.errors import LedgerAwayError

from .conftest import MINUTE, Api, Home

SCHEDULE_FIELDS = [
    "id", "flagKey", "scheduledAt", "status", "updates", "appliedAt", "retryCount", "maxRetries", "nextRetryAt",
    "lastError", "createdBy", "cancelledBy", "cancelledAt", "createdAt", "expiresAt", "backoff", "priority",
]  # fmt: skip
ADMIN = [
    ("GET", ""), ("GET", "/promo"), ("PUT", "/promo"), ("POST", "/promo"), ("DELETE", "/promo"),
    ("GET", "/promo/users"), ("POST", "/promo/users"), ("DELETE", "/promo/users?user_id=u"),
    ("GET", "/promo/schedule"), ("POST", "/promo/schedule"), ("POST", "/promo/schedule/bulk"),
    ("GET", "/promo/schedule/preview?at=2030-01-02T00:00:00Z"), ("DELETE", "/promo/schedule/1"),
    ("GET", "/promo/schedule/1/retries"), ("POST", "/promo/schedule/1/retry"),
]  # fmt: skip


ACTS = ("schedules/cancel", "schedules/retry", "switch")
one_store = pytest.mark.parametrize("store", ["sqlite"])
"""For what does not depend on the database: the tests of the parts run on both."""


def text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def error(response: httpx.Response, status: int, code: str) -> Any:
    """The refusal, which must have the one form of all refusals."""
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    body = response.json()["error"]
    assert set(body) == {"code", "message", "details", "timestamp", "request_id"}
    return body


@pytest.fixture
def planned(home: Home) -> dict[str, Any]:
    """A schedule that can be."""
    return {"scheduledAt": text(home.now + MINUTE), "updates": {"enabled": True}}


@one_store
async def test_admin_needs_an_operator(store: str, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """401 without a key or with a wrong one, 403 without the scope, at every route but those of the configuration."""
    monkeypatch.setattr("redrive.access.wrong_keys.FAILURES_MAX", 10_000)  # so many wrong ones would be told to wait
    viewer = await api.service.keys.create("viewer", ["viewer", "events:write"])
    refused = (("", 401, "UNAUTHORIZED"), ("rdk_wrong", 401, "UNAUTHORIZED"), (viewer.secret, 403, "FORBIDDEN"))
    for method, path in ADMIN:
        body = {} if method in ("PUT", "POST") else None
        for secret, status, code in refused:
            error(await api(method, f"/api/admin/flags{path}", body, headers={"X-API-Key": secret}), status, code)
            for content in (b"{", b"x" * 70_000):
                answer = await api.client.request(
                    method, f"/api/admin/flags{path}", content=content, headers={"X-API-Key": secret}
                )
                error(answer, status, code)
    described = (await api("GET", "/openapi.json")).json()["paths"]
    routes = [(method, path) for path, methods in described.items() if "/api/admin/flags" in path for method in methods]
    assert len(routes) == len(ADMIN), "a route is not tried here"


@one_store
async def test_a_key_is_checked_before_the_body_is_read(store: str, api: Api) -> None:
    """Nobody fills our memory, or learns what a body must look like, without a key."""

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    answer = await api.client.put("/api/admin/flags/promo", content=never(), headers={"X-API-Key": ""})
    error(answer, 401, "UNAUTHORIZED")


@one_store
async def test_a_flag_from_its_making_to_its_end(home: Home, api: Api) -> None:
    """Create, change, look, list, delete."""
    made = await api.admin("PUT", "promo", {"rolloutPercentage": 10, "description": "Christmas"})
    assert made.status_code == 201
    assert made.json() == {
        "id": made.json()["id"], "flagKey": "promo", "environment": "production", "enabled": False,
        "rolloutPercentage": 10, "description": "Christmas", "createdAt": text(home.now), "updatedAt": text(home.now),
    }  # fmt: skip
    home.clock.advance(MINUTE)
    changed = await api.admin("POST", "promo", {"enabled": True})
    assert (changed.status_code, changed.json()["rolloutPercentage"]) == (200, 10)
    assert (changed.json()["enabled"], changed.json()["updatedAt"]) == (True, text(home.now))
    assert (await api.admin("GET", "promo")).json() == changed.json()
    await api.admin("PUT", "promo?environment=staging", {})
    assert [one["flagKey"] for one in (await api("GET", "/api/admin/flags")).json()["flags"]] == ["promo"]
    assert (await api.admin("DELETE", "promo")).status_code == 204
    error(await api.admin("GET", "promo"), 404, "FLAG_NOT_FOUND")
    error(await api.admin("DELETE", "promo"), 404, "FLAG_NOT_FOUND")
    assert (await api.admin("GET", "promo?environment=staging")).status_code == 200


@one_store
async def test_config_is_open_to_all(home: Home, api: Api) -> None:
    """Whether flags are on is told to anybody, and nothing else."""
    await home.flags.put("promo", enabled=True, rollout_percentage=100, actor="ada")
    await home.flags.put("dark", enabled=False, actor="ada")
    await home.flags.put_override("promo", "eve", "exclude", actor="ada")
    open_ = {"headers": {"X-API-Key": ""}}
    assert (await api("GET", "/api/config/flags", **open_)).json() == {"promo": True, "dark": False}
    assert (await api("GET", "/api/config/flags?user_id=eve", **open_)).json() == {"promo": False, "dark": False}
    assert (await api("GET", "/api/config/flags?environment=staging", **open_)).json() == {}
    one = await api("GET", "/api/config/flags/promo?user_id=bob", **open_)
    assert one.json() == {"flagKey": "promo", "environment": "production", "enabled": True}
    assert (await api("GET", "/api/config/flags/nothing", **open_)).json()["enabled"] is False
    error(await api("GET", f"/api/config/flags?user_id={'u' * 201}", **open_), 400, "VALIDATION_ERROR")
    error(await api("GET", "/api/config/flags?user_id=%00", **open_), 400, "VALIDATION_ERROR")


@one_store
async def test_overrides(home: Home, api: Api) -> None:
    """Put, put again, list, take away."""
    error(await api.admin("GET", "promo/users"), 404, "FLAG_NOT_FOUND")
    await api.admin("PUT", "promo", {"enabled": True})
    put = {"userId": "bob", "overrideType": "include", "reason": "tester"}
    made = await api.admin("POST", "promo/users", put)
    assert (made.status_code, made.json()) == (201, {**put, "createdBy": "ada", "createdAt": text(home.now)})
    await api.admin("POST", "promo/users", {"userId": "bob", "overrideType": "exclude"})
    [only] = (await api.admin("GET", "promo/users")).json()["users"]
    assert (only["userId"], only["overrideType"], only["reason"]) == ("bob", "exclude", None)
    assert (await api.admin("DELETE", "promo/users?user_id=bob")).json() == {"removed": True}
    assert (await api.admin("DELETE", "promo/users?user_id=bob")).json() == {"removed": False}
    for bad in ({}, {"userId": "", "overrideType": "include"}, {"userId": "u", "overrideType": "maybe"}):
        error(await api.admin("POST", "promo/users", bad), 400, "VALIDATION_ERROR")


async def test_a_schedule_is_made(home: Home, api: Api, planned: dict[str, Any]) -> None:
    """201 with exactly the promised fields; it is listed, by time, and foreseen."""
    await api.admin("PUT", "promo", {})
    later = {"scheduledAt": text(home.now + 9 * MINUTE), "updates": {"rolloutPercentage": 50}, "maxRetries": 7,
             "expiresAt": text(home.now + 10 * MINUTE)}  # fmt: skip
    second = await api.admin("POST", "promo/schedule", later)
    first = await api.admin("POST", "promo/schedule", planned)
    assert (first.status_code, list(first.json())) == (201, SCHEDULE_FIELDS)
    assert first.json() == {
        **dict.fromkeys(SCHEDULE_FIELDS), "id": first.json()["id"], "flagKey": "promo",
        "scheduledAt": planned["scheduledAt"], "status": "pending", "updates": {"enabled": True}, "retryCount": 0,
        "maxRetries": 3, "createdBy": "ada", "createdAt": text(home.now), "priority": "normal",
    }  # fmt: skip
    assert (second.json()["maxRetries"], second.json()["expiresAt"]) == (7, later["expiresAt"])
    listed = (await api.admin("GET", "promo/schedule")).json()["schedules"]
    assert [one["id"] for one in listed] == [first.json()["id"], second.json()["id"]]

    async def foreseen(after: timedelta) -> Any:
        answer = await api.admin("GET", "promo/schedule/preview", params={"at": text(home.now + after)})
        return answer.json()

    assert (await foreseen(timedelta(0)))["enabled"] is False
    assert (await foreseen(MINUTE)) == {
        "flagKey": "promo", "environment": "production", "at": text(home.now + MINUTE), "enabled": True,
        "rolloutPercentage": 0, "applied": [first.json()["id"]],
    }  # fmt: skip
    last = await foreseen(9 * MINUTE)
    assert (last["enabled"], last["rolloutPercentage"], len(last["applied"])) == (True, 50, 2)
    error(await api.admin("GET", "promo/schedule/preview?at=2020-01-01T00:00:00Z"), 400, "VALIDATION_ERROR")
    error(await api.admin("GET", "promo/schedule/preview"), 400, "VALIDATION_ERROR")
    error(await api.admin("GET", "none/schedule/preview?at=2031-01-01T00:00:00Z"), 404, "FLAG_NOT_FOUND")


WRONG: list[dict[str, Any]] = [
    {"scheduledAt": "2029-12-31T23:59:59Z"},
    {"scheduledAt": "2030-01-01T00:00:00Z"},
    {"scheduledAt": "2099-01-01T00:00:00Z"},
    {"scheduledAt": "2030-01-01T00:01:00"},
    {"scheduledAt": "tomorrow"},
    {"scheduledAt": 1893456061},
    {"scheduledAt": "9999-12-31T23:59:59-23:59"},
    {"scheduledAt": None},
    {"updates": {}},
    {"updates": {"enabled": None}},
    {"updates": {"enabled": "yes"}},
    {"updates": {"rolloutPercentage": 101}},
    {"updates": {"rolloutPercentage": -1}},
    {"updates": {"rolloutPercentage": 12.5}},
    {"updates": {"rolloutPercentage": True}},
    {"updates": {"colour": "red"}},
    {"maxRetries": 11},
    {"maxRetries": -1},
    {"maxRetries": "3"},
    {"maxRetries": True},
    {"expiresAt": "2030-01-01T00:00:30Z"},
    {"expiresAt": "never"},
    {"shceduledAt": "2030-01-01T00:01:00Z"},
]


@one_store
async def test_what_cannot_be_is_a_400(home: Home, api: Api, planned: dict[str, Any]) -> None:
    """A past time, no update, a bad percentage, bad retries and whatever does not fit: named, and nothing is stored."""
    await api.admin("PUT", "promo", {})
    for wrong in WRONG:
        refused = error(await api.admin("POST", "promo/schedule", planned | wrong), 400, "VALIDATION_ERROR")
        [name] = wrong
        assert name in refused["message"], (wrong, refused["message"])
        bulk = {"schedules": [planned, planned | wrong, planned]}
        error(await api.admin("POST", "promo/schedule/bulk", bulk), 400, "VALIDATION_ERROR")
    assert (await api.admin("GET", "promo/schedule")).json()["schedules"] == []


async def test_bulk_is_all_or_nothing(home: Home, api: Api, planned: dict[str, Any]) -> None:
    """One to fifty, in the order in which they were given."""
    await api.admin("PUT", "promo", {})
    for amount in (0, 51):
        error(
            await api.admin("POST", "promo/schedule/bulk", {"schedules": [planned] * amount}), 400, "VALIDATION_ERROR"
        )
    made = await api.admin(
        "POST", "promo/schedule/bulk", {"schedules": [planned | {"maxRetries": n % 11} for n in range(50)]}
    )
    assert made.status_code == 201
    assert [one["maxRetries"] for one in made.json()["schedules"]] == [n % 11 for n in range(50)]
    assert len((await api.admin("GET", "promo/schedule")).json()["schedules"]) == 50
    page = (await api.admin("GET", "promo/schedule?limit=2&offset=1")).json()["schedules"]
    assert [one["id"] for one in page] == [one["id"] for one in made.json()["schedules"][1:3]]
    error(await api.admin("POST", "none/schedule/bulk", {"schedules": [planned]}), 404, "FLAG_NOT_FOUND")


@one_store
async def test_flags_that_cannot_be(store: str, api: Api) -> None:
    """Bad keys, percentages and bodies are 400; too much of anything is refused before it is read."""
    for body in ({"rolloutPercentage": 101}, {"enabled": 1}, {"nothing": 1}, {"description": "x" * 2001},
                 {"description": "\0"}, [], None):  # fmt: skip
        error(await api.admin("PUT", "promo", body), 400, "VALIDATION_ERROR")
    for key in ("a" * 101, "-a", "a b", "%F0%9F"):
        error(await api.admin("PUT", key, {}), 400, "VALIDATION_ERROR")
    error(await api.admin("PUT", f"promo?environment={'e' * 101}", {}), 400, "VALIDATION_ERROR")
    half = await api.client.put("/api/admin/flags/promo", content=b'{"description": "\\ud800"}')
    error(half, 400, "VALIDATION_ERROR")
    name = await api.client.put("/api/admin/flags/promo", content=b'{"\\ud800": 1}')
    error(name, 400, "VALIDATION_ERROR")
    deep = await api.client.put("/api/admin/flags/promo", content=b"[" * 60_000)
    error(deep, 400, "VALIDATION_ERROR")
    broken = await api.client.put("/api/admin/flags/promo", content=b"{")
    error(broken, 400, "VALIDATION_ERROR")
    error(await api.admin("PUT", "promo", {"description": "x" * 70_000}), 413, "PAYLOAD_TOO_LARGE")
    error(await api.admin("GET", "promo"), 404, "FLAG_NOT_FOUND")


async def test_cancelling_over_http(home: Home, api: Api) -> None:
    """`cancelled` while it waits, 400 afterwards, 404 for another flag's or none."""
    made = await home.plan()
    await home.plan("other")
    error(await api.admin("DELETE", f"other/schedule/{made.id}"), 404, "SCHEDULE_NOT_FOUND")
    error(await api.admin("DELETE", "promo/schedule/99999"), 404, "SCHEDULE_NOT_FOUND")
    ended = await api.admin("DELETE", f"promo/schedule/{made.id}")
    assert (ended.status_code, ended.json()["status"], ended.json()["cancelledBy"]) == (200, "cancelled", "ada")
    assert ended.json()["cancelledAt"] == text(home.now)
    error(await api.admin("DELETE", f"promo/schedule/{made.id}"), 400, "INVALID_STATE")
    for id_ in ("0", "x", str(2**63)):
        error(await api.admin("DELETE", f"promo/schedule/{id_}"), 400, "VALIDATION_ERROR")


async def test_retrying_over_http(home: Home, api: Api) -> None:
    """The tries are shown with their errors; a dead one comes back, by name of who asked; nothing else does."""
    made = await home.plan_broken(max_retries=1)
    error(await api.admin("POST", f"broken/schedule/{made.id}/retry"), 400, "INVALID_STATE")
    await home.drain()
    tries = (await api.admin("GET", f"broken/schedule/{made.id}/retries")).json()
    assert (tries["status"], tries["retryCount"], tries["maxRetries"], tries["upcoming"]) == ("failed", 1, 1, [])
    assert [(one["number"], one["outcome"]) for one in tries["attempts"]] == [(1, "failed"), (2, "failed")]
    assert all("the disk says no" in one["error"] for one in tries["attempts"])
    assert 120 <= tries["attempts"][0]["retryAfterSeconds"] < 150
    assert tries["attempts"][1]["retryAfterSeconds"] is None
    error(await api.admin("POST", f"other/schedule/{made.id}/retry"), 404, "SCHEDULE_NOT_FOUND")
    back = await api.admin("POST", f"broken/schedule/{made.id}/retry")
    assert (back.status_code, back.json()["status"], back.json()["nextRetryAt"]) == (200, "pending", text(home.now))
    assert (await home.audit(made.id, "retried"))[-1].actor == "ada"
    upcoming = (await api.admin("GET", f"broken/schedule/{made.id}/retries")).json()["upcoming"]
    assert [one["number"] for one in upcoming] == [1, 2]


async def test_deleted_flags_schedules_can_still_be_seen(home: Home, api: Api) -> None:
    """What died with its flag is there for a person; an unknown flag is a 404."""
    made = await home.plan()
    await api.admin("DELETE", "promo")
    await home.drain()
    [seen] = (await api.admin("GET", "promo/schedule")).json()["schedules"]
    assert (seen["id"], seen["status"], seen["nextRetryAt"]) == (made.id, "failed", None)
    assert "does not exist any more" in seen["lastError"]
    error(await api.admin("GET", "none/schedule"), 404, "FLAG_NOT_FOUND")
    error(await api.admin("POST", f"promo/schedule/{made.id}/retry"), 400, "INVALID_STATE")


@one_store
async def test_the_description_is_complete(store: str, api: Api) -> None:
    """Every route says what it takes and gives, and every refusal it may answer with; none promises a 422."""
    described = (await api("GET", "/openapi.json")).json()
    paths = {path: what for path, what in described["paths"].items() if "/flags" in path}
    assert len(paths) == 15
    for path, methods in paths.items():
        for what in methods.values():
            assert what["summary"]
            assert "422" not in what["responses"]
            assert "400" in what["responses"]
            assert ("401" in what["responses"]) is not path.startswith("/api/config")
    for name in ("ScheduleRequest", "ScheduleBody", "FlagChange", "FlagBody", "UserOverride", "Evaluated"):
        assert described["components"]["schemas"][name]["examples"]
    assert list(described["components"]["schemas"]["ScheduleBody"]["properties"]) == SCHEDULE_FIELDS


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


async def test_during_an_outage_a_header_says_how_old_the_answer_is(
    home: Home, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both open routes go on answering from the last known state, and say its age; a process that knows nothing is 503."""
    await home.flags.put("promo", enabled=True, rollout_percentage=100, actor="ada")
    for path in ("", "/promo"):
        answer = await api("GET", f"/api/config/flags{path}")
        assert (answer.status_code, answer.headers.get("X-Flags-Age")) == (200, None)

    async def away(*arguments: Any, **options: Any) -> Any:
        raise LedgerAwayError("the store is away")

    monkeypatch.setattr(home.app.database, "read", away)
    home.flags._cache.forget()
    all_of_them, one = await api("GET", "/api/config/flags"), await api("GET", "/api/config/flags/promo?user_id=u")
    assert (all_of_them.status_code, all_of_them.json()) == (200, {"promo": True})
    assert (one.status_code, one.json()["enabled"]) == (200, True)
    assert all(answer.headers["X-Flags-Age"].isdecimal() for answer in (all_of_them, one))
    home.flags._cache._flags = None
    assert (await api("GET", "/api/config/flags")).status_code == 503
