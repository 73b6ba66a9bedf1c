"""What every request to `/v1` goes through before its route: a key, a limit, and a body of bounded size, time and depth.

Keys are read from the store for every request, so that a revoked one is refused at once in every process; what many
ask at the same moment is read in one statement. A key is checked before the body is read.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute

from redrive.access.keys import Scope, digest
from redrive.http.body import header, read_body
from redrive.http.errors import CAPITALS, ApiError, ErrorStyle
from redrive.http.guard import CHALLENGE, KEY_CHARS_MAX, wrong_key
from redrive.http.strict_json import is_deeper_than
from redrive.systems.triggers.limits import Limiter
from redrive.systems.triggers.ports import Found, Looks, StoreClock

PREFIX = "/v1"
BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 10.0
JSON_DEPTH_MAX = 64
READING = ("GET", "HEAD")

STYLE = ErrorStyle(prefix=PREFIX, codes=CAPITALS, invalid_status=400)


class Entrance:
    """Lets requests in."""

    def __init__(self, looks: Looks, clock: StoreClock, limiter: Limiter) -> None:
        self._looks = looks
        self._clock = clock
        self._limiter = limiter

    async def enter(self, request: Request, needed: Scope, *, event_id: str | None = None) -> Found:
        """The caller's key, and the status of an event if one is asked for; or the refusal."""
        secret = header(request, b"x-api-key")
        if not secret:
            raise ApiError(401, "UNAUTHORIZED", "send a key in the header X-API-Key", headers=CHALLENGE)
        hashed = digest(secret[:KEY_CHARS_MAX])
        found = await self._looks.look(hashed, event_id)
        key = found.key
        if key is None or len(secret) > KEY_CHARS_MAX or not key.is_valid(self._clock.now()):
            raise wrong_key(request, secret, code="UNAUTHORIZED", too_many="RATE_LIMIT_EXCEEDED")
        wait = await self._limiter.wait_for(key.id, reads=request.method in READING)
        if wait is not None:
            raise ApiError(
                429, "RATE_LIMIT_EXCEEDED", f"too many requests with this key: try again in {wait} s",
                headers={"Retry-After": str(wait)},
            )  # fmt: skip
        if not key.allows(needed):
            raise ApiError(
                403, "FORBIDDEN", f"the key lacks the scope {needed.value}", details={"needed": needed.value}
            )
        return found


def needs(scope: str, *, body_bytes_max: int = BODY_BYTES_MAX, remedy: str = "") -> Callable[[Any], Any]:
    """What a route asks of the caller's key, how large its body may be, and what to do where it is larger."""

    def mark(endpoint: Any) -> Any:
        endpoint.needed_scope = Scope(scope)
        endpoint.body_bytes_max = body_bytes_max
        endpoint.remedy = remedy
        return endpoint

    return mark


def bind_correlation(request: Request) -> None:
    """Give every line that is logged for this request its id.

    It is left bound, so that the line of the request itself has it too; the next request has a context of its own.
    """
    structlog.contextvars.bind_contextvars(correlation_id=request.state.request_id)


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def route_class(gate: Entrance) -> type[APIRoute]:
    """The class of all routes under `/v1`."""

    class TriggerRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            run = super().get_route_handler()
            endpoint: Any = self.endpoint
            needed: Scope = endpoint.needed_scope
            body_bytes_max: int | None = endpoint.body_bytes_max if self.body_field is not None else None

            async def handle(request: Request) -> Response:
                bind_correlation(request)
                request.state.key = (await gate.enter(request, needed)).key
                if body_bytes_max is not None:
                    await read_json(request, body_bytes_max, remedy=endpoint.remedy)
                return await run(request)

            return handle

    return TriggerRoute


async def read_json(request: Request, bytes_max: int, *, remedy: str = "") -> None:
    """Read a JSON body into the request, where its route finds it; refuse one that is too large, too slow or too deep."""
    kind = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "UNSUPPORTED_MEDIA_TYPE", "send JSON with the header Content-Type: application/json")
    try:
        body = await read_body(request, bytes_max, seconds_max=BODY_SECONDS_MAX, remedy=remedy)
    except ApiError as refused:
        headers = {"Connection": "close"} if refused.status == 408 else {}
        raise ApiError(refused.status, refused.code, refused.message, headers=headers) from None
    request._json = _read_json(body)  # noqa: SLF001 - where `request.json()` keeps it, too


def _read_json(body: bytes) -> Any:
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ApiError(400, "VALIDATION_ERROR", "the body is not JSON") from None
    if is_deeper_than(JSON_DEPTH_MAX, value):
        raise ApiError(400, "VALIDATION_ERROR", f"the body is nested deeper than {JSON_DEPTH_MAX} levels")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""`json.loads` with this option would make a decoder for each body."""
