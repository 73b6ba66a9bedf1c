"""The list of tasks of a ledger, or of all of them: filters, pages, and what to act on. What it shows comes from the API's own functions."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.core.pauses import pausing
from redrive.core.states import State
from redrive.errors import TooSlowError, UsageError
from redrive.http.errors import ApiError
from redrive.http.panel import turns
from redrive.lane import Lane
from redrive.operator.asked import read_filter
from redrive.web.api.common import lanes_of
from redrive.web.api.tasks import named_in, page_of
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.markup import instant_of
from redrive.web.service import service_of

KINDS_SUGGESTED_MAX = 100
HOLDING_MAX = 20
"""Gates that keep tasks back, so many of a ledger; a task behind another one is shown as waiting."""
STATES = tuple(state.value for state in (State.DEAD, State.WAITING, State.CLAIMED, State.DONE, State.CANCELLED))

WORDS = {
    "state": "{}",
    "kind": "kind {}",
    "key": "key {}",
    "error": "error contains “{}”",
    "cause": "cause {}",
    "older_than": "not changed for {}",
}
"""What can be asked for here, in words."""

router = page_router()

Text = Annotated[str, Query(max_length=1000)]


@router.get("/tasks", response_class=HTMLResponse)
async def tasks(
    request: Request,
    visitor: Looker,
    ledger: Text = "",
    state: Text = "",
    kind: Text = "",
    error: Text = "",
    cause: Text = "",
    key: Text = "",
    older_than: Text = "",
    text: Text = "",
    newest_first: Annotated[bool | None, Query()] = None,
    cursor: Text = "",
) -> HTMLResponse:
    """The page. A filter that cannot be used, or that no index serves, is said above an empty list.

    With a `text` it shows at once the tasks that have it as their id or key; a script then looks through all that is stored.
    """
    lanes = lanes_of(request, ledger)
    given = (state, kind, key, error, cause, older_than)
    asked = {name: said.strip() for name, said in zip(WORDS, given, strict=True) if said.strip()}
    # What waits is read from what is due next, all else from what happened last.
    newest = newest_first if newest_first is not None else state != State.WAITING
    sought = text.strip()
    found: dict[str, Any]
    problem: str | None
    if sought:
        found, problem = {"tasks": await named_in(lanes, sought), "cursor": None}, None
    else:
        found, problem = await _found(lanes, asked, cursor, newest_first=newest)
    await _mark_parked(lanes, found["tasks"])
    place = {"ledger": ledger, **asked, "newest_first": None if newest_first is None else str(newest).lower()}
    kinds = [handler.kind for lane in lanes for handler in lane.handlers if not handler.is_pattern]
    ends = [lane.name for lane in lanes if lane.table.words.cancelled is not None]  # others have no such end
    names = list(service_of(request).app.lanes)
    return render(
        request, "tasks.html", visitor, title="Tasks",
        ledger=ledger, ledgers=names, with_ledger=not ledger and len(names) > 1, states=STATES, asked={name: asked.get(name) for name in WORDS},
        kinds=list(dict.fromkeys(kinds))[:KINDS_SUGGESTED_MAX], text=sought,
        acts_in={"redrive": [lane.name for lane in lanes], "cancel": ends},
        tasks=found["tasks"], problem=problem, words=_words(asked), filter=asked, newest_first=newest,
        **turns("/tasks", place, cursor=cursor or None, following=found["cursor"]),
    )  # fmt: skip


async def _found(
    lanes: Sequence[Lane], asked: dict[str, str], cursor: str, *, newest_first: bool
) -> tuple[dict[str, Any], str | None]:
    try:
        return await page_of(lanes, read_filter(**asked), cursor=cursor, newest_first=newest_first), None
    except ApiError as refused:
        if refused.status >= 500:
            raise
        said = refused.message
    except UsageError as refused:
        said = str(refused)
    return {"tasks": [], "cursor": None}, _sentence(said)


async def _mark_parked(lanes: Sequence[Lane], tasks: Sequence[dict[str, Any]]) -> None:
    """Write beside each task what keeps it back, if anything does: one look for each ledger, however many tasks."""
    for task in tasks:
        task["parked"] = None
    for lane in lanes:
        waiting = [one for one in tasks if one["ledger"] == lane.name and one["state"] == State.WAITING]
        held = []
        if waiting:
            with suppress(UsageError, TooSlowError):  # it has no gates; or they cannot be told now, and all else can
                held = await (await lane.gate_reader(limited=True)).holding(limit=HOLDING_MAX)
        views = {view.name: view for view in held}
        for task in waiting if views else ():
            by = views.get(task["gate"] or "") or views.get(pausing(views, task["kind"]) or "")
            if by is not None and (task["due_at"] is None or instant_of(task["due_at"]) <= by.at):
                task["parked"] = {"by": by.name, "title": by.title}


def _sentence(said: str) -> str:
    return f"{said[:1].upper()}{said[1:]}."


def _words(asked: dict[str, str]) -> str:
    """The filter in words, for the head of the page and for the question before an act."""
    return ", ".join(words.format(asked[name]) for name, words in WORDS.items() if name in asked)
