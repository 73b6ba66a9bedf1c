"""An inbox on each database, over HTTP without a port, in virtual time or at work."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, text

from redrive import Redrive, Task
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.webhooks import Source, Webhooks, WebhookSettings
from redrive.testing import VirtualClock
from redrive.web.app import make_web
from tests.servers import Migrated

GITHUB_SECRET = "It's a Secret to Everybody"
STRIPE_SECRET = "whsec_the_stripe_secret_that_nobody_knows"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

SOURCES = (
    Source.make("github", "github", [GITHUB_SECRET]),
    Source.make("stripe", "stripe", [STRIPE_SECRET]),
    Source.make("standard", "standard", [STANDARD_SECRET]),
)

Make = Callable[..., tuple[Redrive, Webhooks]]
Inbox = tuple[Redrive, Webhooks]


def settings(**given: Any) -> WebhookSettings:
    """Settings that come from nowhere but the test."""
    return WebhookSettings(_env_file=None, **given)


@pytest.fixture
async def url(migrated: Migrated) -> str:
    """The URL of a new database with the tables of redrive and of this system."""
    return await migrated(["webhooks"])


@pytest.fixture
async def make(url: str) -> AsyncIterator[Make]:
    """Make an application with an inbox; it is closed at the end."""
    made: list[Redrive] = []

    def run(*, clock: VirtualClock | None = None, **given: Any) -> tuple[Redrive, Webhooks]:
        app = Redrive(url, clock=clock, durable=False)
        made.append(app)
        return app, Webhooks(app, settings(**given), sources=SOURCES)

    yield run
    for app in made:
        await app.close()


def client_of(app: Redrive, *, client: str = "127.0.0.1", base_url: str = "http://127.0.0.1:8086") -> httpx.AsyncClient:
    """A client at some address, of a service that does not run: it takes in and shows, and nothing works."""
    service = Service(app, Settings(_env_file=None))
    transport = httpx.ASGITransport(make_web(service), client=(client, 12345), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


@asynccontextmanager
async def at_work(app: Redrive) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that runs."""
    service = Service(app, Settings(_env_file=None))
    running = asyncio.create_task(service.run())
    transport = httpx.ASGITransport(make_web(service), client=("127.0.0.1", 1), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8086") as client:
            assert service.workers is not None
            ready = asyncio.create_task(service.workers.ready.wait())
            await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield client
    finally:
        service.stop()
        await running


@pytest.fixture
async def inbox(make: Make, clock: VirtualClock) -> Inbox:
    """An inbox in virtual time, with a handler that does as the payload says."""
    app, webhooks = make(clock=clock)

    @webhooks.handler("*")
    async def handle(task: Task) -> None:
        if task.payload.get("fail"):
            raise ValueError("not today")

    return app, webhooks


@pytest.fixture
async def local(inbox: Inbox) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the same machine."""
    async with client_of(inbox[0]) as client:
        yield client


def webhook(key: str = "order-7", event_type: str = "order.paid", **payload: Any) -> dict[str, Any]:
    """A webhook as POST /webhooks takes it."""
    return {"idempotency_key": key, "event_type": event_type, "payload": payload}


async def rows(app: Redrive) -> list[dict[str, Any]]:
    """All of the table, as it is stored."""

    def look(connection: Connection) -> list[dict[str, Any]]:
        found = connection.execute(text("SELECT * FROM events ORDER BY id"))
        return [dict(row._mapping) for row in found]

    return await app.database.read(look)


async def execute(app: Redrive, statement: str, **given: Any) -> None:
    """Change the table behind everybody's back."""
    await app.database.write(lambda connection: connection.execute(text(statement), given))


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error in an answer, which has exactly the fields that it must have."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details", "timestamp", "request_id"}
    return body["error"]


def github_headers(body: bytes, secret: str = GITHUB_SECRET, **given: str) -> dict[str, str]:
    """What GitHub sends along."""
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-GitHub-Event": "push",
        "X-Hub-Signature-256": f"sha256={signature}",
        **given,
    }


def stripe_headers(body: bytes, secret: str = STRIPE_SECRET, *, at: float | None = None) -> dict[str, str]:
    """What Stripe sends along."""
    moment = str(int(time.time() if at is None else at))
    signature = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Content-Type": "application/json", "Stripe-Signature": f"t={moment},v1={signature},v0={'0' * 64}"}


def encoded(body: Any) -> bytes:
    """JSON, as a sender may write it."""
    return json.dumps(body).encode()


async def until(holds: Any) -> None:
    """Come back when it holds."""
    ends = time.monotonic() + 150
    while not await holds():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


async def has_status(client: httpx.AsyncClient, key: str, status: str) -> bool:
    """Whether the webhook with this key has come so far."""
    return (await client.get("/webhooks", params={"idempotency_key": key})).json()["status"] == status
