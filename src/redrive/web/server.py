"""The HTTP server around the web application."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from redrive.settings import Settings
from redrive.web.connections import ConnectionLimits, Doorkeeper, backlog_for, connections_for, files_allowed, guarded

KEEP_ALIVE_SECONDS = 75
"""Longer than clients wait that ask every few seconds: a connection closed under a request is an error for nothing."""
TICKS_PER_SECOND = 10


class HttpServer(uvicorn.Server):
    """Leaves the signals to us, which stop the workers first, and looks after its connections every second."""

    def __init__(self, config: uvicorn.Config, doorkeeper: Doorkeeper) -> None:
        super().__init__(config)
        self._doorkeeper = doorkeeper

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """See `uvicorn.Server`."""
        if counter % TICKS_PER_SECOND == 0:
            self._doorkeeper.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)


def make_server(web: Any, settings: Settings) -> HttpServer:
    """A server for this ASGI application."""
    files = files_allowed()
    doorkeeper = Doorkeeper(
        ConnectionLimits(
            connections=min(settings.http_connections_max, connections_for(files)),
            per_address=settings.http_connections_per_address,
        )
    )
    config = uvicorn.Config(
        web,
        http=guarded(doorkeeper),
        ws="none",
        backlog=backlog_for(files),
        log_config=None,
        access_log=False,  # the envelope logs each request, redacted
        server_header=False,
        # Who may look depends on the caller's address: no header may change it, but for those of proxies that are named.
        proxy_headers=bool(settings.http_trusted_proxies),
        forwarded_allow_ips=list(settings.http_trusted_proxies),
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(settings.worker_grace.total_seconds())),
    )
    return HttpServer(config, doorkeeper)
