"""Looking needs no write: while a stranger has locked the SQLite file, every route that looks answers."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from redrive import Redrive
from redrive.running import Service
from redrive.settings import SYSTEMS, Settings
from redrive.web.app import make_web
from redrive.wiring import attach_systems

NOT_RUNNING = ("/ready",)
"""No worker runs here."""
SERVED = [name for name in SYSTEMS if name != "relay"]


@pytest.fixture
def store() -> str:
    """Only there one lock is for all writes."""
    return "sqlite"


@pytest.fixture
async def web(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Service]]:
    """The whole service. So small a limit is asked for with every request."""
    monkeypatch.setenv("RATE_LIMIT_PER_MINUTE", "10")
    app = Redrive(url, durable=False)
    attach_systems(app, SERVED)
    async with app:
        service = Service(app, Settings(_env_file=None))
        service.is_open = True
        yield make_web(service), service


def routes_that_look(router: Any, prefix: str = "") -> Iterator[str]:
    """All routes that change nothing."""
    for route in router.routes:
        if hasattr(route, "original_router"):
            yield from routes_that_look(route.original_router, prefix + route.include_context.prefix)
        elif "GET" in (getattr(route, "methods", None) or ()):
            yield prefix + route.path


async def test_no_look_needs_the_write_lock(web: tuple[Any, Service], url: str):
    """Somebody else holds it for the whole walk, and every look is answered, the inbox page by page."""
    made, service = web
    secret = (await service.keys.create("ada", ["admin"])).secret
    task = await service.app.add("mail")
    known = {"ledger": service.app.tasks.name, "task_id": str(task.id), "id": str(task.id), "name": "triggers"}
    transport = httpx.ASGITransport(made, client=("192.0.2.7", 1), raise_app_exceptions=False)
    headers = {"X-API-Key": secret}
    async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example", headers=headers) as client:
        for _ in range(3):
            sent = await client.post("/v1/events", json={"event_type": "a", "payload": {}})
            assert sent.status_code == 201, sent.text
        known["event_id"] = sent.json()["event_id"]
        assert (await client.post("/login", data={"key": secret})).status_code == 200
        stranger = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        try:
            walked = sorted(set(routes_that_look(made.router)))
            assert len(walked) > 40
            for path in walked:
                answer = await client.get(_filled(path, known))
                assert answer.status_code < 500 or path in NOT_RUNNING, (path, answer.text)
            cursor, seen = None, []
            while True:
                page = await client.get("/v1/inbox", params={"limit": 1} | ({"cursor": cursor} if cursor else {}))
                assert page.status_code == 200
                seen += page.json()["events"]
                cursor = page.json()["pagination"]["cursor"]
                if cursor is None:
                    break
            assert len(seen) == 3
            assert (await client.get(f"/v1/events/{known['event_id']}/status")).json()["status"] == "received"
        finally:
            stranger.execute("ROLLBACK")
            stranger.close()


def _filled(path: str, known: dict[str, str]) -> str:
    """The path with what is there in the place of its parameters."""
    for name in [part.partition("}")[0].partition(":")[0] for part in path.split("{")[1:]]:
        path = path.replace(f"{{{name}}}", known.get(name, "1")).replace(f"{{{name}:path}}", known.get(name, "1"))
    return path
