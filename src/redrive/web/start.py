"""The start page: what waits, what failed, what died, in every lane. Plain HTML that needs no script."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from redrive._version import __version__
from redrive.core.durations import format_duration
from redrive.core.failure import redact
from redrive.core.states import State
from redrive.core.task import Task
from redrive.http.errors import ApiError
from redrive.http.guard import require_unless_loopback
from redrive.lane import Lane
from redrive.ports import Where
from redrive.web.service import service_of
from redrive.wiring import Service

LATEST = 10
FRESH_SECONDS = 1.0
"""How long a look holds: however many look, the tables are asked this often."""
COUNTED_MAX = 100_000
STATIC = Path(__file__).parent / "static"
FILES = {"redrive.css": "text/css", "redrive.svg": "image/svg+xml"}
ORDER = (State.DEAD, State.WAITING, State.CLAIMED, State.DONE, State.CANCELLED)
"""What needs a person comes first."""
MEANING = {
    State.WAITING: "will be tried, now or later",
    State.CLAIMED: "runs now",
    State.DONE: "succeeded",
    State.DEAD: "failed for good: look at it and redrive it",
    State.CANCELLED: "ended by a person or a system",
}

router = APIRouter(tags=["pages"], include_in_schema=False)
templates = Environment(
    loader=PackageLoader("redrive.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """What the page shows of one lane."""

    name: str
    counts: dict[State, int]
    latest: dict[State, list[Task]]
    without_handler: list[str]
    oldest_due: str | None


class Views:
    """All lanes, looked at not more often than needed."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._seen: tuple[float, list[LaneView]] | None = None

    async def of(self, service: Service) -> list[LaneView]:
        """One view for each lane."""
        async with self._lock:
            if self._seen is None or time.monotonic() - self._seen[0] >= FRESH_SECONDS:
                views = [await _look(lane) for lane in service.app.lanes.values()]
                self._seen = (time.monotonic(), views)
            return self._seen[1]


async def _look(lane: Lane) -> LaneView:
    ledger = await lane.ledger()
    counts = await lane.counts(counted_max=COUNTED_MAX)
    latest = {}
    for state in ORDER:
        if counts.get(state):
            page = await lane.find(Where(state=state), limit=LATEST, newest_first=True)
            latest[state] = page.tasks
    kinds = await ledger.open_kinds() if lane.table.kind is not None else []
    known = set(lane.handlers.among(kinds))
    oldest = await ledger.oldest_due()
    return LaneView(
        name=lane.name,
        counts=counts,
        latest=latest,
        without_handler=[kind for kind in kinds if kind not in known],
        oldest_due=None if oldest is None or oldest.total_seconds() < 1 else format_duration(_whole(oldest)),
    )


@router.get("/", response_class=HTMLResponse, dependencies=[Depends(require_unless_loopback("viewer"))])
async def start(request: Request, refresh: Annotated[int | None, Query(ge=1, le=3600)] = None) -> HTMLResponse:
    """The page; with `?refresh=5` the browser asks again every five seconds."""
    service = service_of(request)
    views: Views = request.app.state.views
    shown = await views.of(service) if service.is_open else []
    now = datetime.now(UTC)
    page = templates.get_template("start.html").render(
        lanes=shown,
        is_open=service.is_open,
        has_handlers=any(len(lane.handlers) for lane in service.app.lanes.values()),
        service=service.settings.service_name,
        database=redact(service.app.database.url),
        order=ORDER,
        meaning=MEANING,
        counted_max=COUNTED_MAX,
        latest=LATEST,
        refresh=refresh,
        now=now,
        version=__version__,
        when=lambda instant: _when(instant, now),
        exactly=lambda instant: instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return HTMLResponse(page)


@router.get("/static/{name}")
async def static(name: str) -> FileResponse:
    """The style sheet and the icon."""
    if name not in FILES:
        raise ApiError(404, "not_found", f"there is nothing at /static/{name}")
    return FileResponse(STATIC / name, media_type=FILES[name], headers={"Cache-Control": "public, max-age=300"})


def _whole(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds()))


def _when(instant: datetime, now: datetime) -> str:
    span = _whole(instant - now)
    if not span:
        return "now"
    return f"in {format_duration(span)}" if span > timedelta(0) else f"{format_duration(-span)} ago"
