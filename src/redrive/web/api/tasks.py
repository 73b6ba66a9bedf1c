"""Pages of tasks, and one task with all that is known of it."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from redrive.core.states import State
from redrive.core.task import KEY_CHARS_MAX, KIND_CHARS_MAX, Task
from redrive.errors import UsageError
from redrive.http.errors import ApiError
from redrive.http.guard import KeyFirstRoute
from redrive.lane import Lane
from redrive.operator.asked import CAUSE_CHARS_MAX, TEXT_CHARS_MAX, read_filter
from redrive.operator.effects import effect_json, progress_json
from redrive.operator.json_views import attempt_json, deed_json, instant_json, parked_json
from redrive.operator.merged_pages import merged_page
from redrive.operator.names import find_meant, find_named
from redrive.operator.operation_views import edit_json
from redrive.ports import Filter
from redrive.web.api.common import LOOKING, in_time, lane_of, lanes_of, shown

PAGE_DEFAULT = 50
PAGE_MAX = 500
ATTEMPTS_MAX = 500
"""Of a longer history the latest are shown."""

router = APIRouter(prefix="/api/tasks", route_class=KeyFirstRoute, tags=["tasks"], dependencies=LOOKING)


@router.get("", summary="A page of tasks")
async def page(
    request: Request,
    ledger: Annotated[str | None, Query(description="One ledger; by default all", max_length=200)] = None,
    state: Annotated[State | None, Query()] = None,
    kind: Annotated[str | None, Query(max_length=KIND_CHARS_MAX)] = None,
    error: Annotated[str | None, Query(description="Part of the last error", max_length=TEXT_CHARS_MAX)] = None,
    cause: Annotated[
        str | None, Query(description="A failure cause, as groups name it", max_length=CAUSE_CHARS_MAX)
    ] = None,
    key: Annotated[str | None, Query(max_length=KEY_CHARS_MAX)] = None,
    older_than: Annotated[str | None, Query(description="Not changed for this long: 90, 5m, 2h", max_length=50)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
    cursor: Annotated[str | None, Query(description="Where the previous page ended", max_length=1000)] = None,
    newest_first: Annotated[bool, Query()] = False,  # noqa: FBT002
) -> dict[str, Any]:
    """In the order of the instant that matters: when tasks are due, when leases end, when tasks ended; without a state by id.

    A filter that no index serves is refused with `needs_search` after two seconds, never waited for.
    """
    asked = read_filter(state=state, kind=kind, error=error, cause=cause, key=key, older_than=older_than)
    return await page_of(lanes_of(request, ledger), asked, cursor=cursor, limit=limit, newest_first=newest_first)


async def page_of(
    lanes: Sequence[Lane], asked: Filter, *, cursor: str | None, limit: int = PAGE_DEFAULT, newest_first: bool
) -> dict[str, Any]:
    """The same for the page that shows it."""
    async with in_time():
        pages = {lane.name: await lane.pages() for lane in lanes}
        if len(lanes) > 1:
            merged = await merged_page(pages, asked, cursor=cursor or None, limit=limit, newest_first=newest_first)
            return {"tasks": [shown(one.task, one.ledger) for one in merged.items], "cursor": merged.cursor}
        [(name, only)] = pages.items()
        found = await only.page(asked, cursor=cursor or None, limit=limit, newest_first=newest_first)
    return {"tasks": [shown(task, name) for task in found.items], "cursor": found.cursor}


@router.get("/{ledger}/{id:path}", summary="One task: its row, history, who acted on it, and its tries to come")
async def one(request: Request, ledger: str, id: str) -> dict[str, Any]:
    """By its id or its key. `preview` holds the exact times of the tries to come if each fails; empty where no handler is known here.

    `effect` is what is known of what it does outside, where its handler has an effect; `progress` how far its tries have come. `edits` are the payloads that operations have changed, as they were and as they are since. `parked` says what keeps it back, if anything does: its gate or the pause of its kind. Then the tries begin at the earliest that this allows.
    """
    lane = lane_of(request, ledger)
    task = await find_task(lane, id)
    attempts = await lane.attempts(task.id)
    parked = await lane.parked(task)
    to_come = lane.to_come(task, parked=parked)
    mark = await lane.effect(task.id)
    return {
        "task": shown(task, lane.name, payload=True),
        "attempts": [attempt_json(attempt) for attempt in attempts[-ATTEMPTS_MAX:]],
        "attempts_before": max(0, len(attempts) - ATTEMPTS_MAX),
        "deeds": [deed_json(deed) for deed in (await lane.deeds(task.id))[-ATTEMPTS_MAX:]],
        "has_handler": to_come is not None,
        "preview": [{"number": one.number, "at": instant_json(one.at)} for one in to_come or ()],
        "parked": parked_json(parked),
        "effect": None if mark is None else effect_json(lane.name, task, mark),
        "progress": progress_json(await lane.progress(task.id)),
        "edits": [edit_json(edited) for edited in await lane.operations.edits(task.id)],
    }


async def find_task(lane: Lane, name: str) -> Task:
    """The task with this id, or else with this key; 404 if there is none.

    Links name ids, so an id goes first: whoever adds tasks may choose a key that looks like one.
    """
    ledger = await lane.ledger()
    with suppress(UsageError):  # no id of this table could look so
        if (task := await lane.get_by_id(ledger.read_id(name))) is not None:
            return task
    task = await find_named(ledger, name)
    if task is None:
        raise ApiError(404, "task_unknown", f"there is no task {name!r:.80} in {lane.name!r}")
    return task


async def named_in(lanes: Sequence[Lane], name: str) -> list[dict[str, Any]]:
    """The tasks that have this name as their id or their key, in whichever ledger."""
    found: list[dict[str, Any]] = []
    for lane in lanes:
        ledger = await lane.ledger()
        for id_ in sorted((await find_meant(ledger, [name]))[name], key=str):
            if (task := await ledger.get(id_)) is not None:
                found.append(shown(task, lane.name))
    return found
