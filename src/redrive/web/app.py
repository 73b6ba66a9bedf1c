"""The web application around a service."""

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from redrive._version import __version__
from redrive.access.wrong_keys import WrongKeys
from redrive.http.body import BodyLimit
from redrive.http.described import describe_refusals
from redrive.http.direct import Web
from redrive.http.envelope import Envelope
from redrive.http.errors import add_error_handlers
from redrive.http.place import root_of
from redrive.running import Service
from redrive.web import api, health, session
from redrive.web.answers import Answers
from redrive.web.api.searches import Searches
from redrive.web.blocked import BlockedLoops
from redrive.web.drift import Drift
from redrive.web.pages import PAGES
from redrive.web.pages.nowhere import answer_readers


def make_web(service: Service, logins: session.Logins | None = None) -> FastAPI:
    """The ASGI application of a service; it neither opens nor closes it. People log in with keys, or as somebody else's `logins` say."""
    web = Web(
        title="redrive",
        version=__version__,
        description="Durable retries: health, metrics and what waits.",
        # The framework's own pages load scripts from elsewhere; ours is `pages/docs.py`. The description is at /openapi.json, written once.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    web.state.service = service
    web.state.keys = service.keys
    web.state.trusts_loopback = service.settings.http_trust_loopback
    web.state.wrong_keys = WrongKeys()
    web.state.sessions = logins or session.Logins(service.app.store)
    web.state.answers = Answers()
    web.state.blocked_loops = BlockedLoops()
    service.app.observers.append(web.state.blocked_loops)
    web.state.drift = Drift(service.metrics.drift)
    web.state.searches = Searches()
    service.at_end(web.state.searches.close)
    web.add_middleware(BodyLimit, prefixes=("/api/", "/login", "/logout"))
    web.add_middleware(Envelope)
    add_error_handlers(web)
    answer_readers(web)
    web.include_router(health.router)
    web.include_router(session.router)
    for router in api.routers:
        web.include_router(router)
    for page in PAGES:
        web.include_router(page)
    web.state.error_styles = [style for system in service.app.systems.values() for style in system.error_styles()]
    for system in service.app.systems.values():
        for routes in system.routes():
            if isinstance(routes, Route):
                web.router.routes.insert(0, routes)
                web.direct.add(routes)
            else:
                web.include_router(routes)
    web.openapi = _described(web)  # type: ignore[method-assign]  # the framework's own way to change its description
    written: dict[str, bytes] = {}

    @web.get("/openapi.json", include_in_schema=False)
    async def description(request: Request) -> Response:
        """Written once: anew for each request it would take as long as ten others."""
        root = root_of(request)
        if root not in written:
            there = {"servers": [{"url": root}]} if root else {}
            written[root] = json.dumps(web.openapi() | there).encode()
        return Response(written[root], media_type="application/json")

    return web


def _described(web: FastAPI) -> Callable[[], dict[str, Any]]:
    """The framework's description with every refusal named; made once, as it keeps it."""
    framework = web.openapi
    made: list[dict[str, Any]] = []

    def describe() -> dict[str, Any]:
        if not made:
            made.append(describe_refusals(framework(), web.state.error_styles))
        return made[0]

    return describe
