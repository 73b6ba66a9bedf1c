"""Straight to its route: what is asked thousands of times a second does not go through the framework first.

The framework looks at one route after the other and wraps each request several times, which costs as much as all that is done for a
webhook. A path without parameters is found here in a dictionary, and no more than the envelope is around it. What such a route refuses is answered by the framework's own handlers, in
the one form of all refusals.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from redrive.core.task import json_writer
from redrive.http.envelope import Envelope
from redrive.http.place import own_path

LOOK_EVERY_SECONDS = 1.0


class DirectRoutes:
    """Plain routes by their method and path."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], ASGIApp] = {}

    def add(self, route: Route) -> None:
        """Answer this route's requests, if its path has no parameters."""
        if not route.param_convertors:
            self._found |= {(method, route.path): route.app for method in route.methods or ()}

    def find(self, scope: Scope) -> ASGIApp | None:
        """The route of a request, if it is one of these."""
        return self._found.get((scope["method"], own_path(scope))) if scope["type"] == "http" else None


class Web(FastAPI):
    """An application that answers its direct routes itself, and leaves all else to the framework.

    Where an SDK of OpenTelemetry observes requests, the framework answers these too: it makes their spans.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.direct = DirectRoutes()
        self._front = Envelope(self._answer)
        self._observed = False
        self._looked_at = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        route = self.direct.find(scope)
        if route is None or self._is_observed():
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        scope["redrive.route"] = route
        await self._front(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await scope["redrive.route"](scope, receive, send)
        except Exception as error:
            await ExceptionMiddleware(_Raised(error), handlers=self.exception_handlers)(scope, receive, send)

    def _is_observed(self) -> bool:
        """Whether the framework has somebody to tell of requests. It looks into the environment each time, so it is asked once a second."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_SECONDS and not self._observed:
            self._looked_at = now
            telemetry = getattr(self, "_native_telemetry", None)  # older versions of the framework have none
            self._observed = telemetry is not None and telemetry.enabled()
        return self._observed


async def send_json(send: Send, status: int, content: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer with JSON, without an object for the answer."""
    body = _encode(content).encode()
    about = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})


_encode = json_writer(ensure_ascii=False)


class _Raised:
    """An application that raises what another one has raised."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        raise self._error
