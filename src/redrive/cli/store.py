"""`redrive migrate` and `redrive adopt`: the tables that ledgers stand in."""

import sys
from typing import Annotated

import typer
from rich.markup import escape
from sqlalchemy import Connection, make_url

from redrive.cli.common import (
    PROBLEM,
    AppOption,
    DatabaseOption,
    JsonOption,
    choose_app,
    database_url,
    out,
    print_json,
    require_file,
    run,
    say,
)
from redrive.core.failure import redact
from redrive.core.table import LedgerTable
from redrive.errors import TableError
from redrive.ledgers.adopt.check import adopt as check_table
from redrive.ledgers.adopt.guess import as_code, guess
from redrive.ledgers.open import open_database
from redrive.ledgers.sql import migrate as migrations
from redrive.settings import load_settings


def migrate(
    database: DatabaseOption = None,
    app: AppOption = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it.")] = False,  # noqa: FBT002
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Bring redrive's own tables, and those of the systems in REDRIVE_SYSTEMS, to the version of this code.

    SQLite files are migrated by themselves when they are opened; PostgreSQL only here.

    Example: [cyan]redrive migrate --database postgresql://shop@db/shop[/]
    """
    chosen = choose_app(database, app)
    named = {*load_settings().redrive_systems, *chosen.systems}
    systems = [name for name in migrations.systems_with_tables() if name in named]
    if sql:
        sys.stdout.write(migrations.migration_sql(make_url(chosen.database.url).get_backend_name(), systems))
        return

    async def work() -> tuple[migrations.Versions, migrations.Versions]:
        try:
            return await migrations.migrate(chosen.database, systems)
        finally:
            await chosen.database.close()

    before, after = run(work())
    shown = escape(redact(chosen.database.url))
    changed = {branch: version for branch, version in after.items() if before.get(branch) != version}
    if json:
        print_json({"before": before, "after": after, "changed": bool(changed)})
    elif not changed:
        say(f"{shown} is up to date already ({_listed(after)})")
    else:
        say(f"{shown} was brought to {_listed(changed)}")


def _listed(versions: migrations.Versions) -> str:
    return ", ".join(f"{branch} {version}" for branch, version in versions.items())


def adopt(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table of yours whose rows must be retried.")],
    schema: Annotated[str | None, typer.Option(help="The schema that the table is in.")] = None,
    database: DatabaseOption = None,
    json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Guess how a table of yours maps to a ledger, and print the migration that it needs.

    Nothing is changed. Exit code 0 says that the table fits as it is, 1 that it needs the migration.

    Example: [cyan]redrive adopt feature_flag_schedules[/]
    """
    url = database_url(database)
    require_file(url)
    opened = open_database(url)

    async def work() -> tuple[LedgerTable, TableError | None]:
        try:
            await opened.open()
            return await opened.read(_look, table, schema)
        finally:
            await opened.close()

    guessed, error = run(work())
    if json:
        problems, migration = (error.problems, error.migration) if error else ([], [])
        print_json(
            {
                "table": table,
                "fits": error is None,
                "mapping": as_code(guessed),
                "problems": problems,
                "migration": migration,
            }
        )
    else:
        _print(guessed, error)
    if error is not None:
        raise typer.Exit(PROBLEM)


def _look(connection: Connection, name: str, schema: str | None) -> tuple[LedgerTable, TableError | None]:
    guessed = guess(connection, name, schema)
    try:
        check_table(connection, guessed)
    except TableError as error:
        return guessed, error
    return guessed, None


def _print(guessed: LedgerTable, error: TableError | None) -> None:
    console = out()
    console.print("[dim]# the mapping, as far as the names tell; check the words and what the count means[/]")
    console.print(as_code(guessed), markup=False, soft_wrap=True)
    if error is None:
        console.print(f"\n[green]{guessed.name} fits[/]: use it with app.adopt(...)")
        return
    console.print("\n[dim]-- what is missing[/]")
    for problem in error.problems:
        console.print(f"-- {problem}", markup=False, soft_wrap=True)
    if error.migration:
        console.print("\n[dim]-- the migration that mends it[/]")
        for statement in error.migration:
            console.print(f"{statement};", markup=False, soft_wrap=True)
