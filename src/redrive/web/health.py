"""For monitoring: `/health`, `/ready`, `/metrics`."""

import contextlib
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from redrive.core.states import State
from redrive.http.guard import require_unless_loopback
from redrive.operator.census import amounts_now
from redrive.operator.figures import Figures
from redrive.web.answers import answers_of
from redrive.web.probes import health_answer
from redrive.web.service import service_of
from redrive.wiring import Service

HEALTH_FRESH_SECONDS = 1.0
GAUGES_FRESH_SECONDS = 5.0
"""How long counted depths hold: however many scrape, the tables are counted this often."""

router = APIRouter(tags=["health"])

_unwell: dict[int | str, dict[str, Any]] = {503: {"description": "Not now"}}


@router.get("/health", summary="Whether the service is alive and what it depends on answers", responses=_unwell)
async def health(request: Request) -> JSONResponse:
    """Open to all: it tells nothing but this."""
    service = service_of(request)
    checks = await answers_of(request).get("health", HEALTH_FRESH_SECONDS, lambda: _checks(service))
    return health_answer(checks, service.uptime)


@router.get("/ready", summary="Whether the store is open and the worker loop runs", responses=_unwell)
async def ready(request: Request) -> JSONResponse:
    """Open to all."""
    service = service_of(request)
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
    service = service_of(request)
    if service.is_open:
        await answers_of(request).get("gauges", GAUGES_FRESH_SECONDS, lambda: _set_gauges(service))
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _checks(service: Service) -> dict[str, bool | str]:
    """Whether the database, and whatever else the systems depend on, answers, and what keeps the database from working."""
    checks: dict[str, bool | str] = {"database": service.app.database.trouble() or await service.database_answers()}
    for system in service.app.systems.values():
        checks |= await system.checks()
    return checks


async def _set_gauges(service: Service) -> None:
    """How many tasks stand where in each lane. A store that is away leaves the last numbers and says that it is not up."""
    for lane in service.app.lanes.values():
        try:
            ledger = await lane.ledger()
            counted = (await Figures(service.app.database).states()).get(lane.name)
            # Before the first census a short look must do: no scrape may count a large table.
            counts = await lane.counts() if counted is None else await amounts_now(ledger, counted)
            oldest = await ledger.oldest_due()
        except Exception:  # a scrape must still get the counters
            service.metrics.up.labels(lane.name).set(0)
            continue
        service.metrics.up.labels(lane.name).set(service.app.database.trouble() is None)
        for state in State:
            service.metrics.depth.labels(lane.name, state.value).set(counts.get(state, 0))
        service.metrics.oldest_due.labels(lane.name).set(oldest.total_seconds() if oldest else 0)
    for system in service.app.systems.values():
        with contextlib.suppress(Exception):
            await system.refresh()
