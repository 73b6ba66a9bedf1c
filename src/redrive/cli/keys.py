"""`redrive keys`: who may use the service over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from redrive.access.keys import ApiKey, Scope, read_scopes
from redrive.cli.opened import on_store, person
from redrive.cli.options import AppOption, DatabaseOption, JsonOption, duration_option
from redrive.cli.output import PROBLEM, complain, exactly, out, print_json, say
from redrive.operator.json_views import fields_json

keys = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)


@keys.command("create")
def create(
    user: Annotated[str, typer.Option(help="Who the key is for.")],
    scope: Annotated[list[str], typer.Option(help=f"What it may do; may be given more than once: {', '.join(Scope)}.")],
    expires: Annotated[timedelta | None, duration_option("--expires", "How long it stays valid, such as 30d.")] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key. It is shown once: only its hash is kept.

    Example: [cyan]redrive keys create --user grafana --scope viewer --expires 90d[/]
    """
    read_scopes(scope)  # before the store is opened: a wrong scope needs no database
    made = on_store(
        lambda opened: opened.store.keys.create(user, scope, expires=expires, by=person()), database, app, create=True
    )
    if json:
        print_json(_key_json(made.key) | {"key": made.secret})
        return
    say(f"key [bold]{made.key.id}[/] for {escape(user)} ({', '.join(made.key.scopes)}); it is shown only once:")
    out().print(made.secret, markup=False, soft_wrap=True)


@keys.command("list")
def list_keys(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """List all keys, the revoked ones too.

    Example: [cyan]redrive keys list --json[/]
    """
    found = on_store(lambda opened: opened.store.keys.list(), database, app)
    if json:
        print_json({"keys": [_key_json(key) for key in found]})
        return
    table = Table("id", "owner", "scopes", "made", "expires", "state", box=None, header_style="bold")
    now = datetime.now(UTC)
    for key in found:
        state = (
            "[red]revoked[/]" if key.revoked_at else "[green]valid[/]" if key.is_valid(now) else "[yellow]expired[/]"
        )
        expires = exactly(key.expires_at) if key.expires_at else "never"
        table.add_row(key.id, escape(key.owner), ", ".join(key.scopes), exactly(key.created_at), expires, state)
    out().print(table if found else "no keys yet: make one with `redrive keys create`")


@keys.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `redrive keys list` shows it.")],
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a key: it is refused from now on.

    Example: [cyan]redrive keys revoke 3f9a61c0d2b4[/]
    """
    revoked = on_store(lambda opened: opened.store.keys.revoke(id, by=person()), database, app)
    if revoked is None:
        complain(f"there is no key {id!r}: `redrive keys list` shows all")
        raise typer.Exit(PROBLEM)
    if json:
        print_json(_key_json(revoked))
    else:
        say(f"key {revoked.id} of {escape(revoked.owner)} is refused from now on")


def _key_json(key: ApiKey) -> dict[str, Any]:
    """What is known of a key."""
    return fields_json(key, ("key_id", "owner", "scopes", "created_at", "expires_at", "revoked_at"), key_id=key.id)
