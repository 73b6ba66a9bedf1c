"""`redrive relay`: the retry scheduler for RabbitMQ without the rest, and the handler of dead letters before it."""

import asyncio
import contextlib
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from redrive.app import Redrive
from redrive.cli.listen import listen, require_extra, serve_beside, url_of
from redrive.cli.options import JsonOption
from redrive.cli.output import print_json, say
from redrive.cli.serve import serve_app
from redrive.cli.worker import run_to_the_end, stop_on_signals
from redrive.core.failure import redact
from redrive.errors import needs_extra
from redrive.running import Service
from redrive.settings import Settings, load, load_settings
from redrive.wiring import attach_relay, observe_with_logs, set_up_logs

if TYPE_CHECKING:
    from redrive.systems.relay.dead_letters import DeadLetters
    from redrive.systems.relay.settings import RelaySettings

SERVICE_NAME = "retry-scheduler"
DEAD_LETTERS_NAME = "dead-letters"

relay = typer.Typer(help="The retry scheduler for RabbitMQ.", no_args_is_help=True, rich_markup_mode="rich")


@relay.callback()
def about() -> None:
    """The retry scheduler for RabbitMQ."""


@relay.command()
def run(
    host: Annotated[str | None, typer.Option(help="Where to listen; by default HTTP_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="By default HTTP_PORT or 8086.", min=0, max=65535)] = None,
) -> None:
    """Run the relay alone, with /health, /ready and /metrics, until SIGTERM or Ctrl-C.

    It takes failed messages from RETRY_QUEUE, keeps them in DATABASE_URL, and publishes them to their own queues when they
    are due. Several may run side by side.

    RABBITMQ_URL names the broker, DATABASE_URL the database.

    Example: [cyan]redrive relay run --port 8087[/]
    """
    settings = _named(load_settings(), SERVICE_NAME)
    require_extra("`redrive relay run`")
    from redrive.systems.relay.settings import RelaySettings

    chosen = load(RelaySettings)
    set_up_logs(settings)
    app = Redrive(settings.database_url)
    attach_relay(app, chosen, service=settings.service_name)
    observe_with_logs(app)
    serve_app(app, settings, host, port, lambda service, url: _introduce(chosen, service, url))


RulesOption = Annotated[
    str | None,
    typer.Option("--rules", metavar="FILE", help="The rules; by default DEAD_LETTER_RULES or redrive's own."),
]


@relay.command("dead-letters")
def dead_letters(
    exchange: Annotated[
        str | None, typer.Option(help="The dead-letter exchange; by default DEAD_LETTER_EXCHANGE or dead-letters.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            help="The queue bound to it; by default DEAD_LETTER_QUEUE or dead-letters.pending. "
            "Given without an exchange, it is taken as it is."
        ),
    ] = None,
    routing_key: Annotated[
        list[str] | None,
        typer.Option(help="What to bind with, where the exchange is direct; may be given more than once."),
    ] = None,
    rules: RulesOption = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; by default HTTP_HOST or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="By default HTTP_PORT or 8086.", min=0, max=65535)] = None,
) -> None:
    """Hand dead letters to the relay, with /health, /ready and /metrics, until SIGTERM or Ctrl-C.

    What the rules call transient is retried by the relay; all else it puts before people at once. It needs the broker
    (RABBITMQ_URL) and no database. Several may run side by side.

    Example: [cyan]redrive relay dead-letters --exchange dlx --port 8087[/]

    Example: [cyan]redrive relay dead-letters --queue orders.dead --rules rules.toml[/]
    """
    given = {
        "dead_letter_exchange": exchange,
        "dead_letter_queue": queue,
        "dead_letter_routing_keys": tuple(routing_key or ()) or None,
        "dead_letter_rules": rules,
    }
    settings = _named(load_settings(), DEAD_LETTERS_NAME)
    require_extra("`redrive relay dead-letters`")
    with needs_extra("the dead-letter handler", "rabbitmq"):
        from redrive.systems.relay.dead_letters import DeadLetters
        from redrive.systems.relay.rules import load_rules
        from redrive.systems.relay.settings import DeadLetterSettings, RelaySettings
    source = load(DeadLetterSettings, **{name: value for name, value in given.items() if value is not None})
    chosen_rules = load_rules(source.dead_letter_rules)
    made = DeadLetters(load(RelaySettings), source, chosen_rules, service=settings.service_name)
    set_up_logs(settings)
    listening = listen(settings.http_host if host is None else host, settings.http_port if port is None else port)
    with contextlib.closing(listening):
        run_to_the_end(lambda: _hand_over(made, settings, listening))


