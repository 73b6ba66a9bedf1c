"""What the routes of the operator API share: the lane that is meant, filters, and the words for what takes too long."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BeforeValidator, Field

from redrive.app import Redrive
from redrive.core.durations import parse_duration
from redrive.core.states import State
from redrive.core.task import KEY_CHARS_MAX, KIND_CHARS_MAX, Task
from redrive.errors import TooSlowError
from redrive.http.errors import ApiError
from redrive.http.guard import require_unless_loopback
from redrive.http.shape import Body, InstantAt
from redrive.lane import Lane
from redrive.operator.asked import CAUSE_CHARS_MAX, TEXT_CHARS_MAX, read_filter
from redrive.operator.json_views import task_json
from redrive.ports import Filter
from redrive.web.service import service_of

NO_LEDGER = {404: "There is no such ledger, task or search"}
LOOKING = [Depends(require_unless_loopback("viewer"))]


Span = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    Field(description="Seconds, or with a unit: 90, 5m, 2h", examples=["2h"]),
]


class FilterBody(Body):
    """Which tasks; all conditions must hold."""

    state: State | None = None
    kind: str | None = Field(default=None, max_length=KIND_CHARS_MAX)
    error: str | None = Field(default=None, max_length=TEXT_CHARS_MAX, description="Part of the last error")
    cause: str | None = Field(
        default=None, max_length=CAUSE_CHARS_MAX, description="A failure cause, as groups name it"
    )
    key: str | None = Field(default=None, max_length=KEY_CHARS_MAX)
    older_than: Span | None = Field(default=None, description="Only tasks that have not changed for this long")
    until: InstantAt | None = Field(
        default=None, description="Only tasks that were in this state at this instant already"
    )

    def filter(self) -> Filter:
        """The same for the ledger."""
        return read_filter(**{name: getattr(self, name) for name in type(self).model_fields})


def app_of(request: Request) -> Redrive:
    """The application; 503 while its store is not open yet."""
    service = service_of(request)
    if not service.is_open:
        raise ApiError(503, "not_open", "the database is not open yet: try again", headers={"Retry-After": "2"})
    return service.app


def lane_of(request: Request, ledger: str | None) -> Lane:
    """The lane of this name; without one the first, which is redrive's own where the store keeps its tasks."""
    app = app_of(request)
    lane = app.lanes.get(ledger) if ledger else next(iter(app.lanes.values()), None)
    if lane is None:
        raise ApiError(
            404, "ledger_unknown", f"there is no ledger {ledger!r:.80}", details={"ledgers": list(app.lanes)}
        )
    return lane


async def without_handler(lane: Lane) -> list[str]:
    """The kinds of a ledger that wait or are held, and that no handler here knows."""
    kinds = await (await lane.ledger()).open_kinds()
    known = set(lane.handlers.among(kinds))
    return [kind for kind in kinds if kind not in known]


def lanes_of(request: Request, ledger: str | None) -> list[Lane]:
    """The lane of this name; all of them without one."""
    return [lane_of(request, ledger)] if ledger else list(app_of(request).lanes.values())


def system_names(app: Redrive) -> Mapping[str, str]:
    """Which system works on which ledger."""
    lanes = {name: getattr(system, "lane", None) for name, system in app.systems.items()}
    return {lane.name: name for name, lane in lanes.items() if isinstance(lane, Lane)}


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Turn a look that took too long into a refusal that says what to do instead."""
    try:
        yield
    except TooSlowError:
        raise ApiError(
            422, "needs_search", "no index of this table serves that filter: narrow it down, or search in the background",
            details={"search": "/api/searches"},
        ) from None  # fmt: skip


def shown(task: Task, ledger: str, *, payload: bool = False) -> dict[str, Any]:
    """A task as the API shows it."""
    return task_json(task, payload=payload) | {"ledger": ledger}
