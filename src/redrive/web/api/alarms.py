"""What needs attention now, as the alert rules see it."""

from typing import Any

from fastapi import APIRouter, Request

from redrive.http.guard import KeyFirstRoute
from redrive.operator.json_views import fields_json
from redrive.web.api.common import LOOKING, app_of

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["alerts"], dependencies=LOOKING)


@router.get("/alerts", summary="What needs attention now, oldest first")
async def alerts(request: Request) -> list[dict[str, Any]]:
    """Each is announced once when it starts and once when it ends; `told_at` is null until it has been announced."""
    found = await app_of(request).store.alerts.active()
    return [fields_json(alert, ("name", "rule", "text", "started_at", "told_at")) for alert in found]
