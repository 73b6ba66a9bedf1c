"""`/health`, `/ready` and `/metrics` of processes that serve nothing else: workers, and the handler of dead letters."""

from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from redrive.access.wrong_keys import WrongKeys
from redrive.http.envelope import Envelope
from redrive.http.errors import add_error_handlers
from redrive.running import Running
from redrive.settings import Settings
from redrive.web import health
from redrive.web.answers import Answers

if TYPE_CHECKING:
    from redrive.systems.relay.dead_letters import DeadLetters


def make_worker_probes(running: Running, settings: Settings) -> FastAPI:
    """Those of a worker: the very routes of `redrive serve`, with the same keys for `/metrics`, and no others."""
    web = _bare()
    web.state.service = running
    web.state.keys = running.app.store.keys
    web.state.trusts_loopback = settings.http_trust_loopback
    web.state.wrong_keys = WrongKeys()
    web.state.answers = Answers()
    web.include_router(health.router)
    return web


def _bare() -> FastAPI:
    web = FastAPI(title="redrive", docs_url=None, redoc_url=None, openapi_url=None)
    web.add_middleware(Envelope)
    add_error_handlers(web)
    return web


def make_probes(watched: "DeadLetters", registry: CollectorRegistry) -> FastAPI:
    """Those of a process without a store, and so without keys; the answers have the form that `redrive serve` gives them."""
    web = _bare()

    @web.get("/health")
    async def is_well() -> JSONResponse:
        return health.health_answer(watched.checks(), watched.uptime)

    @web.get("/ready")
    async def ready() -> JSONResponse:
        is_ready = watched.ready
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, status_code=200 if is_ready else 503)

    @web.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return web
