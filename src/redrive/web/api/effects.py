"""Effects of which nobody knows whether they happened: a list, and the answers of people. Each names who and why, and stands in the audit."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from redrive.access.keys import ApiKey
from redrive.http.errors import refusals
from redrive.http.guard import KeyFirstRoute, require
from redrive.operator.effects import CURSOR_CHARS_MAX, PAGE_MAX, unknown_json
from redrive.web.api.acts import NamedBody, named_ids, refused_of
from redrive.web.api.common import LOOKING, NO_LEDGER, in_time, lane_of

router = APIRouter(prefix="/api/effects", route_class=KeyFirstRoute, tags=["effects"], responses=refusals(NO_LEDGER))
Operator = Annotated[ApiKey, Depends(require("operator"))]


class AnswerBody(NamedBody):
    """Whether it happened: then the task is done; or not: then it is retried; or nobody wants to know: then it is cancelled."""

    answer: Literal["happened", "not-happened", "close"] = Field(description="What is known now")


@router.get("", summary="A page of tasks of which nobody knows whether their effects happened", dependencies=LOOKING)
async def page(
    request: Request,
    ledger: Annotated[str | None, Query(description="The ledger; by default redrive's own", max_length=200)] = None,
    needs_person: Annotated[  # noqa: FBT002
        bool, Query(description="Those that need a person; else those whose probe is asked")
    ] = True,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    cursor: Annotated[
        str | None, Query(description="Where the previous page ended", max_length=CURSOR_CHARS_MAX)
    ] = None,
) -> dict[str, Any]:
    """Each with its task, how the try ended, what the probe said, and the idempotency key that was sent."""
    lane = lane_of(request, ledger)
    async with in_time():
        found = await lane.unknown_effects(needs_person=needs_person, cursor=cursor or None, limit=limit)
    return {"effects": [unknown_json(one) for one in found.items], "cursor": found.cursor}


@router.post("/answer", summary="Say of tasks whether their effects happened")
async def answer(request: Request, body: AnswerBody, key: Operator) -> dict[str, Any]:
    """Until then nothing runs them. Tasks that no person is asked about are left alone."""
    lane = lane_of(request, body.ledger)
    acted = await lane.answer(await named_ids(lane, body.ids), body.answer, actor=key.owner, reason=body.reason)
    return {"matched": len(body.ids), "changed": len(acted.changed), "refused": refused_of(acted)}
