"""Every refusal over HTTP has one form: `{error: {code, message, details, timestamp, request_id}}`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from redrive.as_json import instant_json
from redrive.core.failure import redact
from redrive.errors import LedgerAwayError, UsageError

AWAY_RETRY_AFTER_SECONDS = 5


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


def error_response(
    status: int,
    code: str,
    message: str,
    *,
    request_id: str,
    details: Any = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The one form of an error."""
    body = {
        "code": code,
        "message": message,
        "details": jsonable_encoder(details),
        "timestamp": instant_json(datetime.now(UTC)),
        "request_id": request_id,
    }
    return JSONResponse({"error": body}, status_code=status, headers=dict(headers or {}))


def add_error_handlers(web: FastAPI) -> None:
    """Give every error that routes and the framework raise the one form. Others end in the envelope as a plain 500."""

    def answer(request: Request, error: ApiError) -> JSONResponse:
        return error_response(
            error.status, error.code, error.message,
            request_id=request.state.request_id, details=error.details, headers=error.headers,
        )  # fmt: skip

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
        code = phrase.lower().replace(" ", "_").replace("-", "_")
        return answer(request, ApiError(error.status_code, code, message, headers=error.headers))

    @web.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input: it may be large, or a secret.
        details = [{"where": [str(part) for part in one["loc"]], "problem": one["msg"]} for one in error.errors()]
        return answer(request, ApiError(422, "invalid_request", "the request does not fit", details=details))

    @web.exception_handler(UsageError)
    async def misused(request: Request, error: UsageError) -> JSONResponse:
        return answer(request, ApiError(400, "bad_request", redact(str(error))))

    @web.exception_handler(LedgerAwayError)
    async def away(request: Request, _error: LedgerAwayError) -> JSONResponse:
        headers = {"Retry-After": str(AWAY_RETRY_AFTER_SECONDS)}
        return answer(
            request, ApiError(503, "store_away", "the store cannot be reached now: try again", headers=headers)
        )
