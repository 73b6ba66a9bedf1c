"""Nobody's body is read before the key is checked, on any route that there is."""

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Redrive
from redrive.running import Service
from redrive.settings import SYSTEMS, Settings
from redrive.web.app import make_web
from redrive.wiring import attach_systems

REFUSED = (401, 403)
OPEN = {
    "/login": "the key is in the body, which is bounded",
    "/webhooks/in/{source}": "the signature is over the body; a source that is not there is refused before",
}


@pytest.fixture
def web(store: str, url: str) -> Any:
    """The whole service, every system that this database can have included."""
    app = Redrive(url, durable=False)
    attach_systems(app, [name for name in SYSTEMS if name != "relay"])
    service = Service(app, Settings(_env_file=None))
    service.is_open = True
    return make_web(service)


def routes_that_take(router: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """All routes whose requests may have a body."""
    for route in router.routes:
        if hasattr(route, "original_router"):
            yield from routes_that_take(route.original_router, prefix + route.include_context.prefix)
        else:
            for method in getattr(route, "methods", ()):
                if method not in ("GET", "HEAD", "OPTIONS"):
                    yield method, prefix + route.path


async def test_no_body_is_read_without_a_key(web: Any):
    """A stranger who announces a body is refused before a byte of it is asked for, on every route but those of `OPEN`."""
    walked = set(routes_that_take(web.router))
    assert len(walked) > 30
    wrong = []
    for method, path in sorted(walked):
        if path in OPEN:
            continue
        status, read = await _ask(web, method, path.replace("{", "").replace("}", "").replace(":path", ""))
        if read or status not in (
            (204,) if path == "/logout" else REFUSED
        ):  # there is nothing to end without a session
            wrong.append((method, path, status, read))
    assert wrong == []


async def _ask(web: Any, method: str, path: str) -> tuple[int, bool]:
    """The status for a stranger's request, and whether its body was asked for."""
    read, status = False, 0

    async def receive() -> Any:
        nonlocal read
        read = True
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    headers = {"host": "redrive.example", "content-type": "application/json", "content-length": "1000"}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("192.0.2.7", 1234),
        "server": ("redrive.example", 80), "headers": [(a.encode(), b.encode()) for a, b in headers.items()],
    }  # fmt: skip
    await web(scope, receive, send)
    return status, read
