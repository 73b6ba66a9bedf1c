"""Straight to its route: what is asked thousands of times a second does not go through the framework first.

The framework looks at one route after the other and wraps each request several times, which costs as much as all that is done for a
webhook. A path without parameters is found here in a dictionary. What such a route refuses is answered by the framework's own handlers, in
the one form of all refusals.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from redrive.core.task import json_writer
from redrive.http.place import own_path


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


class Direct:
    """An ASGI middleware: these routes are answered at once, all else by the application."""

    def __init__(self, app: ASGIApp, *, routes: DirectRoutes, handlers: Mapping[Any, Any]) -> None:
        """`handlers` answer exceptions, as those of an application do."""
        self._app = app
        self._routes = routes
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        route = self._routes.find(scope)
        if route is None:
            await self._app(scope, receive, send)
            return
        try:
            await route(scope, receive, send)
        except Exception as error:
            await ExceptionMiddleware(_Raised(error), handlers=self._handlers)(scope, receive, send)


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
