"""Manual review: the messages whose retries are spent, one of them with its payload, and what a person may do with them."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from fastapi import Request

from redrive.errors import TooSlowError
from redrive.extend import System
from redrive.http.errors import ApiError
from redrive.http.panel import Panel, query_of

if TYPE_CHECKING:
    from redrive.systems.relay import Relay
    from redrive.systems.relay.desk import Waiting

HERE = "/systems/relay"
PAGE = 50
TEXT_CHARS_MAX = 500
BUSY = "The database needed too long for this look. Try again in a moment."


async def content(request: Request, system: System) -> Mapping[str, Any]:
    """A page of messages, or the one that is asked for."""
    relay = cast("Relay", system)
    broker = all((await relay.checks()).values())
    asked = {name: _text(request, name) for name in ("queue", "error", "message_id")}
    if request.query_params.get("message"):
        return {"broker": broker, "one": await _one(relay, request), "back": query_of(HERE, asked)}
    return {"broker": broker, "one": None, **await _page(relay, request, asked)}


async def _one(relay: "Relay", request: Request) -> Mapping[str, Any]:
    from redrive.systems.relay.routes import one_json

    row = await relay.review.get(_number(request, "message") or 0)
    if row is None:
        raise ApiError(404, "message_unknown", "There is no such message in the relay's table.")
    said = one_json(row)
    return said | {"headers": json.dumps(said["headers"], indent=2, ensure_ascii=False) if said["headers"] else None}


async def _page(relay: "Relay", request: Request, asked: Mapping[str, str | None]) -> Mapping[str, Any]:
    from redrive.systems.relay.desk import COUNTED_MAX, Asked
    from redrive.systems.relay.routes import TOO_SLOW, message_json

    which = Asked(queue=asked["queue"], error=asked["error"], message_id=asked["message_id"])
    cursor, problem = _number(request, "cursor"), None
    waiting: Waiting | None = None
    try:
        waiting = await relay.review.waiting()
        rows, following = await relay.review.page(which, before=cursor, limit=PAGE)
    except TooSlowError:
        rows, following = [], None
        problem = BUSY if waiting is None or which.error is None else f"{TOO_SLOW[:1].upper()}{TOO_SLOW[1:]}."
    return {
        "waiting": waiting,
        "counted_max": COUNTED_MAX,
        "asked": asked,
        "filter": {name: value for name, value in asked.items() if value},
        "messages": [message_json(row) for row in rows],
        "problem": problem,
        "first_page": query_of(HERE, asked) if cursor is not None else None,
        "next_page": query_of(HERE, {**asked, "cursor": following}) if following is not None else None,
        "path_of": lambda id_: query_of(HERE, {**asked, "message": id_}),
    }


def _text(request: Request, name: str) -> str | None:
    return request.query_params.get(name, "").replace("\0", "")[:TEXT_CHARS_MAX] or None


def _number(request: Request, name: str) -> int | None:
    """The number in the query; None where there is none that a row could have."""
    given = request.query_params.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else None


PANEL = Panel(title="Manual review", template="relay/page.html", content=content)
