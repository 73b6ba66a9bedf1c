"""The command line: one file per group of commands, put together here.

Data goes to stdout, everything else to stderr. Exit codes: 0 it is well, 1 a problem was found or nothing changed, 2 the
command was used wrongly. Every error of ours is one clear line without a traceback.
"""

import sys
from typing import Annotated

import typer

from redrive._version import __version__
from redrive.cli import (
    audit,
    doctor,
    effects,
    flags,
    gates,
    keys,
    operations,
    policy,
    preview,
    relay,
    secrets,
    serve,
    status,
    store,
    tasks,
    verify,
    worker,
    workers,
)
from redrive.cli.output import ClearErrors

app = typer.Typer(
    cls=ClearErrors,
    name="redrive",
    help="Durable retries: run workers, look at tasks, bring dead ones back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Durable retries: run workers, look at tasks, bring dead ones back."""
    if version:
        sys.stdout.write(f"redrive {__version__}\n")
        raise typer.Exit


app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.command("migrate")(store.migrate)
app.command("grant")(store.grant)
app.command("adopt")(store.adopt)
app.add_typer(keys.keys, name="keys")
app.add_typer(secrets.secrets, name="secrets")
app.add_typer(tasks.tasks, name="tasks")
app.add_typer(gates.gates, name="gates")
app.add_typer(effects.effects, name="effects")
app.add_typer(operations.operations, name="operations")
app.command("workers")(workers.workers)
app.command("status")(status.status)
app.command("top")(status.top)
app.add_typer(audit.audit, name="audit")
app.add_typer(flags.flags, name="flags")
app.add_typer(relay.relay, name="relay")
app.command("preview")(preview.preview)
app.add_typer(policy.policy, name="policy")
app.command("doctor")(doctor.doctor)
app.command("verify")(verify.verify)


def main() -> None:
    """The entry of the console script."""
    app()
