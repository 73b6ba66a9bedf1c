"""For monitoring: `/health`, `/ready`, `/metrics`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from redrive.http.guard import require_unless_loopback
from redrive.running import Running
from redrive.web.answers import answers_of
from redrive.web.service import running_of

HEALTH_FRESH_SECONDS = 1.0
GAUGES_FRESH_SECONDS = 5.0
"""How long counted depths hold: however many scrape, the tables are counted this often."""

router = APIRouter(tags=["health"])

_unwell: dict[int | str, dict[str, Any]] = {503: {"description": "Not now"}}


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


@router.get("/health", summary="Whether the service is alive and what it depends on answers", responses=_unwell)
async def health(request: Request) -> JSONResponse:
    """Open to all: it tells nothing but this."""
    service = running_of(request)
    checks = await answers_of(request).get("health", HEALTH_FRESH_SECONDS, lambda: _checks(service))
    return health_answer(checks, service.uptime)


@router.get("/ready", summary="Whether the store is open and the worker loop runs", responses=_unwell)
async def ready(request: Request) -> JSONResponse:
    """Open to all."""
    service = running_of(request)
    is_ready = service.is_open and service.works
    worker = "none" if service.workers is None else "running" if service.works else "not running"
    body = {
        "status": "ready" if is_ready else "not ready",
        "checks": {"store": "open" if service.is_open else "not open", "worker": worker},
    }
    return JSONResponse(body, status_code=200 if is_ready else 503)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    dependencies=[Depends(require_unless_loopback("viewer"))],
    responses={200: {"content": {"text/plain": {}}, "description": "The Prometheus text format"}},
)
async def metrics(request: Request) -> Response:
    """Open to this machine where HTTP_TRUST_LOOPBACK is set; else with a key of scope `viewer`."""
    running = running_of(request)
    assert running.metrics is not None, "whoever is asked for figures counts them"
    if running.is_open:
        await answers_of(request).get("gauges", GAUGES_FRESH_SECONDS, running.set_gauges)
    return Response(generate_latest(running.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _checks(service: Running) -> dict[str, bool | str]:
    """Whether the database, and whatever else the systems depend on, answers, and what keeps the database from working.

    A look takes no lock: that writes go through is proved by a small one that every process makes by itself each other second.
    """
    wrong = service.app.store.trouble() or service.proof.sentence()
    checks: dict[str, bool | str] = {"database": wrong or await service.store_answers()}
    for system in service.app.systems.values():
        checks |= await system.checks()
    return checks
