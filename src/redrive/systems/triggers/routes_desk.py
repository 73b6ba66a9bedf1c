"""`/api/triggers/endpoints`: the endpoints of all users, for operators."""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from redrive.access.keys import ApiKey
from redrive.http.errors import ErrorAnswer
from redrive.http.guard import require, require_unless_loopback
from redrive.http.reason import Reason
from redrive.operator.json_views import instant_json
from redrive.systems.triggers import shapes as m
from redrive.systems.triggers.desk import COUNTED_MAX, Acted, Seen, State

if TYPE_CHECKING:
    from redrive.systems.triggers.system import Triggers

IDS_MAX = 1000
PAGE_MAX = 200
CURSOR_CHARS_MAX = 100

Operator = Annotated[ApiKey, Depends(require("operator"))]
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The cursor is not one of ours", "model": ErrorAnswer},
    401: {"description": "No valid key", "model": ErrorAnswer},
    403: {"description": "The key lacks a scope", "model": ErrorAnswer},
    422: {"description": "The request does not fit", "model": ErrorAnswer},
    503: {"description": "The store cannot be reached now; see `Retry-After`", "model": ErrorAnswer},
}


class FailureOut(BaseModel):
    """The latest delivery that has failed and was not delivered since."""

    delivery_id: str = Field(description="A task of the ledger `trigger_deliveries`", examples=[m.EVENT])
    at: str = Field(examples=[m.STAMP])
    error: str = Field(examples=["TransientError: the endpoint answered 503"])


class EndpointSeenOut(BaseModel):
    """An endpoint, without its secrets."""

    endpoint_id: str = Field(examples=[m.ENDPOINT])
    user: str = Field(examples=["ada"])
    url: str = Field(description="Its query is hidden", examples=["https://shop.example/hooks?…"])
    description: str = Field(examples=["the shop"])
    event_types: list[str] = Field(examples=[["order.*"]])
    state: State = Field(description="`failing`: enabled, and nothing was delivered since then")
    since: str = Field(
        description="When it began to fail or was disabled; when it was made, if it is enabled", examples=[m.STAMP]
    )
    disabled_reason: str | None = Field(examples=["it answered 410 Gone"])
    disabled_by: str | None = Field(description="Null where its failures did it", examples=[None])
    retrying: int = Field(description=f"Deliveries that wait for another try; counted up to {COUNTED_MAX:,}")
    failed: int = Field(description=f"Deliveries that have failed for good; counted up to {COUNTED_MAX:,}")
    latest_failure: FailureOut | None
    created_at: str = Field(examples=[m.STAMP])


class EndpointPageOut(BaseModel):
    """Some endpoints."""

    endpoints: list[EndpointSeenOut]
    cursor: str | None = Field(description="For the next page, with the same filter; null on the last one")


class ActIn(BaseModel):
    """Which endpoints, and why."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    ids: list[Annotated[str, Field(max_length=100)]] = Field(
        min_length=1, max_length=IDS_MAX, description="Ids of endpoints, of any user", examples=[[m.ENDPOINT]]
    )
    reason: Reason = Field(examples=["it is back"])


class ActedOut(BaseModel):
    """What an act came to."""

    changed: int = Field(description="How many endpoints, or deliveries, changed")
    refused: dict[str, str] = Field(
        description="Endpoints that were left alone, and why", examples=[{m.ENDPOINT: "it is enabled already"}]
    )


def make_oversight_routes(system: "Triggers") -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/api/triggers/endpoints", tags=["endpoints of all users"], responses=_REFUSALS)

    @router.get("", summary="A page of endpoints", response_model=EndpointPageOut,
                dependencies=[Depends(require_unless_loopback("viewer"))])  # fmt: skip
    async def list_endpoints(
        user: Annotated[m.Owner | None, Query(description="Only those of this user")] = None,
        state: Annotated[State | None, Query(description="Only those in this state")] = None,
        cursor: Annotated[str | None, Query(description="Of the page before", max_length=CURSOR_CHARS_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    ) -> dict[str, Any]:
        """Newest first; those that are disabled or failing by since when, latest first."""
        page = await system.oversight.page(user=user, state=state, cursor=cursor, limit=limit)
        return {"endpoints": [_seen_json(one) for one in page.endpoints], "cursor": page.cursor}

    @router.post("/enable", summary="Switch endpoints on", response_model=ActedOut)
    async def enable(body: ActIn, key: Operator) -> Acted:
        """With a fresh start. Deliveries that have failed meanwhile stay so until they are retried."""
        return await system.oversight.enable(body.ids, actor=key.owner, reason=body.reason)

    @router.post("/disable", summary="Switch endpoints off", response_model=ActedOut)
    async def disable(body: ActIn, key: Operator) -> Acted:
        """Their owners are told, with the reason. Deliveries that wait for them fail when they are due.

        An endpoint that its failures have disabled is thereby dealt with: its alert ends.
        """
        return await system.oversight.disable(body.ids, actor=key.owner, reason=body.reason)

    @router.post("/retry", summary="Bring back what failed for endpoints", response_model=ActedOut)
    async def retry(body: ActIn, key: Operator) -> Acted:
        """Failed deliveries go back to waiting with a fresh budget, oldest first, up to 5,000; `changed` counts them."""
        return await system.oversight.retry(body.ids, actor=key.owner, reason=body.reason)

    return router


def _seen_json(seen: Seen) -> dict[str, Any]:
    failure = seen.latest_failure
    return {
        "endpoint_id": seen.id,
        "user": seen.user,
        "url": seen.url,
        "description": seen.description,
        "event_types": list(seen.event_types),
        "state": seen.state,
        "since": instant_json(seen.since),
        "disabled_reason": seen.disabled_reason,
        "disabled_by": seen.disabled_by,
        "retrying": seen.retrying,
        "failed": seen.failed,
        "latest_failure": None if failure is None else failure._asdict() | {"at": instant_json(failure.at)},
        "created_at": instant_json(seen.created_at),
    }
