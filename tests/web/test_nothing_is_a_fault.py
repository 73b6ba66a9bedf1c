"""Whatever strangers send, it is refused with a sentence or answered: no route of the API has a fault, walked by its own description."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from redrive import Redrive
from redrive.access.sql.keys import SqlKeys
from redrive.ledgers.sql.migrate import migrate
from redrive.running import Service
from redrive.settings import SYSTEMS, Settings
from redrive.web.app import make_web
from redrive.wiring import attach_systems
from tests.breadth import WIDE

SERVED = [name for name in SYSTEMS if name != "relay"]
HOSTILE = (
    "", "a\0b", "%", "-1", "1e400", "NaN", "9" * 400, str(2**63), "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
    "10000-01-01T00:00:00Z", "1" * 5000, "é\u202e", "[]", "999999999999d",
)  # fmt: skip
LONE = "\ud800"
VALUES = (
    None, True, -1, 10**400, 1e308, "\0", LONE, "x" * 5000, [LONE], {"a": LONE}, ["9" * 400], [2**63], "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59", "999999999999d",
)  # fmt: skip
WHOLE: dict[str, dict[str, Any]] = {
    "/api/tasks/redrive": {"reason": "x", "ids": [1]},
    "/api/tasks/cancel": {"reason": "x", "ids": [1]},
    "/api/tasks/cancel-running": {"reason": "x", "ids": [1]},
    "/api/effects/answer": {"reason": "x", "ids": [1], "answer": "happened"},
    "/api/tasks/resolve": {"reason": "x", "ids": [1], "state": "done"},
    "/api/preview": {"backoff": {"kind": "fixed", "wait": "10000d"}, "retries": 999},
    "/api/gates/pause": {"reason": "x", "gate": "a"},
    "/api/gates/resume": {"reason": "x", "gate": "a"},
    "/api/gates/set": {"reason": "x", "gate": "a", "rate": "5/s"},
    "/webhooks/redrive": {"reason": "x", "ids": ["a"]},
    "/webhooks/cancel": {"reason": "x", "event_type": "a"},
    "/v1/events": {"event_type": "a.b", "payload": {}},
}
"""What is otherwise right where one field is hostile, so that it is reached."""


@pytest.fixture
def store() -> str:
    """The stricter database of the two: what cannot be asked of it is a fault there."""
    return "postgres"


@pytest.fixture
async def client(empty_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Any]]]:
    """An admin of the whole service, and its description."""
    app = Redrive(empty_url, durable=False)
    attach_systems(app, SERVED)
    await migrate(app.database, SERVED)
    made = await SqlKeys(app.database).create("ada", ["admin"])
    service = Service(app, Settings(_env_file=None))
    service.is_open = True
    web = make_web(service)
    transport = httpx.ASGITransport(web, client=("192.0.2.7", 1), raise_app_exceptions=False)
    headers = {"X-API-Key": made.secret}
    async with httpx.AsyncClient(transport=transport, base_url="http://redrive.example", headers=headers) as client:
        yield client, web.openapi()
    await app.close()


def _resolve(schema: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _fields(schema: dict[str, Any], described: dict[str, Any]) -> Iterator[str]:
    schema = _resolve(schema, described)
    yield from schema.get("properties", ())
    for part in ("anyOf", "allOf", "oneOf"):
        for inner in schema.get(part, ()):
            yield from _fields(inner, described)


def _some(values: Sequence[Any], turn: int) -> Sequence[Any]:
    """A third of them in turn: many routes have the same parameters and fields. All, where all homes are asked for."""
    return values if WIDE else values[turn % 3 :: 3]


async def test_hostile_questions(client: tuple[httpx.AsyncClient, dict[str, Any]]):
    """Every parameter of every route that looks, in the query and in the path, with hostile values: never a 5xx."""
    asked, described = client
    faults, amount, turns = [], 0, itertools.count()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if method != "get":
                continue
            parameters = [one for one in operation.get("parameters", ()) if one["in"] in ("query", "path")]
            for parameter in parameters:
                for value in _some(HOSTILE, next(turns)):
                    at = path
                    for other in parameters:
                        if other["in"] == "path":
                            at = at.replace(
                                f"{{{other['name']}}}", quote(value if other is parameter else "1", safe="") or "%20"
                            )
                    query = {parameter["name"]: value} if parameter["in"] == "query" else {}
                    answer = await asked.get(at, params=query)
                    amount += 1
                    if answer.status_code >= 500:
                        faults.append((path, parameter["name"], value[:30], answer.status_code))
    assert amount > 300
    assert faults == []


async def test_hostile_bodies(client: tuple[httpx.AsyncClient, dict[str, Any]]):
    """Every field of every body, alone, with hostile values, and bodies that are nothing at all: never a 5xx."""
    asked, described = client
    faults, amount, turns = [], 0, itertools.count()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None:
                continue
            at = path.replace("{", "").replace("}", "")
            fields = set(_fields(content["schema"], described))
            bodies = [json.dumps(value) for value in _some(VALUES, next(turns))]
            needed = WHOLE.get(path, {"reason": "x", "ids": [1]} if "reason" in fields else {})
            bodies += [
                json.dumps({**needed, field: value}) for field in sorted(fields) for value in _some(VALUES, next(turns))
            ]
            for body in (*bodies, "", "{", '{"a": 1' + "0" * 5000 + "}", "[" * 5000, b"\xff\xfe"):
                answer = await asked.request(method, at, content=body, headers={"Content-Type": "application/json"})
                amount += 1
                if answer.status_code >= 500:
                    faults.append((method, path, body[:80], answer.status_code))
    assert amount > 300
    assert faults == []
