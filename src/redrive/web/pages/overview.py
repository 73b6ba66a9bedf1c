"""The overview: what is broken, since when, and why. The page holds the numbers of its moment; a script keeps them fresh."""

from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.core.states import State
from redrive.http.panel import query_of
from redrive.web.api.overview import OWN_WORDS, TASKS, Range
from redrive.web.api.overview import overview as figures
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.service import service_of

ORDER = (State.DEAD, State.WAITING, State.CLAIMED, State.DONE, State.CANCELLED)
"""What needs a person comes first."""
MEANING = {
    State.WAITING: "will be tried, now or later",
    State.CLAIMED: "running now, or an event under delivery",
    State.DONE: "succeeded",
    State.DEAD: "failed for good: review and redrive",
    State.CANCELLED: "ended by a person or a system",
}
NOTHING: dict[str, Any] = {"states": {}, "by_ledger": [], "of": TASKS, "words": OWN_WORDS, "gates": []}

router = page_router()


@router.get("/", response_class=HTMLResponse)
async def overview(
    request: Request,
    visitor: Looker,
    ledger: Annotated[str, Query(max_length=200)] = "",
    range: Range = Range.HOUR,
) -> HTMLResponse:
    """The page."""
    service = service_of(request)
    numbers = await figures(request, ledger or None, range) if service.is_open else NOTHING
    by_ledger = numbers["by_ledger"]
    return render(
        request, "overview.html", visitor, title="Overview",
        ledger=ledger, ledgers=list(service.app.lanes), range=range, ranges=list(Range), order=ORDER, meaning=MEANING,
        states=numbers["states"], of=numbers["of"], words=numbers["words"], by_ledger=by_ledger,
        gates=numbers["gates"],
        places={state: _place(state.value, ledger, by_ledger) for state in State},
        without_handler=[kind for one in by_ledger for kind in one["without_handler"]],
        blocked=request.app.state.blocked_loops.said(),
        has_handlers=any(len(lane.handlers) for lane in service.app.lanes.values()),
    )  # fmt: skip


def _place(state: str, ledger: str, by_ledger: list[dict[str, Any]]) -> str:
    """Where a tile leads: to the tasks of the ledger that is looked at; of all, to the groups or to where most of them are."""
    if not ledger and state == State.DEAD:
        return "/dead"
    most = max(by_ledger, key=lambda one: one["states"][state], default=None)
    return query_of("/tasks", {"ledger": ledger or (most and most["ledger"]), "state": state})
