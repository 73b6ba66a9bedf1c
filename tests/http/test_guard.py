"""Who may come in, and the one form of a refusal."""

import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx
import pytest
import structlog
from fastapi import Depends

from redrive import Redrive
from redrive.access.keys import ApiKey
from redrive.errors import LedgerAwayError, UsageError
from redrive.http.guard import require
from redrive.running import Service
from redrive.settings import Settings
from redrive.web.app import make_web
from redrive.web.server import make_server
from tests.web.conftest import client_of

NEEDS_OPERATOR = Depends(require("operator"))


@pytest.fixture
async def guarded(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A service with routes that need a scope, take a number, or raise."""
    web = make_web(service)

    @web.post("/act")
    async def act(key: ApiKey = NEEDS_OPERATOR) -> str:
        return key.owner

    @web.get("/number")
    async def number(wanted: int) -> int:
        return wanted

    @web.get("/raise/{what}")
    async def fail(what: str) -> None:
        raise {
            "bug": ZeroDivisionError("password=hunter2"),
            "away": LedgerAwayError("postgresql://a:hunter2@db/x cannot be reached"),
            "usage": UsageError("limit must lie between 1 and 1000"),
        }[what]

    transport = httpx.ASGITransport(web, client=("192.0.2.7", 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example") as client:
        yield client


def error_of(answer: httpx.Response) -> dict[str, object]:
    """The error in an answer, which has exactly the fields that it must have."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details", "timestamp", "request_id"}
    assert datetime.fromisoformat(body["error"]["timestamp"]).tzinfo is not None
    assert body["error"]["request_id"] == answer.headers["X-Request-ID"]
    return body["error"]


async def test_without_a_key(guarded: httpx.AsyncClient):
    """401, and how to send one."""
    answer = await guarded.post("/act")
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "key_missing"
    assert answer.headers["WWW-Authenticate"].startswith("ApiKey")


@pytest.mark.parametrize("secret", ["nonsense", "rdk_" + "x" * 43, "x" * 100_000, "é"])
async def test_with_a_wrong_key(guarded: httpx.AsyncClient, secret: str):
    """401, whatever is sent."""
    answer = await guarded.post("/act", headers={"X-API-Key": secret.encode()})
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "key_invalid"


async def test_without_the_scope(guarded: httpx.AsyncClient, service: Service):
    """403, with what was needed and what the key holds."""
    made = await service.keys.create("ada", ["viewer"])
    answer = await guarded.post("/act", headers={"X-API-Key": made.secret})
    assert answer.status_code == 403
    assert error_of(answer)["details"] == {"needed": "operator", "held": ["viewer"]}


@pytest.mark.parametrize("scope", ["operator", "admin"])
async def test_with_the_scope_until_revoked(guarded: httpx.AsyncClient, service: Service, scope: str):
    """A key that holds or implies the scope comes in, and is out with the next request after it was revoked."""
    made = await service.keys.create("ada", [scope])
    assert (await guarded.post("/act", headers={"X-API-Key": made.secret})).json() == "ada"
    await service.keys.revoke(made.key.id)
    assert (await guarded.post("/act", headers={"X-API-Key": made.secret})).status_code == 401


@pytest.mark.parametrize("path", ["/", "/metrics"])
async def test_looking_is_open_on_loopback_only(
    local: httpx.AsyncClient, remote: httpx.AsyncClient, service: Service, path: str
):
    """Elsewhere it needs a key of scope viewer."""
    assert (await local.get(path)).status_code == 200
    assert (await remote.get(path)).status_code == 401
    viewer = await service.keys.create("ada", ["viewer"])
    writer = await service.keys.create("ada", ["events:write"])
    assert (await remote.get(path, headers={"X-API-Key": viewer.secret})).status_code == 200
    assert (await remote.get(path, headers={"X-API-Key": writer.secret})).status_code == 403


