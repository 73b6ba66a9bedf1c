"""Operations: dead tasks brought back step by step, with a brake. Each act names who and why, and stands in the audit log.

Whoever starts one is answered at once, however many tasks match: its set is stored in the background, and `tasks.total` says how far that is.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field, model_validator

from redrive.access.keys import ApiKey
from redrive.core.edit import OPS_MAX
from redrive.core.operation import STEPS_MAX, Fate, OperationState
from redrive.errors import TransitionError, UsageError
from redrive.http.errors import ApiError, refusals
from redrive.http.guard import KeyFirstRoute, require
from redrive.lane import Lane
from redrive.operator.operation_views import (
    edit_json,
    failed_again_json,
    operation_json,
    plan_json,
    set_task_json,
    step_json,
)
from redrive.operator.operations import IDS_MAX, Operation
from redrive.ports import Filter
from redrive.web.api.acts import Ids, ReasonBody
from redrive.web.api.common import LOOKING, NO_LEDGER, FilterBody, app_of, in_time, lane_of
from redrive.web.service import service_of

PAGE_MAX = 200
FAILED_SHOWN = 20
CURSOR_CHARS_MAX = 1000
ID_CHARS_MAX = 64
STANDS_ELSEWHERE = {409: "The operation is in a state that does not allow this"}

router = APIRouter(
    prefix="/api/operations", route_class=KeyFirstRoute, tags=["operations"], responses=refusals(NO_LEDGER)
)
Operator = Annotated[ApiKey, Depends(require("operator"))]


class StartBody(ReasonBody):
    """Which dead tasks, and how they come back; without more, one first, then 5, 25, 100, then the rest."""

    ids: Ids | None = None
    filter: FilterBody | None = None
    steps: list[Annotated[int, Field(ge=1, le=1_000_000)]] | None = Field(
        default=None,
        max_length=STEPS_MAX,
        description="How many are released one after the other",
        examples=[[1, 5, 25]],
    )
    rate: str | None = Field(default=None, max_length=50, description="Never faster", examples=["20/s"])
    halt: float | None = Field(default=None, ge=0, le=1, description="It stops when a larger share fails again")
    all_now: bool = Field(default=False, description="Everything at once: no steps, no rate, no brake")
    patch: list[dict[str, Any]] | None = Field(
        default=None, max_length=OPS_MAX, description="A JSON Patch (RFC 6902) for each payload"
    )
    payload: Any = Field(default=None, description="A new payload for each task, if it is given")
    at_most: int | None = Field(
        default=None, ge=1, le=IDS_MAX, description="At most this many of those that match; the others stay dead"
    )
    dry_run: bool = Field(default=False, description="Only say what would be taken")

    @model_validator(mode="after")
    def _one_of_both(self) -> "StartBody":
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give either ids or a filter")
        return self

    def how(self, approval_over: int) -> dict[str, Any]:
        """All that is said beside which tasks, who and why."""
        given = {name: getattr(self, name) for name in ("steps", "rate", "halt", "all_now", "patch", "at_most")}
        if "payload" in self.model_fields_set:
            given["payload"] = self.payload
        return given | {"approval_over": approval_over}


class ChangeBody(ReasonBody):
    """What to change; what is not given stays."""

    rate: str | None = Field(default=None, max_length=50, examples=["5/s"])
    halt: float | None = Field(default=None, ge=0, le=1)


@router.get("", summary="A page of operations, the newest first", dependencies=LOOKING)
async def page(
    request: Request,
    ledger: Annotated[str | None, Query(description="Only those of this ledger", max_length=200)] = None,
    state: Annotated[OperationState | None, Query(description="Only operations in this state")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    cursor: Annotated[
        str | None, Query(description="Where the previous page ended", max_length=CURSOR_CHARS_MAX)
    ] = None,
) -> dict[str, Any]:
    """Those that ended are kept for 90 days."""
    store = app_of(request).store
    if ledger:
        lane_of(request, ledger)  # refuses what is none
    async with in_time():
        found = await store.operations.page(ledger=ledger or None, state=state, cursor=cursor or None, limit=limit)
    now = await store.present()
    return {"operations": [operation_json(one, now) for one in found.items], "cursor": found.cursor}


@router.post("", summary="Start an operation, or say what one would take")
async def start(request: Request, body: StartBody, key: Operator) -> dict[str, Any]:
    """With `dry_run` nothing is stored: the answer says how many match, of which kinds, how old, what they died of, and when each would be tried."""
    lane = lane_of(request, body.ledger)
    how = body.how(service_of(request).settings.redrive_approvals)
    which: Any = body.ids if body.filter is None else body.filter.filter()
    if isinstance(which, Filter) and which.until is not None:
        raise UsageError("an operation is frozen when it is started: leave until out")
    if body.dry_run:
        async with in_time():
            return plan_json(await lane.operations.plan(which, limited=True, **how))
    started = await lane.operations.start(which, actor=key.owner, reason=body.reason, **how)
    return operation_json(started, await app_of(request).store.present())


@router.get(
    "/{id}", summary="One operation: its steps, its brake, what it does next and why it stopped", dependencies=LOOKING
)
async def one(request: Request, id: str) -> dict[str, Any]:
    """`by_step` counts what became of the tasks of each step; `failed_tasks` are the last that failed again, each of the `same` cause as before or of a new one."""
    return await one_of(request, id)


async def one_of(request: Request, id: str) -> dict[str, Any]:
    """The same for the page that shows it."""
    lane, operation = await found_operation(request, id)
    operations = lane.operations
    async with in_time():
        steps = await operations.steps(id)
        failed = await operations.failed_again(id, limit=FAILED_SHOWN)
        pace = await operations.pace(id)
        skipped = await operations.skipped(operation)
    return operation_json(operation, await app_of(request).store.present(), pace) | {
        "by_step": [step_json(step) for step in steps],
        "failed_tasks": [failed_again_json(task) for task in failed],
        "skipped_because": dict(skipped),
    }


@router.get("/{id}/tasks", summary="A page of its set", dependencies=LOOKING)
async def tasks(
    request: Request,
    id: str,
    fate: Annotated[Fate | None, Query(description="Only tasks with this outcome")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    cursor: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> dict[str, Any]:
    """What was skipped, or left as it was because an edit does not fit it, says why."""
    lane, _ = await found_operation(request, id)
    async with in_time():
        found = await lane.operations.tasks(id, fate=fate, cursor=cursor, limit=limit)
    return {"tasks": [set_task_json(task) for task in found.items], "cursor": found.cursor}


@router.get(
    "/{id}/edits", summary="The payloads that it changed, as they were and as they are since", dependencies=LOOKING
)
async def edits(
    request: Request, id: str, limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50
) -> list[dict[str, Any]]:
    """The newest first, each with its difference."""
    lane, _ = await found_operation(request, id)
    return [edit_json(edited) for edited in await lane.operations.edits_of(id, limit=limit)]


@router.post(
    "/{id}/change", summary="Change the rate, or from which share on it stops", responses=refusals(STANDS_ELSEWHERE)
)
async def change(request: Request, id: str, body: ChangeBody, key: Operator) -> dict[str, Any]:
    """From the next round on."""
    lane, _ = await found_operation(request, id)
    changed = await lane.operations.change(id, actor=key.owner, reason=body.reason, rate=body.rate, halt=body.halt)
    return operation_json(changed, await app_of(request).store.present())


@router.post(
    "/{id}/{act}",
    summary="Pause, resume, halt or approve it, or give the rest back",
    responses=refusals(STANDS_ELSEWHERE),
)
async def act(
    request: Request,
    id: str,
    act: Literal["pause", "resume", "halt", "give-back", "approve"],
    body: ReasonBody,
    key: Operator,
) -> dict[str, Any]:
    """What is out runs on in any case. Only somebody else than who started it may approve it."""
    lane, _ = await found_operation(request, id)
    operations = lane.operations
    does = {
        "pause": operations.pause, "resume": operations.resume, "halt": operations.halt,
        "give-back": operations.give_back, "approve": operations.approve,
    }[act]  # fmt: skip
    try:
        changed = await does(id, actor=key.owner, reason=body.reason)
    except TransitionError as error:
        raise ApiError(409, "stands_elsewhere", str(error)) from None
    return operation_json(changed, await app_of(request).store.present())


async def found_operation(request: Request, id: str) -> tuple[Lane, Operation]:
    """The operation with this id and its lane; 404 where there is none."""
    app = app_of(request)
    operation = await app.store.operations.get(id) if len(id) <= ID_CHARS_MAX and "\0" not in id else None
    if operation is None or operation.ledger not in app.lanes:
        raise ApiError(404, "operation_unknown", f"there is no operation {id!r:.80}")
    return app.lanes[operation.ledger], operation
