"""Dead tasks by cause."""

from typing import Any

from fastapi import APIRouter, Request

from redrive.core.failure import redact
from redrive.http.guard import KeyFirstRoute
from redrive.operator.json_views import fields_json
from redrive.web.api.common import LOOKING, app_of, lanes_of
from redrive.web.api.overview import LedgerQuery

GROUPS_MAX = 200

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["groups"], dependencies=LOOKING)


@router.get("/groups", summary="Failure causes of dead tasks, the largest group first")
async def groups(request: Request, ledger: LedgerQuery = None) -> list[dict[str, Any]]:
    """As of the last census. A group has a `kind` and, where it is known, the line of your code that failed (`at`); `text` is what the
    errors share, `sample` one of them."""
    names = [lane.name for lane in lanes_of(request, ledger)]
    found = await app_of(request).store.figures.groups(names, limit=GROUPS_MAX)
    shown = ("ledger", "cause", "text", "sample", "kind", "at", "first_seen", "last_seen", "amount")
    return [
        fields_json(group, shown, cause=group.id, text=redact(group.text), sample=redact(group.sample))
        for group in found
    ]