@pytest.mark.parametrize(
    ("client", "base_url", "headers", "is_open"),
    [
        ("127.0.0.1", "http://127.0.0.1:8086", {}, True),
        ("127.0.0.1", "http://localhost:8086", {}, True),
        ("::1", "http://[::1]:8086", {}, True),
        ("::ffff:127.0.0.1", "http://127.0.0.1:8086", {}, True),
        ("127.0.0.1", "http://attacker.example:8086", {}, False),
        ("127.0.0.1", "http://localhost.attacker.example", {}, False),
        ("127.0.0.1", "http://127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}, False),
        ("127.0.0.1", "http://127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, False),
        ("127.0.0.1", "http://127.0.0.1", {"Forwarded": "for=192.0.2.7"}, False),
        ("127.0.0.1", "http://127.0.0.1", {"Via": "1.1 proxy"}, False),
        ("192.0.2.7", "http://127.0.0.1", {}, False),
        ("0.0.0.0", "http://127.0.0.1", {}, False),
        ("testclient", "http://127.0.0.1", {}, False),
    ],
)
async def test_what_counts_as_loopback(
    service: Service, client: str, base_url: str, headers: dict[str, str], is_open: bool
):
    """The caller's address, the name it asked for and the absence of proxies, all three."""
    async with client_of(service, client=client, base_url=base_url) as caller:
        assert (await caller.get("/metrics", headers=headers)).status_code == (200 if is_open else 401)


async def test_this_machine_is_trusted_only_where_it_is_said(app: Redrive):
    """By default a plain TCP forwarder on this machine is a stranger like any other: nothing is open without a key."""
    service = Service(app, Settings(_env_file=None, http_trust_loopback=False))
    service.is_open = True
    async with client_of(service) as local:
        for path in ("/", "/metrics", "/api/tasks", "/api/overview", "/api/session"):
            assert (await local.get(path)).status_code == 401, path
    assert Settings.model_fields["http_trust_loopback"].default is False


async def test_a_named_proxy_says_who_is_calling():
    """`X-Forwarded-For` and `X-Forwarded-Proto` count from the proxies that the settings name, and from nobody else."""
    seen: list[tuple[str, str]] = []

    async def web(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))

    headers = [(b"x-forwarded-for", b"203.0.113.9, 10.1.2.3"), (b"x-forwarded-proto", b"https")]
    for proxies in ((), ("192.0.2.0/24",), ("10.0.0.0/8", "127.0.0.1")):
        config = make_server(web, Settings(_env_file=None, http_trusted_proxies=proxies)).config
        config.load()
        scope = {"type": "http", "client": ("127.0.0.1", 1), "scheme": "http", "headers": headers}
        await config.loaded_app(scope, None, None)  # type: ignore[arg-type]
    assert seen == [("127.0.0.1", "http"), ("127.0.0.1", "http"), ("203.0.113.9", "https")]


@pytest.mark.parametrize(("version", "status"), [("1.0", 401), ("1.1", 200), ("2", 200)])
async def test_http_1_0_is_a_proxy(service: Service, version: str, status: int):
    """A proxy that sends our own address as the Host and tells nothing of its caller gives itself away by its old protocol."""
    web = make_web(service)

    async def spoken(scope: Any, receive: Any, send: Any) -> None:
        await web(scope | {"http_version": version}, receive, send)

    transport = httpx.ASGITransport(spoken, client=("127.0.0.1", 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8086") as caller:
        assert (await caller.get("/metrics")).status_code == status


@pytest.mark.parametrize("host", ["[", "[::1", "127.0.0.1.", "127.1", "2130706433", "", "localhost@example.org", "a b"])
async def test_strange_hosts_are_not_loopback(local: httpx.AsyncClient, host: str):
    """Whatever stands in Host, it is either a loopback name or not one; never an error of ours."""
    assert (await local.get("/metrics", headers={"Host": host})).status_code in (400, 401)


async def test_a_wrong_key_is_refused_on_loopback_too(local: httpx.AsyncClient):
    """Who shows a key is judged by it."""
    assert (await local.get("/", headers={"X-API-Key": "rdk_wrong"})).status_code == 401


async def test_errors_of_the_framework_have_the_same_form(guarded: httpx.AsyncClient):
    """404, 405 and 422 come as JSON, without the input that was refused."""
    assert error_of(await guarded.get("/nothing/here"))["code"] == "not_found"
    wrong_method = await guarded.delete("/health")
    assert (wrong_method.status_code, error_of(wrong_method)["code"]) == (405, "method_not_allowed")
    assert wrong_method.headers["Allow"] == "GET"
    invalid = await guarded.get("/number", params={"wanted": "password=hunter2"})
    assert invalid.status_code == 422
    assert error_of(invalid)["details"][0]["where"] == ["query", "wanted"]
    assert "hunter2" not in invalid.text


async def test_what_nobody_caught_is_a_plain_500(guarded: httpx.AsyncClient):
    """No trace and no secret for the client; the log has it under the request id."""
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = await guarded.get("/raise/bug")
    [failed] = [line for line in lines if line["event"] == "request_failed"]
    assert (failed["request_id"], failed["exc_info"]) == (answer.headers["X-Request-ID"], True)
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal_error"
    assert "ZeroDivisionError" not in answer.text
    assert "hunter2" not in answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_our_own_errors_have_their_codes(guarded: httpx.AsyncClient):
    """A store that is away is 503 with Retry-After and no address; a wrong value is 400 with its sentence."""
    away = await guarded.get("/raise/away")
    assert (away.status_code, away.headers["Retry-After"]) == (503, "5")
    assert "db/x" not in away.text
    usage = await guarded.get("/raise/usage")
    assert usage.status_code == 400
    assert error_of(usage)["message"] == "limit must lie between 1 and 1000"


async def test_request_ids_go_in_and_out(local: httpx.AsyncClient):
    """A caller's id is kept if it is a harmless word; else it gets one of ours, and no two are the same."""
    assert (await local.get("/health", headers={"X-Request-ID": "abc-1.2_3"})).headers["X-Request-ID"] == "abc-1.2_3"
    made = [
        (await local.get("/health", headers={"X-Request-ID": bad})).headers["X-Request-ID"]
        for bad in ("a b", "x" * 101, "", "<>")
    ]
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made)
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/nothing", "/static/redrive.css", "/openapi.json"])
async def test_every_answer_has_security_headers(local: httpx.AsyncClient, path: str):
    """TaskPages, data and errors alike."""
    headers = (await local.get(path)).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "server" not in headers


async def test_the_api_describes_itself(local: httpx.AsyncClient, app: Redrive):
    """OpenAPI lists the routes and the key; nothing changes state by GET."""
    described = (await local.get("/openapi.json")).json()
    assert {"/health", "/ready", "/metrics"} <= set(described["paths"])
    [scheme] = described["components"]["securitySchemes"].values()
    assert (scheme["in"], scheme["name"]) == ("header", "X-API-Key")
