"""Who works: the processes that run handlers, and when each last gave a sign of life."""

from typing import Any

from fastapi import APIRouter, Request

from redrive.http.guard import KeyFirstRoute
from redrive.operator.json_views import worker_json
from redrive.web.api.common import LOOKING, app_of

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["workers"], dependencies=LOOKING)


@router.get("/workers", summary="Who works, the last seen first")
async def workers(request: Request) -> list[dict[str, Any]]:
    """A worker is `working`, `stopped` or `lost`: it ought to be there, and has given no sign of life for 35 seconds. What it held is
    taken over when its leases end."""
    store = app_of(request).store
    now = await store.present()
    return [worker_json(one, now) for one in await store.roster.seen()]
