"""Endpoints of all users: which of them get their events, which do not and since when, and switching them."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from redrive.http.panel import Panel, text_of, turns
from redrive.lane import Page
from redrive.systems.triggers.desk import PAGE, EndpointDesk
from redrive.systems.triggers.ledger import DELIVERIES
from redrive.systems.triggers.values import COUNTED_MAX, STATES, SeenEndpoint

ROWS = 50
USER_CHARS_MAX = 200
CURSOR_CHARS_MAX = 200


def make_panel(desk: EndpointDesk) -> Panel:
    """The page, over the desk that it shows."""

    async def content(request: Request) -> Mapping[str, Any]:
        """A page of endpoints; a state that there is none of is said above an empty list."""
        asked = {"user": text_of(request, "user", USER_CHARS_MAX), "state": text_of(request, "state", USER_CHARS_MAX)}
        cursor = text_of(request, "cursor", CURSOR_CHARS_MAX)
        state = next((one for one in STATES if one == asked["state"]), None)
        problem = None
        if asked["state"] is not None and state is None:
            problem = f"There is no state {asked['state']!r:.80}: choose from {', '.join(STATES)}."
            page: Page[SeenEndpoint] = Page(items=[])
        else:
            page = await desk.page(user=asked["user"], state=state, cursor=cursor, limit=ROWS)
        return {
            "asked": asked,
            "states": STATES,
            "problem": problem,
            "given_up": await desk.given_up(),
            "endpoints": page.items,
            "counted_max": COUNTED_MAX,
            "ledger": DELIVERIES,
            **turns(PAGE, asked, cursor=cursor, following=None if page.cursor is None else str(page.cursor)),
        }

    return Panel(title="Endpoints", template="triggers/page.html", content=content)
