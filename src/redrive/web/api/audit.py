"""Who did what to which tasks, or to what else people act on, from where and why: one entry for one act, newest first."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator, Field

from redrive.http.errors import ApiError, refusals
from redrive.http.guard import KeyFirstRoute
from redrive.operator.json_views import audit_json
from redrive.web.api.common import LOOKING, app_of, in_time

PAGE_MAX = 500
CURSOR_CHARS_MAX = 3000
ID_CHARS_MAX = 3000

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["audit"], dependencies=LOOKING)


def without_nul(name: str) -> str:
    """A name that may be asked for."""
    if "\0" in name:
        raise ValueError("it must not hold a NUL character")
    return name


Audited = Annotated[str, Field(max_length=200), AfterValidator(without_nul)]
"""What was acted on: a ledger, one that is served no more, or what a system calls otherwise (`System.audited`)."""
Cursor = Annotated[str | None, Query(description="Where the previous page ended", max_length=CURSOR_CHARS_MAX)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]


@router.get("/audit", summary="What people and systems did, newest first")
async def audit(
    request: Request,
    ledger: Annotated[
        Audited | None, Query(description="Only this one: a ledger, or another name in the audit")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """One entry for one act, however many tasks it changed. On DynamoDB a page of one ledger may be short and still have a cursor."""
    async with in_time():
        found = await app_of(request).store.audit.page(ledger or None, cursor=cursor or None, limit=limit)
    return {"acts": [audit_json(entry) for entry in found.items], "cursor": found.cursor}


@router.get(
    "/audit/{id:path}", summary="One act, and what it changed", responses=refusals({404: "There is no such act"})
)
async def act(
    request: Request,
    id: Annotated[str, Path(max_length=ID_CHARS_MAX), AfterValidator(without_nul)],
    cursor: Cursor = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """`things` are the ids of the tasks that it changed, or of what else it was done to, page by page."""
    log = app_of(request).store.audit
    async with in_time():
        entry = await log.get(id)
        if entry is None:
            raise ApiError(404, "act_unknown", f"there is no act {id!r:.80} in the audit")
        found = await log.things(id, cursor=cursor or None, limit=limit)
    return audit_json(entry) | {"things": found.items, "cursor": found.cursor}
