"""What people do to tasks: redrive, cancel, resolve. Each act names who and why, and stands in the audit log.

The number shown before is the number acted on: a dry run counts and says `until` when, and the act with that `until` takes
only what was there then. Two who press at once act once: the ledger changes only rows that still are in the right state.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field, model_validator

from redrive.access.keys import ApiKey
from redrive.core.states import Act, State
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.http.guard import require
from redrive.http.reason import Reason
from redrive.lane import Lane
from redrive.operator.json_views import instant_json
from redrive.operator.pages import Browser, Filter
from redrive.ports import Where
from redrive.web.api.common import Body, FilterBody, in_time, lane_of

IDS_MAX = 1000
PAGE = 500
ACT_WITHIN_SECONDS = 8.0
"""An act that takes longer stops between two pages and says that it is not complete: send it again with its `until`."""

router = APIRouter(prefix="/api/tasks", tags=["acts"])
Operator = Annotated[ApiKey, Depends(require("operator"))]

Ids = Annotated[list[int | str], Field(min_length=1, max_length=IDS_MAX)]


class ReasonBody(Body):
    """Where, and why."""

    ledger: str | None = Field(default=None, max_length=200, description="The ledger; redrive's own without it")
    reason: Reason


class ActBody(ReasonBody):
    """Which tasks: by ids or by a filter."""

    ids: Ids | None = None
    filter: FilterBody | None = None
    dry_run: bool = Field(default=False, description="Only count")
    at_most: int | None = Field(default=None, ge=0, description="With a filter: the number that was shown, never more")

    @model_validator(mode="after")
    def _one_of_both(self) -> "ActBody":
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give either ids or a filter")
        return self


class ResolveBody(ReasonBody):
    """Which dead tasks end how."""

    ids: Ids
    state: Literal["done", "cancelled"]


@router.post("/redrive", summary="Send dead tasks back to waiting, due now, with a fresh budget")
async def redrive(request: Request, body: ActBody, key: Operator) -> dict[str, Any]:
    """Their history stays."""
    return await _act(request, Act.REDRIVE, State.DEAD, body, key)


@router.post("/cancel", summary="End waiting tasks as cancelled")
async def cancel(request: Request, body: ActBody, key: Operator) -> dict[str, Any]:
    """What runs is not touched."""
    return await _act(request, Act.CANCEL, State.WAITING, body, key)


@router.post("/resolve", summary="End dead tasks as done or cancelled, because a person has dealt with them")
async def resolve(request: Request, body: ResolveBody, key: Operator) -> dict[str, Any]:
    """Answers how many changed; those that are not dead any more do not."""
    lane = lane_of(request, body.ledger)
    ids = await _read_ids(lane, body.ids)
    state = State(body.state)
    if state is State.CANCELLED and lane.table.words.cancelled is None:
        raise UsageError(f"{lane.name!r} has no word for cancelled: resolve as done")
    changed = await lane.resolve(ids, state, actor=key.owner, reason=body.reason)
    if changed:
        await lane.count_soon()
    return {"matched": len(ids), "changed": len(changed)}


async def _act(request: Request, act: Act, before: State, body: ActBody, key: ApiKey) -> dict[str, Any]:
    lane = lane_of(request, body.ledger)
    if act is Act.CANCEL and lane.table.words.cancelled is None:
        raise UsageError(f"{lane.name!r} has no word for cancelled: its tasks cannot be cancelled")
    if body.ids is not None:
        ids = await _read_ids(lane, body.ids)
        change = lane.redrive if act is Act.REDRIVE else lane.cancel
        done = await change(Where(ids=ids), actor=key.owner, reason=body.reason, dry_run=body.dry_run)
        if done.changed:
            await lane.count_soon()
        return {"matched": done.matched, "changed": len(done.changed), "until": None, "complete": True}
    assert body.filter is not None
    asked = body.filter.filter()
    if asked.state not in (None, before):
        raise UsageError(f"{act} takes {before} tasks only, not {asked.state}")
    browser = Browser(await lane.ledger())
    until = asked.until or await browser.present()
    asked = Filter(
        state=before, kind=asked.kind, key=asked.key, error=asked.error, cause=asked.cause,
        older_than=asked.older_than, until=until,
    )  # fmt: skip
    async with in_time():
        if body.dry_run:
            matched, changed, complete = await browser.count(asked), 0, True
        else:
            matched, changed, complete = await _act_on_all(lane, browser, act, asked, key.owner, body)
            if changed:
                await lane.count_soon()
    return {"matched": matched, "changed": changed, "until": instant_json(until), "complete": complete}


async def _act_on_all(
    lane: Lane, browser: Browser, act: Act, asked: Filter, actor: str, body: ActBody
) -> tuple[int, int, bool]:
    """Page by page: how many matched, how many changed, and whether that was all."""
    change = lane.redrive if act is Act.REDRIVE else lane.cancel
    ends = time.monotonic() + ACT_WITHIN_SECONDS
    matched = changed = 0
    cursor: str | None = None
    while True:
        limit = PAGE if body.at_most is None else min(PAGE, body.at_most - matched)
        if not limit:
            return matched, changed, True
        ids, cursor = await browser.ids(asked, cursor=cursor, limit=limit)
        matched += len(ids)
        if ids:
            done = await change(Where(ids=ids), actor=actor, reason=body.reason)
            changed += len(done.changed)
        if cursor is None or time.monotonic() > ends:
            return matched, changed, cursor is None


async def _read_ids(lane: Lane, given: Sequence[int | str]) -> list[TaskId]:
    ledger = await lane.ledger()
    return list(dict.fromkeys(ledger.read_id(str(one)) for one in given))
