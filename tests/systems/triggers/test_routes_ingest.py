"""POST /v1/events is answered without the framework, and refuses in its words."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header

from redrive.http.errors import add_error_handlers
from redrive.systems.triggers.access import STYLE
from redrive.systems.triggers.routes.events import _fitting
from redrive.systems.triggers.shapes import EventIn, IdempotencyKey

UNFIT: list[tuple[Any, str | None]] = [
    ({}, None),
    (None, None),
    ([], None),
    (7, "k"),
    ("text", None),
    ({"event_type": "a"}, None),
    ({"event_type": 7, "payload": 1}, None),
    ({"event_type": "", "payload": 1}, "x" * 1000),
    ({"event_type": "order.created", "payload": 1, "more": 2}, None),
    ({"event_type": "order.created", "payload": 1}, ""),
    (None, ""),
]


@pytest.mark.parametrize(("body", "key"), UNFIT, ids=repr)
async def test_what_does_not_fit_is_put_as_the_framework_puts_it(body: Any, key: str | None) -> None:
    """Status, code, and every problem with its place, in the same order."""
    web = FastAPI()
    web.state.error_styles = [STYLE]
    add_error_handlers(web)

    @web.middleware("http")
    async def named(request: Any, following: Any) -> Any:
        request.state.request_id = "one"
        return await following(request)

    @web.post("/v1/framework")
    async def framework(
        event: EventIn, key: Annotated[IdempotencyKey | None, Header(alias="Idempotency-Key")] = None
    ) -> None: ...

    @web.post("/v1/lean")
    async def lean() -> None:
        _fitting(body, key)

    headers = {} if key is None else {"Idempotency-Key": key}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://here") as client:
        theirs, ours = [
            await client.post(path, headers=headers, json=body) if body is not None
            else await client.post(path, headers=headers | {"Content-Type": "application/json"}, content=b"null")
            for path in ("/v1/framework", "/v1/lean")
        ]  # fmt: skip
    assert theirs.status_code == ours.status_code == 400
    said = [{**answer.json()["error"], "timestamp": None} for answer in (theirs, ours)]
    assert said[0] == said[1]
    assert said[0]["details"]


def test_what_fits() -> None:
    """The event and the key as they were sent."""
    event, key = _fitting({"event_type": "order.created", "payload": None}, "k-1")
    assert (event.event_type, event.payload, key) == ("order.created", None, "k-1")
