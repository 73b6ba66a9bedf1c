"""What all routes of triggers share: whose request it is, and how they answer and refuse."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from redrive.http.errors import ApiError
from redrive.http.errors import refusals as described
from redrive.operator.json_views import fields_json
from redrive.systems.triggers.shapes import AttemptOut
from redrive.systems.triggers.values import DeliveryTry

_WHY = {
    400: "The request is not valid",
    401: "No valid key",
    403: "The key lacks a scope",
    404: "There is no such thing, or it is not yours",
    408: "The body came too slowly",
    409: "Its state does not allow it",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "Too many requests with this key; see `Retry-After`",
    503: "The store cannot be reached now; see `Retry-After`",
}
_BODY = (400, 408, 413, 415)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that a route may answer with, besides those of all routes."""
    return described({status: _WHY[status] for status in sorted({401, 403, 429, 503, *statuses})})


def with_body(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route that takes a body."""
    return refusals(*_BODY, *statuses)


def not_found() -> ApiError:
    """The one answer for what is unknown, deleted, malformed or somebody else's."""
    return ApiError(404, "NOT_FOUND", "there is no such thing here")


def invalid(message: str, *where: str) -> ApiError:
    """A request that does not fit, in the form of all such refusals."""
    return ApiError(400, "VALIDATION_ERROR", "the request is not valid",
                    details=[{"where": list(where), "problem": message}])  # fmt: skip


def owner_of(request: Request) -> str:
    """The user whose key was sent."""
    owner: str = request.state.key.owner
    return owner


def attempts_json(tries: Sequence[DeliveryTry]) -> list[dict[str, Any]]:
    """Tries of deliveries."""
    return [fields_json(one, AttemptOut.model_fields) for one in tries]
