"""Logging in with a key: what the cookie is, what it opens, and how it ends."""

from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import Connection, func, select

from redrive.access.wrong_keys import FAILURES_MAX
from redrive.ledgers.sql import schema
from redrive.running import Service
from redrive.web.app import make_web
from redrive.web.session import COOKIE, LASTS, Logins, _local

from .conftest import client_of

PAGE = {"Accept": "text/html"}


@pytest.fixture
def store() -> str:
    """Sessions ask nothing of a database that the tests of keys and secrets do not ask on both."""
    return "sqlite"


async def log_in(client: httpx.AsyncClient, secret: str) -> dict[str, str]:
    """Log in; what the session says of itself."""
    answer = await client.post("/login", data={"key": secret})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def operator(service: Service, remote: httpx.AsyncClient) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Somebody elsewhere who is logged in as operator, and the session's token."""
    made = await service.keys.create("ada", ["operator"])
    yield remote, (await log_in(remote, made.secret))["csrf_token"]


async def test_the_cookie_is_for_this_service_alone(service: Service, remote: httpx.AsyncClient):
    """Out of reach for scripts and other sites; `Secure` where the connection is; it holds no secret."""
    made = await service.keys.create("ada", ["viewer"])
    answer = await remote.post("/login", data={"key": made.secret})
    [cookie] = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"{COOKIE}=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={int(LASTS.total_seconds())}"):
        assert part in cookie
    assert "Secure" not in cookie
    assert made.secret not in answer.text + cookie
    said = await remote.post("/login", data={"key": made.secret}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" not in said.headers["set-cookie"], "a header of just anybody"
    async with client_of(service, client="192.0.2.7", base_url="https://redrive.example") as behind_tls:
        answer = await behind_tls.post("/login", data={"key": made.secret})
        assert "Secure" in answer.headers["set-cookie"]


async def test_a_session_opens_what_its_key_opens(operator: tuple[httpx.AsyncClient, str], service: Service):
    """Looking needs the cookie alone; who it is, is said by /api/session."""
    client, token = operator
    assert (await client.get("/api/overview")).status_code == 200
    said = (await client.get("/api/session")).json()
    assert (said["owner"], said["role"], said["csrf_token"]) == ("ada", "operator", token)


async def test_nothing_is_open_without_it(remote: httpx.AsyncClient):
    """Elsewhere every look needs a key or a session."""
    for path in ("overview", "series", "tasks", "tasks/redrive_task/1", "groups", "audit", "alerts", "session"):
        assert (await remote.get(f"/api/{path}")).status_code == 401, path
    for path in ("tasks/redrive", "tasks/cancel", "tasks/resolve", "searches", "preview"):
        assert (await remote.post(f"/api/{path}", json={"reason": "x", "ids": [1]})).status_code in (401, 422), path


async def test_a_page_of_this_machine_cannot_act_without_a_key(local: httpx.AsyncClient):
    """Loopback may look, but an act names who did it."""
    body = {"ids": [1], "reason": "x"}
    assert (await local.post("/api/tasks/redrive", json=body)).status_code == 401


@pytest.mark.parametrize("token", [None, "", "0" * 64, "é"])
async def test_unsafe_requests_need_the_token(operator: tuple[httpx.AsyncClient, str], token: str | None):
    """A cookie comes along by itself, so it is not enough."""
    client, right = operator
    body = {"ids": [1], "reason": "x"}
    headers = {} if token is None else {"X-CSRF-Token": token.encode()}
    refused = await client.post("/api/tasks/redrive", json=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf_failed")
    accepted = await client.post("/api/tasks/redrive", json=body, headers={"X-CSRF-Token": right})
    assert accepted.status_code == 200


async def test_the_token_may_be_a_field_of_a_form(operator: tuple[httpx.AsyncClient, str]):
    """As a page without scripts sends it."""
    client, token = operator
    assert (await client.post("/logout", data={"csrf_token": "wrong"})).status_code == 403
    assert (await client.get("/api/session")).status_code == 200
    gone = await client.post("/logout", data={"csrf_token": token})
    assert gone.status_code == 204
    assert (await client.get("/api/session")).status_code == 401


async def test_a_key_in_the_header_needs_no_token(service: Service, remote: httpx.AsyncClient):
    """No browser sends it by itself."""
    made = await service.keys.create("ada", ["operator"])
    headers = {"X-API-Key": made.secret}
    answer = await remote.post("/api/tasks/redrive", json={"ids": [1], "reason": "x"}, headers=headers)
    assert answer.status_code == 200


async def test_the_token_of_another_session_is_none(service: Service):
    """Each session has its own, even of the same key."""
    made = await service.keys.create("ada", ["operator"])
    async with client_of(service) as one, client_of(service) as other:
        first, second = await log_in(one, made.secret), await log_in(other, made.secret)
        assert first["csrf_token"] != second["csrf_token"]
        headers = {"X-CSRF-Token": second["csrf_token"]}
        refused = await one.post("/api/tasks/redrive", json={"ids": [1], "reason": "x"}, headers=headers)
        assert refused.status_code == 403


async def test_whoever_is_revoked_is_out_at_once(service: Service, remote: httpx.AsyncClient):
    """The cookie lives on, the key does not."""
    made = await service.keys.create("ada", ["operator"])
    await log_in(remote, made.secret)
    assert (await remote.get("/api/overview")).status_code == 200
    await service.keys.revoke(made.key.id)
    assert (await remote.get("/api/overview")).status_code == 401
    sent = await remote.get("/tasks", headers=PAGE)
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Ftasks")


@pytest.mark.parametrize("secret", ["", "rdk_wrong", "x" * 10_000])
async def test_a_wrong_key_does_not_log_in(remote: httpx.AsyncClient, secret: str):
    """Programs hear why, browsers are sent back to the page."""
    answer = await remote.post("/login", data={"key": secret})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_invalid")
    back = await remote.post("/login", data={"key": secret}, headers=PAGE)
    assert (back.status_code, back.headers["location"]) == (303, "/login?problem=key_invalid")
    assert "set-cookie" not in back.headers


async def test_a_key_for_programs_does_not_log_in(service: Service, remote: httpx.AsyncClient):
    """It needs a role of people."""
    made = await service.keys.create("sender", ["events:write"])
    answer = await remote.post("/login", data={"key": made.secret})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing")


async def test_another_page_cannot_log_somebody_in(service: Service, remote: httpx.AsyncClient):
    """The form must come from this service itself."""
    made = await service.keys.create("ada", ["viewer"])
    elsewhere = {"Origin": "http://attacker.example"}
    for _ in range(FAILURES_MAX + 1):  # nor keep somebody out
        assert (await remote.post("/login", data={"key": made.secret}, headers=elsewhere)).status_code == 403
    here = {"Origin": "http://redrive.example"}
    assert (await remote.post("/login", data={"key": made.secret}, headers=here)).status_code == 200


async def test_guessing_is_slowed_down(remote: httpx.AsyncClient):
    """After so many wrong keys a caller is told to wait, by the login and by every route that takes a key."""
    for _ in range(FAILURES_MAX):
        assert (await remote.post("/login", data={"key": "rdk_wrong"})).status_code == 401
    for late in (
        await remote.post("/login", data={"key": "rdk_other"}),
        await remote.get("/api/overview", headers={"X-API-Key": "rdk_third"}),
    ):
        assert (late.status_code, "Retry-After" in late.headers) == (429, True)


async def test_a_key_is_guessed_from_many_addresses(service: Service):
    """What is guessed counts as well as who guesses: one beginning of a key, tried from everywhere."""
    web, statuses = make_web(service), []
    for number in range(FAILURES_MAX + 1):
        transport = httpx.ASGITransport(web, client=(f"192.0.2.{number}", 12345))
        async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example") as client:
            answer = await client.get("/api/overview", headers={"X-API-Key": f"rdk_12345678{number}"})
            statuses.append(answer.status_code)
    assert statuses == [401] * FAILURES_MAX + [429]


async def test_wrong_keys_lock_nobody_out(service: Service, remote: httpx.AsyncClient):
    """However many wrong ones came before from the same address, the right key opens at once."""
    made = await service.keys.create("ada", ["viewer"])
    for _ in range(FAILURES_MAX + 5):
        await remote.post("/login", data={"key": f"{made.secret[:12]}wrong"})
    assert (await remote.get("/api/overview", headers={"X-API-Key": made.secret})).status_code == 200
    assert (await remote.post("/login", data={"key": made.secret})).status_code == 200


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("/tasks?state=dead", "/tasks?state=dead"),
        ("", "/"),
        ("tasks", "/"),
        ("//attacker.example", "/"),
        ("/\\attacker.example", "/"),
        ("https://attacker.example/", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_after_the_login_only_to_this_service(given: str, taken: str):
    """`next` is a path here, or the start page."""
    assert _local(given) == taken


async def test_a_link_to_the_login_cannot_lead_elsewhere(service: Service, remote: httpx.AsyncClient):
    """The form asks for the rule above: whoever logs in is sent on within this service."""
    made = await service.keys.create("ada", ["viewer"])
    for given, taken in (("https://attacker.example/", "/"), ("/tasks?state=dead", "/tasks?state=dead")):
        sent = await remote.post("/login", data={"key": made.secret, "next": given}, headers=PAGE)
        assert (sent.status_code, sent.headers["location"]) == (303, taken)


async def test_forged_and_old_cookies_are_none(service: Service, monkeypatch: pytest.MonkeyPatch):
    """Changed, cut, or past its time: nobody is logged in."""
    made = await service.keys.create("ada", ["admin"])
    sessions = Logins(service.app.store)
    token, _ = await sessions.start(made.key)
    assert (await sessions._read(token)).key == made.key  # type: ignore[union-attr]
    for forged in ("", ".", token[:-1], token + "x", token.swapcase(), "é", "\0", "x" * 5000):
        assert await sessions._read(forged) is None, forged
    another = Logins(service.app.store)
    assert (await another._read(token)) is not None  # sessions are shared by all services of the database
    later = service.app.database.now() + LASTS + timedelta(seconds=1)
    monkeypatch.setattr(type(service.app.database), "now", lambda _: later)
    assert await sessions._read(token) is None


async def test_logging_out_ends_the_session(operator: tuple[httpx.AsyncClient, str]):
    """Whoever kept the cookie has nothing: the session itself is over, not only this browser's copy of it."""
    client, token = operator
    kept = client.cookies[COOKIE]
    assert (await client.post("/logout", headers={"X-CSRF-Token": token})).status_code == 204
    client.cookies.set(COOKIE, kept)
    assert (await client.get("/api/session")).status_code == 401


async def test_a_copy_of_the_database_opens_nothing(operator: tuple[httpx.AsyncClient, str], service: Service):
    """No text in any table of ours is a key, a cookie or a token."""
    client, right = operator
    cookie = client.cookies[COOKIE]
    database = service.app.database

    def all_texts(connection: Connection) -> set[str]:
        rows = [row for table in schema.metadata.tables.values() for row in connection.execute(select(table))]
        return {value for row in rows for value in row if isinstance(value, str)}

    texts = await database.read(all_texts)
    assert texts
    assert not any(secret in text or text == secret for text in texts for secret in (cookie, right))
    client.cookies.clear()
    for text in texts:
        if text.isascii() and text.isprintable():
            client.cookies.set(COOKIE, quote(text))
            assert (await client.get("/api/session")).status_code == 401
            client.cookies.clear()
            assert (await client.get("/api/session", headers={"X-API-Key": text})).status_code in (401, 429)


async def test_sessions_that_ended_are_forgotten(service: Service, monkeypatch: pytest.MonkeyPatch):
    """The table does not grow with every login for ever."""
    made = await service.keys.create("ada", ["viewer"])
    sessions, database = Logins(service.app.store), service.app.database
    await sessions.start(made.key)
    later = database.now() + LASTS + timedelta(seconds=1)
    monkeypatch.setattr(type(database), "now", lambda _: later)
    await sessions.start(made.key)
    counted = select(func.count()).select_from(schema.session)
    assert await database.read(lambda connection: connection.execute(counted).scalar_one()) == 1


async def test_a_session_ends_with_its_key(service: Service):
    """A key that is good for an hour gives no session of twelve."""
    made = await service.keys.create("ada", ["viewer"], expires=timedelta(hours=1))
    _, session = await Logins(service.app.store).start(made.key)
    assert session.expires_at == made.key.expires_at


async def test_a_large_body_is_refused(local: httpx.AsyncClient):
    """Whatever its headers say."""
    large = b'{"reason": "' + b"x" * (2 << 20) + b'"}'

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    headers = {"Content-Type": "application/json"}
    assert (await local.post("/api/searches", content=large, headers=headers)).status_code == 413
    assert (await local.post("/api/searches", content=parts(), headers=headers)).status_code == 413


async def test_a_form_of_another_page_reaches_nothing(local: httpx.AsyncClient):
    """What looking may do by POST on this machine takes JSON only, which no other page can send."""
    for path, body in (("searches", '{"text": "x"}'), ("preview", '{"backoff": {"kind": "fixed", "wait": 1}}')):
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            answer = await local.post(f"/api/{path}", content=body, headers={"Content-Type": kind})
            assert answer.status_code == 422
