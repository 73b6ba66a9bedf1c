"""What is open: every route of the service and of the systems is asked as a stranger, and with a cookie but no token."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from redrive import Redrive
from redrive.running import Service
from redrive.settings import Settings
from redrive.web.app import make_web
from redrive.wiring import attach_systems

OPEN = {
    "/health",
    "/ready",
    "/login",
    "/logout",
    "/api/config/flags",
    "/api/config/flags/{key}",
    "/webhooks/in/{source}",
}
"""Whether it lives, the way in and out, what browsers of the public ask for, and what carries a signature of its own."""
PAGES = (
    "/",
    "/tasks",
    "/tasks/redrive_task/1",
    "/dead",
    "/gates",
    "/workers",
    "/systems",
    "/systems/flags",
    "/audit",
    "/docs",
)
SAFE = {"GET", "HEAD"}


@pytest.fixture
async def service(url: str) -> AsyncIterator[Service]:
    """A service with all systems that need nothing else."""
    app = Redrive(url, durable=False)
    attach_systems(app, ["commands", "flags", "triggers", "webhooks"])
    await app.open()
    service = Service(app, Settings(_env_file=None))
    service.is_open = True
    yield service
    await service.close_all()
    await app.close()


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_every_route_needs_a_key_and_every_change_a_token(service: Service):
    """From elsewhere nothing answers but what is listed above; a cookie alone changes nothing anywhere."""
    web = make_web(service)
    routes = [(method.upper(), path) for path, methods in web.openapi()["paths"].items() for method in methods] + [
        ("GET", page) for page in PAGES
    ]
    assert len(routes) > 60
    admin = (await service.keys.create("ada", ["admin"])).secret
    transport = httpx.ASGITransport(web, client=("10.0.0.9", 1), raise_app_exceptions=False)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://svc.example") as stranger,
        httpx.AsyncClient(transport=transport, base_url="http://svc.example") as logged_in,
    ):
        assert (await logged_in.post("/login", data={"key": admin})).status_code == 200
        for method, path in routes:
            if path in OPEN:
                continue
            address = re.sub(r"\{[^}]*\}", "x", path)
            body = {} if method in SAFE else {"json": {}}
            assert (await stranger.request(method, address, **body)).status_code == 401, (method, path)
            if method not in SAFE:
                refused = await logged_in.request(method, address, **body)
                assert refused.status_code in (401, 403), (method, path, refused.text)