async def _hand_over(made: "DeadLetters", settings: Settings, listening: socket.socket) -> None:
    from redrive.web.probes import make_probes

    stopped = asyncio.Event()
    stop_on_signals(stopped.set)
    _introduce_dead_letters(made, settings, url_of(listening))
    probes = make_probes(made, made.metrics.registry)
    await serve_beside(probes, settings, listening, made.run(stopped), stopped.set)


def _introduce_dead_letters(made: "DeadLetters", settings: Settings, url: str) -> None:
    source = made.source
    origin = f"exchange {source.exchange} → {source.dead_letter_queue}" if source.exchange else source.dead_letter_queue
    say(f"  broker       {escape(redact(made.settings.rabbitmq_url))}")
    say(f"  queues       {escape(origin)} → {escape(made.settings.retry_queue)}")
    say(f"  rules        {len(made.rules.rules)} from {escape(source.dead_letter_rules or 'redrive itself')}")
    say(f"[dim]{escape(settings.service_name)} is ready when {url}ready says so; Ctrl-C stops.[/]\n")


@relay.command()
def classify(
    error: Annotated[str, typer.Option(help="The text of the error.")] = "",
    reason: Annotated[
        str, typer.Option(help="Why it died: rejected, expired, maxlen, delivery_limit, or published.")
    ] = "rejected",
    queue: Annotated[str, typer.Option(help="The queue that it failed in.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be given more than once.")
    ] = None,
    deaths: Annotated[int, typer.Option(help="How often it has died.", min=0)] = 1,
    rules: RulesOption = None,
    json: JsonOption = False,
) -> None:
    """Say what the rules make of a dead letter, and which of them decides. Nothing is sent, and no broker is needed.

    Example: [cyan]redrive relay classify --rules rules.toml --queue orders --error "card declined"[/]
    """
    headers = {}
    for given in header or ():
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{given!r} is not a header: write NAME=VALUE", param_hint="--header")
        headers[name] = value
    with needs_extra("sorting dead letters", "rabbitmq"):
        from redrive.systems.relay.rules import DeadLetterFacts, load_rules
        from redrive.systems.relay.settings import DeadLetterSettings
    chosen = load(DeadLetterSettings, **({} if rules is None else {"dead_letter_rules": rules}))
    chosen_rules = load_rules(chosen.dead_letter_rules)
    trouble = DeadLetterFacts(queue=queue, reason=reason, error=error, deaths=deaths, headers=headers)
    verdict = chosen_rules.classify(trouble)
    if json:
        print_json({"class": verdict.letter_class.value, "rule": verdict.rule})
    else:
        sys.stdout.write(f"{verdict.letter_class.value} (rule {verdict.rule})\n")


def _named(settings: Settings, name: str) -> Settings:
    if "service_name" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"service_name": name})


def _introduce(settings: "RelaySettings", service: Service, url: str) -> None:
    say(f"  broker       {escape(redact(settings.rabbitmq_url))}")
    say(f"  queues       {escape(settings.retry_queue)} → … → {escape(settings.manual_review_queue)}")
    say(f"[dim]{service.settings.service_name} is ready when {url}ready says so; Ctrl-C stops.[/]\n")
