"""`redrive secrets`: the keys that stored secrets are encrypted with."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn
from sqlalchemy import Column

from redrive.app import Redrive
from redrive.cli.opened import on_store, person
from redrive.cli.options import AppOption, DatabaseOption, JsonOption
from redrive.cli.output import PROBLEM, complain, err, out, print_json, say
from redrive.errors import needs_extra
from redrive.ledgers.sql import migrate
from redrive.ledgers.sql.database import Database
from redrive.wiring import KNOWN_SYSTEMS

if TYPE_CHECKING:
    from redrive.access.kept_secrets import KeptSecrets
    from redrive.access.secret_box import SecretBox
    from redrive.ledgers.aws.client import Dynamo

secrets = typer.Typer(help="Make keys for stored secrets, and encrypt all of them again.", no_args_is_help=True)


@secrets.command("new-key")
def new_key() -> None:
    """Print a new key for REDRIVE_SECRET_KEY. It is kept nowhere.

    Example: [cyan]redrive secrets new-key[/]
    """
    from redrive.access.secret_box import new_key

    out().print(new_key(), markup=False)


@secrets.command("rotate")
def rotate(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """Encrypt every stored secret with the first key, including those that are in the clear. It can be interrupted and run again.

    To change the key, put the new one before the old one (REDRIVE_SECRET_KEY=new,old), restart every process with both, rotate, and remove
    the old one. Without REDRIVE_SECRET_KEY the keys are the lines of the file beside the SQLite database, the new one first.

    Example: [cyan]redrive secrets rotate[/]
    """
    with needs_extra("`redrive secrets rotate`", "service"):
        from redrive.access.kept_secrets import KeptSecrets
        from redrive.systems.kit.secret_keeper import SecretKeeper

    async def encrypt(opened: Redrive) -> KeptSecrets:
        box = SecretKeeper(opened.store.file).box(make=True)
        with Progress(TextColumn("encrypting"), MofNCompleteColumn(), console=err(), transient=True) as bar:
            shown = bar.add_task("", total=None)
            return await rotate_all(opened, box, lambda amount: bar.advance(shown, amount))

    standing = on_store(encrypt, database, app)
    if json:
        print_json(asdict(standing))
    else:
        say(
            f"{standing.total} secrets: {standing.changed} were encrypted again, {standing.plain} of them were in the clear before"
        )
    if standing.unreadable:
        complain(
            f"{standing.unreadable} secrets open with none of the keys: add the key that they were encrypted with, and rotate again"
        )
        raise typer.Exit(PROBLEM)
    if not json:
        say("the first key opens all of them: the other keys can be removed")


async def look_at_all(app: Redrive, box: "SecretBox | None") -> "KeptSecrets":
    """How the secrets of all systems are kept in the application's store."""
    if app.store.keeps_tasks:
        from redrive.access.sql.stored_secrets import look_at_secrets

        return await look_at_secrets(app.database, await secret_columns(app.database), box)
    from redrive.systems.triggers.aws.secrets import look_at_item_secrets

    return await look_at_item_secrets(dynamo_of(app), box)


async def rotate_all(app: Redrive, box: "SecretBox", progress: Callable[[int], None] | None = None) -> "KeptSecrets":
    """Seal the secrets of all systems anew."""
    if app.store.keeps_tasks:
        from redrive.access.sql.stored_secrets import rotate_secrets

        return await rotate_secrets(app.database, await secret_columns(app.database), box, progress, by=person())
    from redrive.systems.triggers.aws.secrets import rotate_item_secrets

    return await rotate_item_secrets(dynamo_of(app), box, progress, by=person())


def dynamo_of(app: Redrive) -> "Dynamo":
    """The table of an application that is kept in DynamoDB."""
    from redrive.stores.aws import ItemStore

    assert isinstance(app.store, ItemStore)
    return app.store.dynamo


async def secret_columns(database: Database) -> list[Column[Any]]:
    """The columns with secrets, of the systems whose tables are there."""
    there = await migrate.versions(database)
    return [column for name, system in KNOWN_SYSTEMS.items() if name in there for column in system.secrets]
