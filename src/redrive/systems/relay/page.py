"""Manual review: the messages whose retries are spent, one of them with its payload, and what a person may do with them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request

from redrive.errors import TooSlowError
from redrive.http.errors import ApiError
from redrive.http.panel import Panel, query_of, text_of, turns
from redrive.lane import Page
from redrive.systems.relay.desk import COUNTED_MAX, TOO_SLOW, Asked, ReviewDesk, Waiting
from redrive.systems.relay.shapes import message_of, one_of

HERE = "/systems/relay"
PAGE = 50
TEXT_CHARS_MAX = 500
BUSY = "The database took too long to answer. Try again in a moment."


def make_panel(desk: ReviewDesk, is_connected: Callable[[], bool]) -> Panel:
    """The page, over the desk and whether the broker is there."""

    async def content(request: Request) -> Mapping[str, Any]:
        """A page of messages, or the one that is asked for."""
        asked = {name: text_of(request, name, TEXT_CHARS_MAX, strip=False) for name in ("queue", "error", "message_id")}
        asked_for_one = request.query_params.get("message")
        shown = await (_one(desk, request, asked) if asked_for_one else _page(desk, request, asked))
        return {"broker": is_connected(), **shown}

    return Panel(title="Manual review", template="relay/page.html", content=content)


async def _one(desk: ReviewDesk, request: Request, asked: Mapping[str, str | None]) -> Mapping[str, Any]:
    row = await desk.get(_number(request, "message") or 0)
    if row is None:
        raise ApiError(404, "message_unknown", "There is no such message in the relay's table.")
    one = one_of(row)
    headers = json.dumps(one.headers, indent=2, ensure_ascii=False) if one.headers else None
    return {"one": one, "headers": headers, "back": query_of(HERE, asked)}


async def _page(desk: ReviewDesk, request: Request, asked: Mapping[str, str | None]) -> Mapping[str, Any]:
    which = Asked(queue=asked["queue"], error=asked["error"], message_id=asked["message_id"])
    cursor, problem = _number(request, "cursor"), None
    waiting: Waiting | None = None
    try:
        waiting = await desk.waiting()
        page = await desk.page(which, before=cursor, limit=PAGE)
    except TooSlowError:
        page = Page(items=[])
        problem = BUSY if waiting is None or which.error is None else f"{TOO_SLOW[:1].upper()}{TOO_SLOW[1:]}."
    return {
        "one": None,
        "waiting": waiting,
        "counted_max": COUNTED_MAX,
        "asked": asked,
        "filter": {name: value for name, value in asked.items() if value},
        "messages": [message_of(row) for row in page.items],
        "problem": problem,
        **turns(HERE, asked, cursor=cursor, following=page.cursor),
        "path_of": lambda id_: query_of(HERE, {**asked, "message": id_}),
    }


def _number(request: Request, name: str) -> int | None:
    """The number in the query; None where there is none that a row could have."""
    given = request.query_params.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else None
