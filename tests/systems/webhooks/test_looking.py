"""Looking at webhooks over HTTP, who may come in, and how the routes describe themselves."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive import Redrive, seconds
from redrive.access.keys import Keys
from redrive.settings import Settings
from redrive.systems.webhooks import Webhooks, WebhookSettings
from redrive.testing import VirtualClock, drain
from redrive.web.app import make_web
from redrive.wiring import Service

from .conftest import Make, client_of, error_of, rows, webhook

Inbox = tuple[Redrive, Webhooks]


async def test_a_webhook_by_id_and_by_key(inbox: Inbox, local: httpx.AsyncClient, clock: VirtualClock):
    """Both show the same, with every field that is promised and none more; the payload is not among them."""
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
    }
    await drain(inbox[0], clock=clock, until=seconds(0))
    by_key = await local.get("/webhooks", params={"idempotency_key": "order-7"})
    assert by_key.json() == by_id.json() | {
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
    keys = Keys(app.database)
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
    assert set(take["responses"]) == {"200", "202", "401", "403", "408", "413", "415", "422", "429", "503"}
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
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
