"""What every request goes through: an id, security headers, a log line, and a last gate for what nobody caught."""

import random
import re
import time
from collections.abc import Iterable
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redrive.core.failure import describe_error
from redrive.http.errors import error_response, style_of
from redrive.http.place import own_path
from redrive.ports import ORIGIN

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Set where a response does not say otherwise itself."""
_SECURITY = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_REQUEST_ID_HEADER = b"x-request-id"
_OURS = frozenset({_REQUEST_ID_HEADER, *(name for name, _ in _SECURITY)})
QUIET = frozenset({"/health", "/ready", "/metrics"})
"""Asked by machines every few seconds: logged at debug."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,100}")


class Envelope:
    """An ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log: Any = structlog.get_logger().bind(system="web")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, origin = _read(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.monotonic()
        status = 0

        async def send_enveloped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _enveloped(message.get("headers", ()), request_id)}
            await send(message)

        bound = structlog.contextvars.bind_contextvars(request_id=request_id)
        told = ORIGIN.set(origin)
        try:
            try:
                await self._app(scope, receive, send_enveloped)
            except Exception as error:
                self._log.error("request_failed", path=scope["path"], error=describe_error(error), exc_info=True)
                if status == 0:
                    style = style_of(scope)
                    code = "internal_error" if style is None else style.code(500, "internal_error")
                    response = error_response(
                        500, code, "something went wrong here; the log has it under the request id",
                        request_id=request_id,
                    )  # fmt: skip
                    await response(scope, receive, send_enveloped)
            finally:
                ORIGIN.reset(told)
            log = self._log.debug if own_path(scope) in QUIET else self._log.info
            took = round(time.monotonic() - started, 6)
            log("request", method=scope["method"], path=scope["path"], status=status, duration_seconds=took)
        finally:
            structlog.contextvars.reset_contextvars(**bound)


def _read(scope: Scope) -> tuple[str, str]:
    """The id of a request, and from where it comes, for the audit. The id is the caller's if it is a harmless word, else one of ours."""
    way, request_id = "browser", b""
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            way = "API"
        elif name == _REQUEST_ID_HEADER and not request_id:
            request_id = value
    client = scope.get("client")
    origin = way if client is None else f"{way}, {client[0]:.100}"
    return request_id.decode("ascii") if _REQUEST_ID.fullmatch(
        request_id
    ) else f"{random.getrandbits(128):032x}", origin


def _enveloped(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response with ours, where it does not say otherwise itself; the id of the request is ours in any case."""
    said = list(headers)
    ours = [(_REQUEST_ID_HEADER, request_id.encode()), *_SECURITY]
    names = {name.lower() for name, _ in said}
    if names.isdisjoint(_OURS):
        return said + ours
    said = [one for one in said if one[0].lower() != _REQUEST_ID_HEADER]
    return said + [one for one in ours if one[0] == _REQUEST_ID_HEADER or one[0] not in names]
