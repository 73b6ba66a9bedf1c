"""Who did what to which task, or to what else people act on, and why; newest first."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, Field

from redrive.http.guard import KeyFirstRoute
from redrive.operator.json_views import fields_json
from redrive.web.api.common import LOOKING, app_of, in_time

PAGE_MAX = 500
CURSOR_CHARS_MAX = 1000
FIELDS = ("id", "ledger", "task_id", "at", "act", "actor", "reason")

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["audit"], dependencies=LOOKING)


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError("no name holds a NUL")
    return name


Audited = Annotated[str, Field(max_length=200), AfterValidator(_without_nul)]
"""What deeds were done to: a ledger, one that is served no more, or what a system calls otherwise (`System.audited`)."""


@router.get("/audit", summary="What people and systems did, newest first")
async def audit(
    request: Request,
    ledger: Annotated[
        Audited | None, Query(description="Only this one: a ledger, or another name in the audit log")
    ] = None,
    cursor: Annotated[
        str | None, Query(description="Where the previous page ended", max_length=CURSOR_CHARS_MAX)
    ] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
) -> dict[str, Any]:
    """A page of one ledger may be short and still have a cursor: it looks past so many entries of others, and no more."""
    async with in_time():
        found = await app_of(request).store.audit.page(ledger or None, cursor=cursor or None, limit=limit)
    return {"deeds": [fields_json(entry, FIELDS) for entry in found.items], "cursor": found.cursor}
