"""Every refusal of every route has the one form, and a status that `/openapi.json` names: walked by that description."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI

from redrive import Redrive
from redrive.access.wrong_keys import FAILURES_MAX
from redrive.errors import LedgerAwayError, SettingsError, TooSlowError
from redrive.running import Service
from redrive.settings import SYSTEMS, Settings
from redrive.systems.relay.settings import RelaySettings
from redrive.web.app import make_web
from redrive.wiring import attach_relay, attach_systems

CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
FIELDS = {"code", "message", "details", "timestamp", "request_id"}
OWN_FORM = {"/health", "/ready"}
"""Their 503 says what is not well, to machines that watch."""
ELSEWHERE = {"ledger": "nothing", "reason": "x", "ids": [1]}
BODIES = {"/api/tasks/resolve": {"state": "done"}, "/api/searches": {"text": "x"}}
"""What is otherwise right, where the ledger is one that is not there."""
GUESSER = "192.0.2.66"


@dataclass
class Walk:
    """The service, its description, and what was found."""

    web: FastAPI
    service: Service
    admin: str
    nobody: str
    wrong: list[Any] = field(default_factory=list)
    seen: set[tuple[str, int]] = field(default_factory=set)

    def client(self, *, key: str | None = None, address: str = "192.0.2.7") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.web, client=(address, 1), raise_app_exceptions=False)
        headers = {} if key is None else {"X-API-Key": key}
        return httpx.AsyncClient(transport=transport, base_url="http://redrive.example", headers=headers)

    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        described = self.web.openapi()["paths"]
        return [(path, method, one) for path, methods in described.items() for method, one in methods.items()]

    def check(
        self, what: str, path: str, method: str, operation: dict[str, Any] | None, answer: httpx.Response
    ) -> None:
        """Note what is wrong with an answer."""
        if answer.status_code < 400:
            return
        said = f"{what}: {method} {path} {answer.status_code} {answer.text[:150]}"
        if operation is not None and str(answer.status_code) not in operation["responses"]:
            self.wrong.append(f"not described: {said}")
        self.seen.add((path, answer.status_code))
        if path in OWN_FORM and answer.status_code == 503:
            return
        body = answer.json() if answer.headers["content-type"] == "application/json" else {}
        error = body.get("error") if isinstance(body, dict) else None
        if set(body) != {"error"} or not isinstance(error, dict) or set(error) != FIELDS:
            self.wrong.append(f"another form: {said}")
            return
        styled = any(f"{path}/".startswith(f"{style.prefix}/") for style in self.web.state.error_styles)
        code = error["code"].lower() if styled and error["code"].isupper() else error["code"]
        if not CODE.fullmatch(code) or (styled and not error["code"].isupper()):
            self.wrong.append(f"a code of another spelling: {said}")
        if not error["message"] or error["request_id"] != answer.headers["x-request-id"]:
            self.wrong.append(f"without a message or its id: {said}")
        if (
            answer.status_code == 401
            and not path.startswith("/webhooks/in/")
            and "www-authenticate" not in answer.headers
        ):
            self.wrong.append(f"without a challenge: {said}")
        if answer.status_code == 429 and "retry-after" not in answer.headers:
            self.wrong.append(f"without a time to come back: {said}")


@pytest.fixture
def store() -> str:
    """The form of an error does not depend on the database."""
    return "sqlite"


@pytest.fixture
async def walk(url: str) -> AsyncIterator[Walk]:
    """The whole service with every system."""
    app = Redrive(url, durable=False)
    attach_systems(app, [name for name in SYSTEMS if name != "relay"])
    attach_relay(app, RelaySettings(_env_file=None, rabbitmq_url="amqp://127.0.0.1:1"), service="redrive")
    await app.open()
    service = Service(app, Settings(_env_file=None))
    service.is_open = True
    admin = (await service.keys.create("ada", ["admin"])).secret
    nobody = (await service.keys.create("eve", ["webhooks:write"])).secret
    walk = Walk(make_web(service), service, admin, nobody)
    assert len(walk.operations()) > 70
    yield walk
    await service.close_all()
    await app.close()


def filled(path: str, value: str) -> str:
    return re.sub(r"\{[^}]*\}", value, path)


async def test_strangers_and_guessers(walk: Walk):
    """Without a key, with a wrong one, with one that is not for this, and after too many wrong ones."""
    for _ in range(FAILURES_MAX + 1):
        walk.web.state.wrong_keys.note(GUESSER, "wrong")
    for path, method, operation in walk.operations():
        at = filled(path, "1")
        for what, given in (
            ("no key", {}),
            ("a wrong key", {"key": "wrong"}),
            ("another scope", {"key": walk.nobody}),
            ("guessing", {"key": "wrong too", "address": GUESSER}),
        ):
            async with walk.client(**given) as client:
                answer = await client.request(method, at, json=None if method == "get" else {})
            walk.check(what, path, method, operation, answer)
    assert not walk.wrong, "\n".join(walk.wrong)
    assert {401, 403, 429} <= {status for _, status in walk.seen}


async def test_what_does_not_fit(walk: Walk):
    """Unknown things, parameters and bodies that do not fit, bodies that are too large or not JSON, other methods, other paths."""
    large = b'{"x": "' + b"x" * (9 << 20) + b'"}'
    async with walk.client(key=walk.admin) as client:
        for path, method, operation in walk.operations():
            for value in ("1", "nothing", "x" * 3000):
                answer = await client.request(method, filled(path, value), json=None if method == "get" else {})
                walk.check(f"{value:.10}", path, method, operation, answer)
            for parameter in operation.get("parameters", ()):
                for value in ("nothing", "-1"):
                    if parameter["in"] == "query":
                        answer = await client.request(method, filled(path, "1"), params={parameter["name"]: value})
                        walk.check(f"{parameter['name']}={value:.10}", path, method, operation, answer)
            if method != "get":
                for body, kind in (
                    (b"{", "application/json"),
                    (b"[1]", "application/json"),
                    (b"x", "text/plain"),
                    (b"", ""),
                ):
                    headers = {"Content-Type": kind} if kind else {}
                    answer = await client.request(method, filled(path, "1"), content=body, headers=headers)
                    walk.check(f"{body!r} as {kind}", path, method, operation, answer)
                headers = {"Content-Type": "application/json"}
                answer = await client.request(method, filled(path, "1"), content=large, headers=headers)
                walk.check("large", path, method, operation, answer)
                answer = await client.request(method, filled(path, "1"), json=ELSEWHERE | BODIES.get(path, {}))
                walk.check("another ledger", path, method, operation, answer)
            other = await client.request("TRACE", filled(path, "1"))
            walk.check("another method", path, "trace", None, other)
            assert other.status_code == 405, path
            walk.check("another path", path, method, None, await client.request(method, filled(path, "1") + "/no/such"))
    assert not walk.wrong, "\n".join(walk.wrong)
    assert {404, 405, 413, 415, 422} <= {status for _, status in walk.seen}


@pytest.mark.parametrize(
    "error", [LedgerAwayError("away"), TooSlowError("slow"), SettingsError("unset"), RuntimeError("a fault")]
)
async def test_a_store_that_is_away_and_a_fault(walk: Walk, error: Exception, monkeypatch: pytest.MonkeyPatch):
    """Whatever the store raises, on every route that asks it."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    for name in ("read", "write", "look", "scan", "statement"):
        monkeypatch.setattr(walk.service.app.database, name, fail)
    with structlog.testing.capture_logs():  # each fault is logged with its traceback, which takes long to draw
        async with walk.client(key=walk.admin) as client:
            for path, method, operation in walk.operations():
                answer = await client.request(method, filled(path, "1"), json=None if method == "get" else {})
                walk.check(str(error), path, method, operation, answer)
    assert not walk.wrong, "\n".join(walk.wrong)
    assert (500 if isinstance(error, RuntimeError) else 503) in {status for _, status in walk.seen}


def test_every_refusal_is_described_in_the_one_form(walk: Walk):
    """No status of a refusal is described as anything else, and nothing of the framework's own form is left."""
    described = walk.web.openapi()
    assert not {"HTTPValidationError", "ValidationError"} & set(described["components"]["schemas"])
    for path, method, operation in walk.operations():
        for status, said in operation["responses"].items():
            if not status.startswith(("4", "5")) or path in OWN_FORM:
                continue
            while "$ref" in said:
                said = described["components"]["responses"][said["$ref"].rsplit("/", 1)[1]]
            schema = said["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, (path, method, status)
