"""`/api/triggers/endpoints`: the endpoints of all users, for operators."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from redrive.access.keys import ApiKey
from redrive.http.errors import refusals
from redrive.http.guard import KeyFirstRoute, require, require_unless_loopback
from redrive.lane import Acted
from redrive.operator.json_views import fields_json
from redrive.systems.triggers import shapes as m
from redrive.systems.triggers.desk import EndpointDesk
from redrive.systems.triggers.routes.endpoints import held_json
from redrive.systems.triggers.values import EndpointState, SeenEndpoint

PAGE_MAX = 200
CURSOR_CHARS_MAX = 200

Operator = Annotated[ApiKey, Depends(require("operator"))]
_REFUSALS = refusals(
    {
        400: "The cursor is not one that we gave out",
        401: "No valid key",
        403: "The key lacks a scope",
        422: "The request is not valid",
        503: "The store cannot be reached now; see `Retry-After`",
    }
)


def make_desk_routes(desk: EndpointDesk) -> APIRouter:
    """The routes of operators."""
    router = APIRouter(
        prefix="/api/triggers/endpoints",
        route_class=KeyFirstRoute,
        tags=["endpoints of all users"],
        responses=_REFUSALS,
    )

    @router.get("", summary="A page of endpoints", response_model=m.EndpointPageOut,
                dependencies=[Depends(require_unless_loopback("viewer"))])  # fmt: skip
    async def list_endpoints(
        user: Annotated[m.Owner | None, Query(description="Only those of this user")] = None,
        state: Annotated[EndpointState | None, Query(description="Only those in this state")] = None,
        cursor: Annotated[str | None, Query(description="Of the page before", max_length=CURSOR_CHARS_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    ) -> dict[str, Any]:
        """Newest first; those that are disabled or failing by since when, latest first."""
        page = await desk.page(user=user, state=state, cursor=cursor, limit=limit)
        return {"endpoints": [_seen_json(one) for one in page.items], "cursor": page.cursor}

    @router.post("/enable", summary="Switch endpoints on", response_model=m.ActedOut)
    async def enable(body: m.ActIn, key: Operator) -> dict[str, Any]:
        """With a fresh start. Deliveries that have failed meanwhile stay so until they are retried."""
        return _acted_json(await desk.enable(body.ids, actor=key.owner, reason=body.reason))

    @router.post("/disable", summary="Switch endpoints off", response_model=m.ActedOut)
    async def disable(body: m.ActIn, key: Operator) -> dict[str, Any]:
        """Their owners are told, with the reason. Deliveries that wait for them fail when they are due.

        An endpoint that its failures have disabled is thereby dealt with: its alert ends.
        """
        return _acted_json(await desk.disable(body.ids, actor=key.owner, reason=body.reason))

    @router.post("/retry", summary="Bring back what failed for endpoints", response_model=m.ActedOut)
    async def retry(body: m.ActIn, key: Operator) -> dict[str, Any]:
        """Failed deliveries go back to waiting with a fresh budget, oldest first, up to 5,000; `changed` counts them."""
        return _acted_json(await desk.retry(body.ids, actor=key.owner, reason=body.reason))

    return router


def _acted_json(acted: Acted) -> dict[str, Any]:
    return {"changed": len(acted.changed), "refused": acted.refused}


def _seen_json(seen: SeenEndpoint) -> dict[str, Any]:
    failure = seen.latest_failure
    latest = None if failure is None else fields_json(failure, m.FailureOut.model_fields)
    held = held_json(seen.held)
    return fields_json(seen, m.EndpointSeenOut.model_fields, endpoint_id=seen.id, latest_failure=latest, held=held)
