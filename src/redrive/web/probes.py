"""`/health`, `/ready` and `/metrics` of a process without a store, and so without keys: they are for monitoring only."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from redrive.http.envelope import Envelope
from redrive.http.errors import add_error_handlers

if TYPE_CHECKING:
    from redrive.systems.relay.dead_letters import DeadLetters


def health_answer(checks: Mapping[str, bool | str], uptime: timedelta) -> JSONResponse:
    """What `/health` answers, with or without a store. A check is whether it is well, or a sentence that says what is not."""
    well = all(check is True for check in checks.values())
    said = {True: "ok", False: "away"}
    body = {
        "status": "ok" if well else "unwell",
        "uptime_seconds": round(uptime.total_seconds(), 3),
        "checks": {name: check if isinstance(check, str) else said[check] for name, check in checks.items()},
    }
    return JSONResponse(body, status_code=200 if well else 503)


def make_probes(watched: "DeadLetters", registry: CollectorRegistry) -> FastAPI:
    """The ASGI application; what it answers has the form that `redrive serve` gives it."""
    web = FastAPI(title="redrive", docs_url=None, redoc_url=None, openapi_url=None)
    web.add_middleware(Envelope)
    add_error_handlers(web)

    @web.get("/health")
    async def health() -> JSONResponse:
        return health_answer(watched.checks(), watched.uptime)

    @web.get("/ready")
    async def ready() -> JSONResponse:
        is_ready = watched.ready
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, status_code=200 if is_ready else 503)

    @web.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return web
