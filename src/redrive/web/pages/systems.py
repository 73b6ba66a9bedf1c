"""The systems on this application: all of them with their ledgers and what they depend on, and a page of each.

What a system shows on its page is the `Panel` that its `panel` method returns: a template and what to fill it with. Its buttons
call the system's own routes, with the session's token, through `static/panel.js`.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.core.failure import describe_error, redact
from redrive.http.errors import ApiError
from redrive.http.panel import query_of
from redrive.lane import Lane
from redrive.system import System
from redrive.web.api.overview import Range
from redrive.web.api.overview import overview as figures
from redrive.web.pages.charts import charts_of
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.service import service_of

CHECKED_WITHIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """What the page shows of one system."""

    name: str
    about: str
    lanes: Sequence[Mapping[str, Any]]
    checks: Mapping[str, bool] = field(default_factory=dict)
    page: str | None = None
    """The title of its own page, if it has one."""
    problem: str | None = None


OWN = "redrive"
"""The name of the application's own part, beside the systems."""

router = page_router()


@router.get("/systems", response_class=HTMLResponse)
async def systems(request: Request, visitor: Looker) -> HTMLResponse:
    """All of them."""
    lanes = await _lanes(request)
    own = SystemView(
        name=OWN,
        about="Tasks of the application itself, and tables that it has adopted.",
        lanes=[lane for lane in lanes if lane["system"] is None],
    )
    others = await asyncio.gather(*(_view(system, lanes) for system in service_of(request).app.systems.values()))
    return render(request, "systems.html", visitor, title="Systems", systems=[own, *others])


@router.get("/systems/{name}", response_class=HTMLResponse)
async def one_system(request: Request, visitor: Looker, name: str, range: Range = Range.HOUR) -> HTMLResponse:
    """One, with what it shows of its own; charts where it counts something else than tasks, such as events."""
    system = service_of(request).app.systems.get(name)
    panel = None if system is None else system.panel()
    if system is None or panel is None:
        raise ApiError(404, "system_unknown", "There is no page of such a system here.")
    view = await _view(system, await _lanes(request))
    counted = [
        lane for lane in (getattr(system, "lane", None),) if isinstance(lane, Lane) and lane.headcount is not None
    ]
    charts = await charts_of(request, counted[0].name, range) if counted and service_of(request).is_open else []
    content = await panel.content(request) if service_of(request).is_open else None
    return render(
        request, "system.html", visitor, title=panel.title, here="/systems", system=view,
        panel=None if content is None else panel.template, content=content or {}, charts=charts,
        ranges=[(one.value, query_of(f"/systems/{name}", {"range": one.value}), one is range) for one in Range],
    )  # fmt: skip


async def _lanes(request: Request) -> list[dict[str, Any]]:
    service = service_of(request)
    numbers = await figures(request, None, Range.HOUR) if service.is_open else {"by_ledger": []}
    return [{**one, "kinds": _kinds(service.app.lanes[one["ledger"]])} for one in numbers["by_ledger"]]


async def _view(system: System, lanes: Sequence[Mapping[str, Any]]) -> SystemView:
    checks: Mapping[str, bool] = {}
    problem: str | None = None
    try:
        async with asyncio.timeout(CHECKED_WITHIN_SECONDS):
            checks = await system.checks()
    except Exception as error:  # one system that is in trouble must not hide the others
        problem = redact(describe_error(error))
    about = (inspect.getdoc(type(system)) or "").partition("\n\n")[0].replace("\n", " ")
    panel = system.panel()
    return SystemView(
        name=system.name,
        about=about,
        lanes=[lane for lane in lanes if lane["system"] == system.name],
        checks=checks,
        page=None if panel is None else panel.title,
        problem=problem,
    )


def _kinds(lane: Lane) -> list[str]:
    return [handler.kind for handler in lane.handlers]
