"""What operators do to webhooks over HTTP: cancel those that wait, have those processed again that failed or were cancelled."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from redrive import Filter
from redrive.http.body import read_body
from redrive.http.errors import refusals
from redrive.http.guard import KeyFirstRoute, require
from redrive.lane import Actor
from redrive.systems.webhooks import shapes
from redrive.systems.webhooks.desk import WebhookDesk

BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 30.0
Operator = Annotated[Any, Depends(require("operator"))]
"""The caller's key; who it belongs to is recorded."""
_REFUSED = refusals(
    {
        401: "Without a valid key",
        403: "The key lacks the scope",
        408: "The body came too slowly",
        413: "The body is too large",
        422: "The body is not valid",
    }
)


class _Bounded(APIRoute):
    """Bodies are bounded in size and time."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            await read_body(request, BODY_BYTES_MAX, seconds_max=BODY_SECONDS_MAX)
            return await handle(request)

        return answer


class _ActRoute(KeyFirstRoute, _Bounded):
    """The key first, then the body."""


def make_desk_router(desk: WebhookDesk) -> APIRouter:
    """The routes of one inbox."""
    router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=_ActRoute, responses=_REFUSED)

    @router.post("/redrive", summary="Process webhooks again", response_model=shapes.WebhookActOut)
    async def redrive(asked: shapes.WebhookActIn, who: Operator) -> Response:
        """Those that failed, with all their tries, and those that were cancelled; due now. Who and why is recorded."""
        return _answer(await desk.redrive(_which(asked), Actor(name=who.owner, reason=asked.reason)))

    @router.post("/cancel", summary="End webhooks that wait", response_model=shapes.WebhookActOut)
    async def cancel(asked: shapes.WebhookActIn, who: Operator) -> Response:
        """For their time, for a retry, or for a handler that nobody has. Who and why is recorded."""
        return _answer(await desk.cancel(_which(asked), Actor(name=who.owner, reason=asked.reason)))

    return router


def _which(asked: shapes.WebhookActIn) -> list[str] | Filter:
    return Filter(kind=asked.event_type) if asked.ids is None else asked.ids


def _answer(acted: Any) -> Response:
    return JSONResponse(shapes.act_json(acted))
