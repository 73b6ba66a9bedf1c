"""What people do to tasks: redrive, cancel, resolve. Each act names who and why, and stands in the audit log.

The number shown before is the number acted on: a dry run counts and says `until` when, and the act with that `until` takes
only what was there then. Two who press at once act once: the ledger changes only rows that still are in the right state.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field, model_validator

from redrive.access.keys import ApiKey
from redrive.core.states import Act, State
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.http.errors import refusals
from redrive.http.guard import KeyFirstRoute, require
from redrive.http.reason import Reason
from redrive.http.shape import Body, WellFormed
from redrive.lane import Lane
from redrive.operator.acts import Acted
from redrive.operator.json_views import instant_json
from redrive.operator.names import read_names
from redrive.ports import Actor, Filter
from redrive.web.api.common import NO_LEDGER, FilterBody, in_time, lane_of

IDS_MAX = 1000
NAMED_MAX = 5
"""Names that one refusal speaks of."""
ACT_WITHIN = timedelta(seconds=8)
"""An act that takes longer stops between two pages and says that it is not complete: send it again with its `until`."""

router = APIRouter(prefix="/api/tasks", route_class=KeyFirstRoute, tags=["acts"], responses=refusals(NO_LEDGER))
Operator = Annotated[ApiKey, Depends(require("operator"))]

Ids = Annotated[
    list[int | WellFormed],
    Field(min_length=1, max_length=IDS_MAX, description="The tasks, each by its id or by its key"),
]


class ReasonBody(Body):
    """Where, and why."""

    ledger: str | None = Field(default=None, max_length=200, description="The ledger; by default redrive's own")
    reason: Reason


class ActBody(ReasonBody):
    """Which tasks: by ids and keys, or by a filter."""

    ids: Ids | None = None
    filter: FilterBody | None = None
    dry_run: bool = Field(default=False, description="Only count")
    at_most: int | None = Field(default=None, ge=0, description="Never more than this: the number that was shown")

    @model_validator(mode="after")
    def _one_of_both(self) -> "ActBody":
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give either ids or a filter")
        return self


class NamedBody(ReasonBody):
    """Which tasks, one by one."""

    ids: Ids


class ResolveBody(ActBody):
    """Which dead tasks end how."""

    state: Literal["done", "cancelled"]


@router.post("/redrive", summary="Send dead tasks back to waiting, due now, with a fresh budget")
async def redrive(request: Request, body: ActBody, key: Operator) -> dict[str, Any]:
    """Their history stays."""
    return await _act(request, Act.REDRIVE, State.WAITING, body, key)


@router.post("/cancel", summary="End waiting tasks as cancelled")
async def cancel(request: Request, body: ActBody, key: Operator) -> dict[str, Any]:
    """What runs is not touched."""
    return await _act(request, Act.CANCEL, State.CANCELLED, body, key)


@router.post("/cancel-running", summary="Have tasks that run cancelled by the workers that hold them")
async def cancel_running(request: Request, body: NamedBody, key: Operator) -> dict[str, Any]:
    """Handlers are cancelled at their next await, threads are told. `changed` says how many were asked; each ends as cancelled, or as what it was if it ended first."""
    lane = lane_of(request, body.ledger)
    acted = await lane.cancel_running(await named_ids(lane, body.ids), actor=key.owner, reason=body.reason)
    return {"matched": len(body.ids), "changed": len(acted.changed), "refused": refused_of(acted)}


@router.post("/resolve", summary="End dead tasks as done or cancelled, because a person has dealt with them")
async def resolve(request: Request, body: ResolveBody, key: Operator) -> dict[str, Any]:
    """Says how many changed; tasks that are no longer dead do not."""
    return await _act(request, Act.RESOLVE, State(body.state), body, key)


async def _act(request: Request, act: Act, end: State, body: ActBody, key: ApiKey) -> dict[str, Any]:
    lane = lane_of(request, body.ledger)
    asked = Filter(ids=await named_ids(lane, body.ids)) if body.filter is None else body.filter.filter()
    acts, actor = await lane.acts(limited=True), Actor(name=key.owner, reason=body.reason)
    async with in_time():
        acted = await acts.act(act, end, asked, actor, dry_run=body.dry_run, at_most=body.at_most, within=ACT_WITHIN)
    if acted.changed:
        await lane.count_soon()
    return {
        "matched": acted.matched,
        "changed": len(acted.changed),
        "refused": refused_of(acted),
        "until": instant_json(acted.until),
        "complete": acted.complete,
    }


async def named_ids(lane: Lane, given: Sequence[int | str] | None) -> list[TaskId]:
    """The ids that are meant. A text that means no task, or two, is a mistake, and nothing is done at all."""
    ids, refused = await read_names(await lane.ledger(), given or ())
    if refused:
        raise UsageError("; ".join([*refused.values()][:NAMED_MAX]))
    return ids


def refused_of(acted: Acted) -> dict[str, str]:
    """Why some were left alone, by their ids."""
    return {str(id_): reason for id_, reason in [*acted.refused.items()][:IDS_MAX]}
