"""`make demo`: serve the demo, and tell a visitor on this machine where it is and with which key to act."""

import asyncio
import logging
import secrets
from urllib.parse import urlsplit

import structlog
import typer
from pydantic import SecretStr
from rich.markup import escape

from redrive import hours
from redrive.cli.listen import require_extra
from redrive.cli.output import ClearErrors, say
from redrive.cli.serve import serve_app
from redrive.running import Service
from redrive.settings import Settings, load_settings
from redrive.wiring import observe_with_logs, set_up_logs

VISITOR = "demo visitor"
KEY_LASTS = hours(12)
HERE = ("127.0.0.1", "::1", "localhost")

cli = typer.Typer(cls=ClearErrors, add_completion=False, pretty_exceptions_enable=False)


@cli.callback(invoke_without_command=True)
def serve() -> None:
    """Serve the demo, until SIGTERM or Ctrl-C. HTTP_HOST and HTTP_PORT say where, DATABASE_URL on which database."""
    settings = load_settings()
    set_up_logs(settings)
    if "log_level" not in settings.model_fields_set:
        # Each dead letter is an error in the log. Here the pages tell of them, and the key must not scroll away.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    require_extra("the demo")
    from examples.demo import app

    observe_with_logs(app)
    if settings.redrive_admin_key is None:
        # The visitor gets a key that can act but not make keys; this one nobody knows, and the next start replaces it.
        nobody = {"redrive_admin_key": SecretStr(secrets.token_urlsafe(32))}
        settings = settings.model_copy(update=nobody)
    inviting: set[asyncio.Task[None]] = set()

    def introduce(service: Service, url: str) -> None:
        if urlsplit(url).hostname in HERE:
            for one in app.traffic:
                one.url = url
        inviting.add(asyncio.create_task(invite(service, settings, url)))

    serve_app(app, settings, None, None, introduce)


async def invite(service: Service, settings: Settings, url: str) -> None:
    """Say how to come in. The key is shown only where nobody but this machine can use it."""
    if settings.http_host in HERE:
        made = await service.keys.create(VISITOR, ["operator"], expires=KEY_LASTS)
        shown = f"[bold]{made.secret}[/] (for this demo only; good for 12 hours)"
    else:
        shown = (
            f"none is shown on {escape(settings.http_host)}: [cyan]redrive keys create --user you --scope operator[/]"
        )
    say(f"  key          {shown}")
    say(f"\nLook at [cyan]{url}[/]; to act there, log in with the key at [cyan]{url}login[/].")
    say("Within a minute everything has something to show. An outage begins every two minutes, and heals.")
    say("What has ended is forgotten after half an hour. [dim]LOG_LEVEL=info shows the log; Ctrl-C stops.[/]\n")


cli()
