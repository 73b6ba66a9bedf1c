"""`redrive serve`: workers, health, metrics, the operator API and its pages in one process."""

import asyncio
import contextlib
import errno
import shutil
import socket
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.markup import escape

from redrive._version import __version__
from redrive.app import Redrive
from redrive.cli.app_path import load_app
from redrive.cli.common import say
from redrive.cli.worker import run_to_the_end, stop_on_signals
from redrive.core.failure import redact
from redrive.errors import SettingsError
from redrive.ledgers.open import open_database
from redrive.settings import Settings, load_settings
from redrive.wiring import Service, attach_systems, needs_extra, observe_with_logs, set_up_logs

SAMPLE = "examples.sample:app"
"""The application of `make run`, which is in the repository and not in the package."""


def serve(
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Your application; without it nothing is run, only shown."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; without it HTTP_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Without it HTTP_PORT or 8086.", min=0, max=65535)] = None,
) -> None:
    """Run an application's workers and serve its page, health and metrics, until SIGTERM or Ctrl-C.

    Example: [cyan]redrive serve --app shop.tasks:app[/]
    """
    settings = load_settings()
    set_up_logs(settings)
    require_extra("`redrive serve`")
    loaded = load_app(app) if app is not None else Redrive(settings.database_url)
    attach_systems(loaded, settings.redrive_systems)
    observe_with_logs(loaded)
    serve_app(loaded, settings, host, port, lambda service, url: _introduce(service, url, app))


Introduce = Callable[[Service, str], None]
"""Says to people at a terminal what is served at this URL, when the store is open."""


def serve_app(app: Redrive, settings: Settings, host: str | None, port: int | None, introduce: Introduce) -> None:
    """Run the application's workers and systems and serve its routes, until SIGTERM or Ctrl-C."""
    listening = listen(settings.http_host if host is None else host, settings.http_port if port is None else port)
    with contextlib.closing(listening):
        run_to_the_end(lambda: _serve(app, settings, listening, introduce))


def require_extra(what: str) -> None:
    """Raise a `MissingExtraError` unless there is what a service needs."""
    with needs_extra(what, "service"):
        import uvicorn  # noqa: F401

        import redrive.web.app  # noqa: F401


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a `SettingsError` that says why there cannot be one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        raise SettingsError(f"{host!r} is not an address of this machine: change --host or HTTP_HOST") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        raise SettingsError(_why_not(error, host, port)) from None
    listening.setblocking(False)
    return listening


def _why_not(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is in use: stop what listens there, or choose another with --port or HTTP_PORT"
            )
        case errno.EACCES:
            return f"port {port} needs more rights than this user has: choose one above 1023 with --port or HTTP_PORT"
        case errno.EADDRNOTAVAIL:
            return f"{host!r} is not an address of this machine: change --host or HTTP_HOST"
        case _:
            return f"cannot listen on {host} port {port}: {error.strerror}"


async def _serve(app: Redrive, settings: Settings, listening: socket.socket, introduce: Introduce) -> None:
    from redrive.web.app import make_web
    from redrive.web.server import make_server

    service = Service(app, settings)
    server = make_server(make_web(service), settings)
    stop_on_signals(service.stop)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    working = asyncio.create_task(service.run())
    greeting = asyncio.create_task(_greet(service, listening, introduce))
    try:
        await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
        service.stop()
        # Health and page stay until the workers have finished; an error of the work is told after both have ended.
        await asyncio.wait({working})
    finally:
        greeting.cancel()
        server.should_exit = True
        await asyncio.wait({serving})
        await app.close()
    await working
    await serving


async def _greet(service: Service, listening: socket.socket, introduce: Introduce) -> None:
    url = url_of(listening)
    say(f"[bold]redrive {__version__}[/] listens on [bold cyan]{url}[/]")
    await service.opened.wait()
    app = service.app
    say(f"  database     {escape(redact(app.database.url))} ({await app.database.describe()})")
    if app.systems:
        say(f"  systems      {', '.join(sorted(app.systems))}")
    if service.first_key is not None:
        say(f"  admin key    [bold]{service.first_key}[/] (made now and shown this once: keep it)")
        service.first_key = None
    introduce(service, url)


def _introduce(service: Service, url: str, path: str | None) -> None:
    handlers = sum(len(lane.handlers) for lane in service.app.lanes.values())
    if path is None:
        say("  application  none: tasks are shown but not run; give one with [cyan]--app MODULE:APP[/]")
    else:
        say(f"  application  {escape(path)}, {handlers} handler{'' if handlers == 1 else 's'}")
    _suggest(service, url, path)


def _suggest(service: Service, url: str, path: str | None) -> None:
    # Commands find the store by DATABASE_URL; where the application has another, it must be named.
    same = open_database(service.settings.database_url).url == service.app.database.url
    where = "" if same else f" --app {path}"
    lines = [(f"redrive doctor{where}", "is everything well?")]
    if path == SAMPLE:
        lines = [
            (f"redrive tasks add flaky.hello{where}", "fails twice, then succeeds"),
            (f"redrive tasks add poison.hello{where}", "fails four times in about ten seconds, then it is dead"),
            (f"redrive tasks list{where}", "what became of them; the page shows it too"),
            (f'redrive tasks redrive --kind poison.hello --reason "try again"{where}', "bring it back"),
        ]
    say(f"\nWhat to try next: look at [cyan]{url}[/], and in a second terminal")
    width = max(len(command) for command, _ in lines)
    for command, why in lines:
        say(f"  [cyan]{command.ljust(width)}[/]  [dim]{why}[/]")
    if "webhooks" in service.app.systems:
        _suggest_webhook(url, path)
    if shutil.which("redrive") is None:
        say(f"[dim]redrive is not on your PATH; here it is {escape(sys.argv[0])}[/]")
    say("[dim]Ctrl-C stops.[/]\n")


def _suggest_webhook(url: str, path: str | None) -> None:
    given = '{"idempotency_key": "hello-1", "event_type": "flaky.hello", "payload": {"to": "you"}}'
    fails = ", which fails twice and then succeeds" if path == SAMPLE else ""
    say(f"Send a webhook{fails}; sent again it is known, and not processed twice:")
    say(f"  [cyan]curl {url}webhooks -H 'Content-Type: application/json' -d '{escape(given)}'[/]")
    say(f"  [cyan]curl '{url}webhooks?idempotency_key=hello-1'[/]  [dim]what became of it[/]")


def url_of(listening: socket.socket) -> str:
    """Where to look from this machine."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}/"
