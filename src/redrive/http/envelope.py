"""What every request goes through: an id, security headers, a log line, and a last gate for what nobody caught."""

import re
import secrets
import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
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
QUIET = frozenset({"/health", "/ready", "/metrics"})
"""Asked by machines every few seconds: logged at debug."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


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
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.monotonic()
        status = 0

        async def send_enveloped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        origin = ORIGIN.set(_origin(scope))
        with structlog.contextvars.bound_contextvars(request_id=request_id):
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
                ORIGIN.reset(origin)
            log = self._log.debug if own_path(scope) in QUIET else self._log.info
            took = round(time.monotonic() - started, 6)
            log("request", method=scope["method"], path=scope["path"], status=status, duration_seconds=took)


def _origin(scope: Scope) -> str:
    """From where a request comes, for the audit."""
    client = scope.get("client")
    way = "API" if "x-api-key" in Headers(scope=scope) else "browser"
    return way if client is None else f"{way}, {client[0]:.100}"


def _request_id(headers: Headers) -> str:
    """The caller's id if it is a harmless word, else one of ours."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
