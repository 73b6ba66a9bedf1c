"""Serving over HTTP beside work of our own: the socket, where it is, and who ends first."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from redrive.errors import SettingsError, needs_extra
from redrive.settings import Settings


def require_extra(what: str) -> None:
    """Raise a `MissingExtraError` unless there is what a service needs."""
    with needs_extra(what, "service"):
        import uvicorn  # noqa: F401

        import redrive.web.app  # noqa: F401


def listen(host: str, port: int, option: str = "--port or HTTP_PORT") -> socket.socket:
    """A listening socket, or a `SettingsError` that says why there cannot be one, and which `option` to change."""
    other_host = (
        f"{host!r} is not an address of this machine: change {option.replace('port', 'host').replace('PORT', 'HOST')}"
    )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        raise SettingsError(other_host) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        why = other_host if error.errno == errno.EADDRNOTAVAIL else _why_not(error, host, port, option)
        raise SettingsError(why) from None
    listening.setblocking(False)
    return listening


def _why_not(error: OSError, host: str, port: int, option: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use: stop what listens there, or choose another with {option}"
        case errno.EACCES:
            return f"port {port} needs more rights than this user has: choose one above 1023 with {option}"
        case _:
            return f"cannot listen on {host} port {port}: {error.strerror}"


async def serve_beside(
    web: Any, settings: Settings, listening: socket.socket, work: Coroutine[Any, Any, None], stop: Callable[[], None]
) -> None:
    """Serve while the work goes on. Health stays until it has ended; an error of the work is told after both have ended."""
    from redrive.web.server import make_server

    server = make_server(web, settings)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
        stop()
        await asyncio.wait({working})
    finally:
        server.should_exit = True
        await asyncio.wait({serving})
    await working
    await serving


def url_of(listening: socket.socket) -> str:
    """Where to look from this machine."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}/"
