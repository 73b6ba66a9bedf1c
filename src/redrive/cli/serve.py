"""`redrive serve`: workers, health, metrics, the operator API and its pages in one process."""

import asyncio
import contextlib
import json
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
from redrive.cli.listen import listen, require_extra, serve_beside, url_of
from redrive.cli.options import SystemsOption, named_systems
from redrive.cli.output import say
from redrive.cli.worker import run_to_the_end, stop_on_signals
from redrive.core.failure import redact
from redrive.running import Service
from redrive.settings import Settings, load_settings
from redrive.stores.open import open_store
from redrive.wiring import KNOWN_SYSTEMS, attach_systems, observe_with_logs, set_up_logs, store_url

SAMPLE = "examples.sample:app"
"""The application of `make run`, which is in the repository and not in the package."""


def serve(
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Your application; without it none of your handlers run."),
    ] = None,
    systems: SystemsOption = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; by default HTTP_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="By default HTTP_PORT or 8086.", min=0, max=65535)] = None,
) -> None:
    """Serve the dashboard, the operator API, health and metrics; run handlers and systems. Until SIGTERM or Ctrl-C.

    Handlers are those of [cyan]--app[/]; without it tasks are shown and can be acted on, but nothing runs them. Systems run
    if they are named by [cyan]--systems[/] or REDRIVE_SYSTEMS, or if the application has them; relay only where RABBITMQ_URL
    is set. At the start it says which run and which do not.

    Example: [cyan]redrive serve --app shop.tasks:app --systems flags[/]
    """
    settings = load_settings()
    named = named_systems(systems, settings)
    set_up_logs(settings)
    require_extra("`redrive serve`")
    loaded = load_app(app) if app is not None else Redrive(store_url(settings))
    attach_systems(loaded, named)
    observe_with_logs(loaded)
    serve_app(loaded, settings, host, port, lambda service, url: _introduce(service, url, app))


Introduce = Callable[[Service, str], None]
"""Says to people at a terminal what is served at this URL, when the store is open."""


def serve_app(app: Redrive, settings: Settings, host: str | None, port: int | None, introduce: Introduce) -> None:
    """Run the application's workers and systems and serve its routes, until SIGTERM or Ctrl-C."""
    listening = listen(settings.http_host if host is None else host, settings.http_port if port is None else port)
    with contextlib.closing(listening):
        run_to_the_end(lambda: _serve(app, settings, listening, introduce), answers=True)


async def _serve(app: Redrive, settings: Settings, listening: socket.socket, introduce: Introduce) -> None:
    from redrive.web.app import make_web

    service = Service(app, settings)
    stop_on_signals(service.stop)
    greeting = asyncio.create_task(_greet(service, listening, introduce))
    try:
        await serve_beside(make_web(service), settings, listening, service.run(), service.stop)
    finally:
        greeting.cancel()
        await app.close()


async def _greet(service: Service, listening: socket.socket, introduce: Introduce) -> None:
    url = url_of(listening)
    say(f"[bold]redrive {__version__}[/] listens on [bold cyan]{url}[/]")
    await service.opened.wait()
    app = service.app
    say(f"  store        {escape(redact(app.store.url))} ({await app.store.describe()})")
    say(f"  systems      {', '.join(sorted(app.systems)) or 'none'}")
    if service.first_key is not None:
        say(f"  admin key    [bold]{service.first_key}[/] (made now and shown this once: keep it)")
        service.first_key = None
    introduce(service, url)


def _introduce(service: Service, url: str, path: str | None) -> None:
    handlers = sum(len(lane.handlers) for lane in service.app.lanes.values())
    if off := how_to_turn_on(service.app):
        say(f"  not running  {off}")
    if path is None and service.app.store.keeps_tasks:
        say("  application  none: tasks are shown but not run; give one with [cyan]--app MODULE:APP[/]")
    elif path is not None:
        say(f"  application  {escape(path)}, {handlers} handler{'' if handlers == 1 else 's'}")
    _suggest(service, url, path)


def how_to_turn_on(app: Redrive) -> str:
    """The systems that do not run in this service, and what makes them run; nothing where all run."""
    off = [name for name in KNOWN_SYSTEMS if name not in app.systems] if app.store.keeps_tasks else []
    if not off:
        return ""
    untold = [name for name in off if not KNOWN_SYSTEMS[name].can_run]
    needs = "".join(f"; {name} needs {KNOWN_SYSTEMS[name].needs} too" for name in untold)
    named = ",".join(sorted({*app.systems, *off} & set(KNOWN_SYSTEMS)))
    return f"{', '.join(off)}: turn on those you want with [cyan]--systems[/] or REDRIVE_SYSTEMS={named}{needs}"


def _suggest(service: Service, url: str, path: str | None) -> None:
    # Commands find the store by DATABASE_URL; where the application has another, it must be named.
    same = open_store(store_url(service.settings)).url == service.app.store.url
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
    _suggest_webhook(service.app, url, path)
    if shutil.which("redrive") is None:
        say(f"[dim]redrive is not on your PATH; here it is {escape(sys.argv[0])}[/]")
    say("[dim]Ctrl-C stops.[/]\n")


def _suggest_webhook(app: Redrive, url: str, path: str | None) -> None:
    """One that somebody handles; where nobody does, that."""
    webhooks = app.systems.get("webhooks")
    if webhooks is None:
        return
    from redrive.systems.webhooks.tables import EVENTS

    webhooks.prepare()  # forwarding is a handler too
    kinds = [handler.kind for handler in app.lanes[EVENTS.name].handlers]
    if not kinds:
        say("Webhooks are taken in and wait, but nobody handles them here: give handlers with [cyan]--app[/], or a")
        say("WEBHOOK_FORWARD_URL.")
        return
    kind = ("flaky.*" if path == SAMPLE else kinds[0]).replace("*", "hello")
    given = json.dumps({"idempotency_key": "hello-1", "event_type": kind, "payload": {"to": "you"}})
    fails = ", which fails twice and then succeeds" if path == SAMPLE else ""
    say(f"Send a webhook{fails}; sent again it is known, and not processed twice:")
    say(f"  [cyan]curl {url}webhooks -H 'Content-Type: application/json' -d '{escape(given)}'[/]")
    say(f"  [cyan]curl '{url}webhooks?idempotency_key=hello-1'[/]  [dim]what became of it[/]")
