"""Every refusal over HTTP has one form: `{error: {code, message, details, timestamp, request_id}}`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Scope

from redrive.core.failure import redact
from redrive.errors import LedgerAwayError, SettingsError, StaleError, TooSlowError, UsageError
from redrive.http.place import own_path
from redrive.operator.json_views import instant_json

AWAY_RETRY_AFTER_SECONDS = 5


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="A word for programs", examples=["queue_full"])
    message: str = Field(description="A sentence for people, with the remedy where there is one")
    details: Any = Field(default=None, description="More, where there is more to say")
    timestamp: str = Field(description="When, in ISO 8601 UTC", examples=["2026-01-31T09:00:00.000000Z"])
    request_id: str = Field(description="The log has more under this id")


class ErrorAnswer(BaseModel):
    """The body of every refusal: for the descriptions of routes."""

    error: ErrorDetail


def refusals(meanings: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """What a route may refuse, by status, for its description."""
    return {status: {"model": ErrorAnswer, "description": meaning} for status, meaning in meanings.items()}


class ApiError(Exception):
    """A refusal that a route decides on."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStyle:
    """How what the framework refuses is spelled under a prefix of paths, where a published contract has its own words."""

    prefix: str
    codes: Mapping[int, str]
    """The code for each status; others are the common ones in capitals."""
    invalid_status: int = 422
    """The status of a request that does not fit."""

    def code(self, status: int, code: str) -> str:
        """The code as this style spells it."""
        return self.codes.get(status, code.upper())


CAPITALS = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "RATE_LIMIT_EXCEEDED",
}
"""The codes of systems whose requirement has them in capitals: one for each status, the same in all of them."""
_CODES = {413: "too_large"}
"""What the framework calls by another name than we do."""


def style_of(scope: Scope) -> ErrorStyle | None:
    """The style of the path that is asked for; None for the common one."""
    styles: Sequence[ErrorStyle] = getattr(scope["app"].state, "error_styles", ()) if "app" in scope else ()
    return next((style for style in styles if f"{own_path(scope)}/".startswith(f"{style.prefix}/")), None)


def problems_of(error: RequestValidationError) -> list[dict[str, Any]]:
    """What does not fit, without the input: it may be large, or a secret.

    What cannot be written as UTF-8, such as half a surrogate in the name of a field, must not break the answer.
    """
    return [
        {"where": [str(part).encode("utf-8", "replace").decode() for part in one["loc"]], "problem": one["msg"]}
        for one in error.errors()
    ]


def error_body(code: str, message: str, *, request_id: str, details: Any = None) -> dict[str, Any]:
    """The one form of an error."""
    told = {
        "code": code,
        "message": message,
        "details": jsonable_encoder(details),
        "timestamp": instant_json(datetime.now(UTC)),
        "request_id": request_id,
    }
    return {"error": told}


def error_response(
    status: int,
    code: str,
    message: str,
    *,
    request_id: str,
    details: Any = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The same as an answer."""
    body = error_body(code, message, request_id=request_id, details=details)
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))


def add_error_handlers(web: FastAPI) -> None:
    """Give every error that routes and the framework raise the one form. Others end in the envelope as a plain 500."""

    def answer(request: Request, error: ApiError) -> JSONResponse:
        style = None if error.code.isupper() else style_of(request.scope)
        code = error.code if style is None else style.code(error.status, error.code)
        return error_response(
            error.status, code, error.message,
            request_id=request.state.request_id, details=error.details, headers=error.headers,
        )  # fmt: skip

    def later(code: str, message: str) -> ApiError:
        return ApiError(503, code, message, headers={"Retry-After": str(AWAY_RETRY_AFTER_SECONDS)})

    @web.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return answer(request, error)

    @web.exception_handler(HTTPException)
    async def by_framework(request: Request, error: HTTPException) -> JSONResponse:
        phrase = HTTPStatus(error.status_code).phrase
        message = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not allowed at {request.url.path}",
        }.get(error.status_code, str(error.detail))
        code = _CODES.get(error.status_code, phrase.lower().replace(" ", "_").replace("-", "_"))
        return answer(request, ApiError(error.status_code, code, message, headers=error.headers))

    @web.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        style = style_of(request.scope)
        status, details = 422 if style is None else style.invalid_status, problems_of(error)
        return answer(request, ApiError(status, "invalid_request", "the request is not valid", details=details))

    @web.exception_handler(UsageError)
    async def misused(request: Request, error: UsageError) -> JSONResponse:
        return answer(request, ApiError(400, "bad_request", redact(str(error))))

    @web.exception_handler(StaleError)
    async def stale(request: Request, error: StaleError) -> JSONResponse:
        return answer(request, ApiError(409, "changed_meanwhile", redact(str(error))))

    @web.exception_handler(SettingsError)
    async def unset(request: Request, error: SettingsError) -> JSONResponse:
        # Not the caller's mistake: whoever runs the service has to set something first.
        return answer(request, ApiError(503, "not_configured", redact(str(error))))

    @web.exception_handler(LedgerAwayError)
    async def away(request: Request, _error: LedgerAwayError) -> JSONResponse:
        return answer(request, later("store_away", "the store cannot be reached now: try again"))

    @web.exception_handler(TooSlowError)
    async def too_slow(request: Request, _error: TooSlowError) -> JSONResponse:
        return answer(
            request, later("store_busy", "the database took too long to read this: try again, or ask for less")
        )
