"""The systems on this application, their ledgers, and what each brings itself.

A system's own part of the page is a `Panel`: a template and what to fill it with. It is registered here under the system's
name; its buttons call the system's own routes, with the session's token, as `static/acts.js` does.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.core.failure import describe_error, redact
from redrive.lane import Lane
from redrive.system import System
from redrive.web.api.overview import Range
from redrive.web.api.overview import overview as figures
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.service import service_of

CHECKED_WITHIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A system's own part of the page."""

    template: str
    content: Callable[[System], Awaitable[Mapping[str, Any]]]
    scripts: tuple[str, ...] = ()
    """Modules in `static/` that it needs."""


PANELS: dict[str, Panel] = {}
"""By the name of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """What the page shows of one system."""

    name: str
    about: str
    lanes: Sequence[Mapping[str, Any]]
    checks: Mapping[str, bool] = field(default_factory=dict)
    panel: str | None = None
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


router = page_router()


@router.get("/systems", response_class=HTMLResponse)
async def systems(request: Request, visitor: Looker) -> HTMLResponse:
    """The page."""
    service = service_of(request)
    numbers = await figures(request, None, Range.HOUR) if service.is_open else {"by_ledger": []}
    lanes = [{**one, "kinds": _kinds(service.app.lanes[one["ledger"]])} for one in numbers["by_ledger"]]
    own = SystemView(
        name="redrive",
        about="Tasks of the application itself, and tables that it has adopted.",
        lanes=[lane for lane in lanes if lane["system"] is None],
    )
    others = await asyncio.gather(
        *(
            _view(system, [lane for lane in lanes if lane["system"] == system.name], is_open=service.is_open)
            for system in service.app.systems.values()
        )
    )
    shown = [own, *others]
    scripts = sorted({script for one in shown if one.panel for script in PANELS[one.name].scripts})
    return render(request, "systems.html", visitor, title="Systems", systems=shown, scripts=scripts)


async def _view(system: System, lanes: Sequence[Mapping[str, Any]], *, is_open: bool) -> SystemView:
    checks: Mapping[str, bool] = {}
    content: Mapping[str, Any] = {}
    problem: str | None = None
    panel = PANELS.get(system.name) if is_open else None
    try:
        async with asyncio.timeout(CHECKED_WITHIN_SECONDS):
            checks = await system.checks()
            content = await panel.content(system) if panel is not None else {}
    except Exception as error:  # one system that is in trouble must not hide the others
        problem, panel = redact(describe_error(error)), None
    about = (inspect.getdoc(type(system)) or "").partition("\n\n")[0].replace("\n", " ")
    return SystemView(
        name=system.name,
        about=about,
        lanes=lanes,
        checks=checks,
        panel=None if panel is None else panel.template,
        content=content,
        problem=problem,
    )


def _kinds(lane: Lane) -> list[str]:
    return [handler.kind for handler in lane.handlers]
