"""The web application around a service."""

from fastapi import FastAPI

from redrive._version import __version__
from redrive.web import health, start
from redrive.web.envelope import Envelope
from redrive.web.errors import add_error_handlers
from redrive.wiring import Service


def make_web(service: Service) -> FastAPI:
    """The ASGI application of a service; it neither opens nor closes it."""
    web = FastAPI(
        title="redrive",
        version=__version__,
        description="Durable retries: health, metrics and what waits.",
        # Their pages load scripts from elsewhere; the description itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
    )
    web.state.service = service
    web.state.pulse = health.Pulse()
    web.state.views = start.Views()
    web.add_middleware(Envelope)
    add_error_handlers(web)
    web.include_router(health.router)
    web.include_router(start.router)
    return web
