"""`redrive relay`: the retry scheduler for RabbitMQ without the rest."""

from typing import Annotated

import typer
from rich.markup import escape

from redrive.app import Redrive
from redrive.cli.common import say
from redrive.cli.serve import require_extra, serve_app
from redrive.core.failure import redact
from redrive.settings import Settings, load, load_settings
from redrive.systems.relay.settings import RelaySettings
from redrive.wiring import Service, attach_relay, observe_with_logs, set_up_logs

SERVICE_NAME = "retry-scheduler"

relay = typer.Typer(help="The retry scheduler for RabbitMQ.", no_args_is_help=True, rich_markup_mode="rich")


@relay.callback()
def about() -> None:
    """The retry scheduler for RabbitMQ."""


@relay.command()
def run(
    host: Annotated[str | None, typer.Option(help="Where to listen; without it HTTP_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Without it HTTP_PORT or 8086.", min=0, max=65535)] = None,
) -> None:
    """Run the relay alone, with /health, /ready and /metrics, until SIGTERM or Ctrl-C.

    It takes failed messages from RETRY_QUEUE, keeps them in DATABASE_URL, and publishes them to their own queues when they
    are due. Several may run side by side.

    RABBITMQ_URL names the broker, DATABASE_URL the database.

    Example: [cyan]redrive relay run --port 8087[/]
    """
    settings = _named(load_settings())
    chosen = load(RelaySettings)
    set_up_logs(settings)
    require_extra("`redrive relay run`")
    app = Redrive(settings.database_url)
    attach_relay(app, chosen, service=settings.service_name)
    observe_with_logs(app)
    serve_app(app, settings, host, port, lambda service, url: _introduce(chosen, service, url))


def _named(settings: Settings) -> Settings:
    if "service_name" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"service_name": SERVICE_NAME})


def _introduce(settings: RelaySettings, service: Service, url: str) -> None:
    say(f"  broker       {escape(redact(settings.rabbitmq_url))}")
    say(f"  queues       {escape(settings.retry_queue)} → … → {escape(settings.manual_review_queue)}")
    say(f"[dim]{service.settings.service_name} is ready when {url}ready says so; Ctrl-C stops.[/]\n")
