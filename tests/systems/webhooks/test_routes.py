"""The routes: what does not fit, looking, who may come in, and how they describe themselves."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive import Redrive, seconds
from redrive.access.sql.keys import SqlKeys
from redrive.errors import LedgerAwayError
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.webhooks import Webhooks, WebhookSettings, routes
from redrive.testing import VirtualClock, drain
from redrive.web.app import make_web

from .conftest import Inbox, Make, client_of, error_of, rows, webhook


async def test_a_webhook_by_id_and_by_key(inbox: Inbox, local: httpx.AsyncClient, clock: VirtualClock):
    """Both show the same, with every field that is promised and none more; the payload is shown by the id alone."""
    taken = (await local.post("/webhooks", json=webhook(fail=True))).json()
    by_id = await local.get(f"/webhooks/{taken['id']}")
    assert by_id.json() == {
        "id": taken["id"],
        "idempotency_key": "order-7",
        "event_type": "order.paid",
        "status": "pending",
        "attempts": 0,
        "last_error": None,
        "retry_after": None,
        "created_at": "2030-01-01T00:00:00.000000Z",
        "updated_at": "2030-01-01T00:00:00.000000Z",
        "payload": {"fail": True},
    }
    await drain(inbox[0], clock=clock, until=seconds(0))
    by_key = await local.get("/webhooks", params={"idempotency_key": "order-7"})
    assert by_key.json() | {"payload": {"fail": True}} == by_id.json() | {
        "attempts": 1,
        "last_error": "ValueError: not today",
        "retry_after": "2030-01-01T00:00:10.000000Z",
        "updated_at": "2030-01-01T00:00:00.000000Z",
    }
    await (await inbox[1].lane.ledger()).claim(1, seconds(30))
    clock.advance(seconds(10))
    await (await inbox[1].lane.ledger()).claim(1, seconds(30))
    held = (await local.get(f"/webhooks/{taken['id']}")).json()
    assert (held["status"], held["attempts"]) == ("processing", 2)


@pytest.mark.parametrize("path", ["/webhooks/nothing", "/webhooks?idempotency_key=nothing", "/webhooks/a%00b"])
async def test_what_is_not_there_is_404(local: httpx.AsyncClient, path: str):
    """In the one form of errors."""
    answer = await local.get(path)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "query", ["status=dead", "status=", "limit=0", "limit=1001", "limit=many", "idempotency_key=", f"after={'x' * 101}"]
)
async def test_wrong_parameters_are_422(local: httpx.AsyncClient, query: str):
    """In the one form of errors, too."""
    answer = await local.get(f"/webhooks?{query}")
    assert (answer.status_code, error_of(answer)["code"]) == (422, "invalid_request")


async def test_dead_letters_are_paged_oldest_first(inbox: Inbox, local: httpx.AsyncClient, clock: VirtualClock):
    """All of them, each once, in the order in which they came, whatever else is there."""
    for number in range(25):
        await local.post("/webhooks", json=webhook(f"k{number:02}", fail=number % 2 == 0))
        clock.advance(seconds(1))
    await drain(inbox[0], clock=clock)
    seen: list[str] = []
    after: str | None = None
    pages = 0
    while True:
        query = {"status": "failed", "limit": 5} | ({"after": after} if after else {})
        page = (await local.get("/webhooks", params=query)).json()
        assert {one["status"] for one in page["webhooks"]} == {"failed"}
        assert all(one["retry_after"] is None and one["attempts"] == 5 for one in page["webhooks"])
        seen += [one["idempotency_key"] for one in page["webhooks"]]
        pages += 1
        after = page["after"]
        if after is None:
            break
    assert seen == [f"k{number:02}" for number in range(0, 25, 2)]
    assert pages == 3


# --- who may come in --------------------------------------------------------------------------------------------------


@pytest.fixture
async def remote(inbox: Inbox) -> AsyncIterator[httpx.AsyncClient]:
    """A client on another machine."""
    async with client_of(inbox[0], client="192.0.2.7", base_url="http://hooks.example") as client:
        yield client


async def test_elsewhere_a_key_is_needed(inbox: Inbox, remote: httpx.AsyncClient):
    """Its scope must fit: to write `webhooks:write`, to look `viewer`; an admin may do both."""
    app, _ = inbox
    await app.open()
    keys = SqlKeys(app.database)
    made = {
        scope: (await keys.create("test", [scope])).secret
        for scope in ("webhooks:write", "viewer", "admin", "endpoints")
    }
    for number, (scope, may_write, may_look) in enumerate(
        (("webhooks:write", 202, 403), ("viewer", 403, 200), ("admin", 202, 200), ("endpoints", 403, 403))
    ):
        headers = {"X-API-Key": made[scope]}
        assert (await remote.post("/webhooks", json=webhook(f"k{number}"), headers=headers)).status_code == may_write
        assert (await remote.get("/webhooks", headers=headers)).status_code == may_look
    assert (await remote.post("/webhooks", json=webhook())).status_code == 401
    assert (await remote.get("/webhooks")).status_code == 401
    assert (await remote.post("/webhooks", json=webhook(), headers={"X-API-Key": "rdk_wrong"})).status_code == 401
    assert len(await rows(app)) == 2


async def test_open_to_all_if_told_so(make: Make):
    """WEBHOOK_OPEN lets everybody write; looking still needs a key."""
    app, _ = make(webhook_open=True)
    async with client_of(app, client="192.0.2.7", base_url="http://hooks.example") as client:
        assert (await client.post("/webhooks", json=webhook())).status_code == 202
        assert (await client.get("/webhooks")).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"Origin": "http://127.0.0.1:8086"}, 202),
        ({"Origin": "https://evil.example"}, 401),
        ({"Origin": "http://127.0.0.1:3000"}, 401),
        ({"Origin": "null"}, 401),
        ({"Host": "evil.example"}, 401),
        ({"X-Forwarded-For": "192.0.2.7"}, 401),
    ],
)
async def test_a_page_from_elsewhere_cannot_write_through_loopback(
    inbox: Inbox, local: httpx.AsyncClient, headers: dict[str, str], status: int
):
    """A browser on this machine names its page as the origin, or a name made to point here as the host."""
    answer = await local.post("/webhooks", json=webhook(), headers=headers)
    assert answer.status_code == status
    assert len(await rows(inbox[0])) == (status == 202)


async def test_browsers_get_no_permission(local: httpx.AsyncClient):
    """The question that a browser asks before it sends JSON elsewhere is not answered with yes."""
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await local.options("/webhooks", headers=asked)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


# --- the description --------------------------------------------------------------------------------------------------


@pytest.fixture
def described(tmp_path: Any) -> dict[str, Any]:
    """The OpenAPI description of a service with an inbox."""
    app = Redrive(f"sqlite:///{tmp_path / 'a.db'}")
    Webhooks(app, WebhookSettings(_env_file=None), sources=())
    return make_web(Service(app, Settings(_env_file=None))).openapi()


def test_the_routes_describe_themselves(described: dict[str, Any]):
    """What they take, what they answer, every refusal, and the key."""
    paths = described["paths"]
    assert {"/webhooks", "/webhooks/in/{source}", "/webhooks/{id}"} <= set(paths)
    take = paths["/webhooks"]["post"]
    refusals = {"400", "401", "403", "408", "413", "415", "422", "429", "431", "500", "503"}
    assert set(take["responses"]) == {"200", "202"} | refusals
    assert take["security"]
    schema = take["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["idempotency_key", "event_type", "payload"]
    jsonschema_rs.validate(schema, schema["example"])
    assert "security" not in paths["/webhooks/in/{source}"]["post"]
    refused = take["responses"]["429"]["content"]["application/json"]["schema"]["$ref"]
    assert refused.endswith("/ErrorAnswer")
    assert "Retry-After" in take["responses"]["429"]["headers"]
    assert set(paths["/webhooks"]) == {"get", "post"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
BODIES = st.fixed_dictionaries(
    {}, optional={"idempotency_key": JSON | st.text(), "event_type": JSON | st.text(), "payload": JSON, "more": JSON}
)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES | JSON)
async def test_every_answer_is_one_that_is_described(
    described: dict[str, Any], inbox: Inbox, local: httpx.AsyncClient, body: Any
):
    """Whatever JSON comes in: a status of the description, a body that fits its schema, and a row if and only if 2xx."""
    before = len(await rows(inbox[0]))
    sent = json.dumps(body).encode()
    answer = await local.post("/webhooks", content=sent, headers={"Content-Type": "application/json"})
    said = described["paths"]["/webhooks"]["post"]["responses"][str(answer.status_code)]
    schema = said["content"]["application/json"]["schema"] | {"components": described["components"]}
    jsonschema_rs.validate(schema, answer.json())
    assert len(await rows(inbox[0])) - before == (answer.status_code == 202)


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "null": b"null",
    "not UTF-8": b'{"idempotency_key": "\xff", "event_type": "a", "payload": {}}',
    "UTF-16": json.dumps(webhook()).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(webhook()).encode(),
    "NaN": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": NaN}}',
    "infinite": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": -Infinity}}',
    "a float beyond floats": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": 1e999}}',
    "ten thousand digits": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": ' + b"9" * 10_000 + b"}}",
    "the same name twice": b'{"idempotency_key": "k", "idempotency_key": "l", "event_type": "a", "payload": {}}',
    "twice in the payload": b'{"idempotency_key": "k", "event_type": "a", "payload": {"a": {"b": 1, "b": 2}}}',
    "nested without end": b'{"idempotency_key": "k", "event_type": "a", "payload": ' + b'{"a":' * 100_000,
    "nested too deep": b'{"idempotency_key": "k", "event_type": "a", "payload": '
    + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
    "lists nested too deep": b'{"idempotency_key": "k", "event_type": "a", "payload": {"a":'
    + b"[" * 900 + b"]" * 900 + b"}}",
    "half a character": b'{"idempotency_key": "k", "event_type": "a", "payload": {"a": "\\ud800"}}',
    "half a character in the key": b'{"idempotency_key": "\\ud800", "event_type": "a", "payload": {}}',
    "NUL in the key": b'{"idempotency_key": "a\\u0000b", "event_type": "a", "payload": {}}',
    "no key": b'{"event_type": "a", "payload": {}}',
    "an empty key": b'{"idempotency_key": "", "event_type": "a", "payload": {}}',
    "a key that is a number": b'{"idempotency_key": 7, "event_type": "a", "payload": {}}',
    "a key that is too long": json.dumps(webhook("k" * 501)).encode(),
    "a type that is too long": json.dumps(webhook(event_type="t" * 201)).encode(),
    "a payload that is a list": b'{"idempotency_key": "k", "event_type": "a", "payload": []}',
    "a payload that is null": b'{"idempotency_key": "k", "event_type": "a", "payload": null}',
    "half a character in a name": b'{"idempotency_key": "k", "event_type": "a", "payload": {}, "\\ud800": 1}',
    "a name that is huge": json.dumps(webhook() | {"x" * 100_000: 1}).encode(),
    "a thousand names too many": json.dumps(webhook() | {f"x{n}": 1 for n in range(1000)}).encode(),
    "half a character in a name of the payload": b'{"idempotency_key": "k", "event_type": "a", "payload": {"\\ud800": 1}}',
    "half a character twice": b'{"idempotency_key": "k", "event_type": "a", "payload": {"\\ud800": 1, "\\ud800": 1}}',
    "one name too many": b'{"idempotency_key": "k", "event_type": "a", "payload": {}, "status": "completed"}',
}  # fmt: skip


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # it is refused before the database is asked
@pytest.mark.parametrize("what", BAD)
async def test_what_does_not_fit_is_422_and_leaves_nothing(inbox: Inbox, local: httpx.AsyncClient, what: str):
    """Whatever is wrong with a body, the answer says so in the one form of errors, and there is no row."""
    answer = await local.post("/webhooks", content=BAD[what], headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert error_of(answer)["code"] in ("invalid_json", "invalid_request", "invalid_webhook")
    assert len(answer.content) < 3000
    assert await rows(inbox[0]) == []


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # it is refused before the database is asked
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 202),
        ({"Content-Type": "application/json; charset=utf-8"}, 202),
        ({"Content-Type": 'APPLICATION/JSON;charset="UTF-8"'}, 202),
        ({"Content-Type": "application/cloudevents+json"}, 202),
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "text/json"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
    ],
)
async def test_only_json_is_taken(inbox: Inbox, local: httpx.AsyncClient, headers: dict[str, str], status: int):
    """A content type that a page from elsewhere could send without asking is refused, and so is every other but JSON."""
    answer = await local.post("/webhooks", content=json.dumps(webhook()).encode(), headers=headers)
    assert answer.status_code == status, answer.text
    assert len(await rows(inbox[0])) == (status == 202)


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_over_the_limit_is_413(make: Make, chunked: bool):
    """With or without a length that says so; one that just fits is taken."""
    app, _ = make(webhook_max_bytes=2000)
    body = json.dumps(webhook(a="")).encode()
    fits = json.dumps(webhook(a="x" * (2000 - len(body)))).encode()
    async with client_of(app) as client:
        for content, status in ((fits + b" ", 413), (fits, 202)):

            async def pieces(content: bytes = content) -> Any:
                for start in range(0, len(content), 100):
                    yield content[start : start + 100]

            sent = pieces() if chunked else content
            answer = await client.post("/webhooks", content=sent, headers={"Content-Type": "application/json"})
            assert answer.status_code == status, answer.text
            assert len(await rows(app)) == (status == 202)


async def test_reading_stops_at_the_limit(make: Make):
    """A body without end is cut after its first megabyte: no more is read, however much the sender has."""
    app, _ = make()
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b" " * (1 << 16)

    async with client_of(app) as client:
        answer = await client.post("/webhooks", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert sent <= (1 << 20) + 3 * (1 << 16)


async def test_a_body_that_comes_too_slowly_is_408(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A sender that stops in the middle of its body does not hold its place for ever."""
    monkeypatch.setattr(routes, "BODY_SECONDS_MAX", 0.05)
    app, _ = make()

    async def stuck() -> Any:
        yield b'{"idempotency_key":'
        await asyncio.sleep(30)

    async with client_of(app) as client:
        answer = await client.post("/webhooks", content=stuck(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, error_of(answer)["code"]) == (408, "body_too_slow")


async def test_a_sender_that_hangs_up_leaves_nothing(make: Make, capfd: pytest.CaptureFixture[str]):
    """Half a body is no webhook, and no reason for a traceback."""
    app, _ = make()
    await app.open()
    messages = iter(
        [{"type": "http.request", "body": b'{"idempotency_key":', "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": "/webhooks", "raw_path": b"/webhooks", "query_string": b"",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    await make_web(Service(app, Settings(_env_file=None)))(scope, receive, send)
    assert sent[0]["status"] == 400
    assert "Traceback" not in capfd.readouterr().out
    assert await rows(app) == []


async def test_a_store_that_is_away_is_503(make: Make, monkeypatch: pytest.MonkeyPatch):
    """The sender is told to come back; nothing was stored."""
    app, webhooks = make()
    await app.open()

    async def away(*_: Any) -> Any:
        raise LedgerAwayError("postgresql://a:hunter2@db is away")

    monkeypatch.setattr(webhooks.inbox, "_taking", away)
    async with client_of(app) as client:
        answer = await client.post("/webhooks", json=webhook())
        assert b'webhook_events_total{result="rejected"} 1.0' in (await client.get("/metrics")).content
    assert (answer.status_code, error_of(answer)["code"]) == (503, "store_away")
    assert "Retry-After" in answer.headers
    assert "hunter2" not in answer.text
