"""`redrive migrate`, `redrive grant` and `redrive adopt`: the tables that ledgers stand in."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.markup import escape
from sqlalchemy import Connection, Table, inspect

from redrive.cli.opened import choose_app, require_file
from redrive.cli.options import AppOption, DatabaseOption, JsonOption, SystemsOption, named_systems
from redrive.cli.output import PROBLEM, out, print_json, say
from redrive.core.durations import format_duration, parse_duration
from redrive.core.failure import redact
from redrive.core.table import LedgerTable
from redrive.errors import UsageError
from redrive.ledgers.adopt.check import examine
from redrive.ledgers.adopt.form import Findings
from redrive.ledgers.adopt.guess import as_code, corrected, guess
from redrive.ledgers.adopt.notices import notices as find_notices
from redrive.ledgers.postgres.partitions import partition as partition_history
from redrive.ledgers.sql import migrate as migrations
from redrive.settings import load_settings


def migrate(
    database: DatabaseOption = None,
    app: AppOption = None,
    systems: SystemsOption = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it.")] = False,
    partition: Annotated[
        str | None,
        typer.Option(metavar="daily|weekly|monthly", help="Partition the history of tries by time (PostgreSQL)."),
    ] = None,
    keep_history: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="How long partitions are kept, such as 90d; by default as long as their tasks."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Bring redrive's own tables to the version of this code, and those of the systems that are named.

    Systems are named by [cyan]--systems[/] or REDRIVE_SYSTEMS, or are the application's own. Those that have tables here already
    are brought along; no others get any. SQLite files are migrated by themselves when they are opened; PostgreSQL only here.

    Example: [cyan]redrive migrate --database postgresql://shop@db/shop --systems flags,webhooks[/]
    """
    named = named_systems(systems, load_settings())
    chosen = choose_app(database, app, named)
    if not chosen.store.keeps_tasks:
        raise UsageError(
            "DynamoDB has no tables to migrate: deploy/aws/template.yaml makes the table, its indexes and the queues"
        )
    wanted = {*named, *migrations.with_tables(chosen.systems)}
    if keep_history is not None and partition is None:
        raise UsageError(
            "--keep-history is how long partitions are kept: name them with --partition daily, weekly or monthly"
        )
    if sql and partition is not None:
        raise UsageError("partitions are made in steps that look at the table: leave --sql out")
    keep = None if keep_history is None else parse_duration(keep_history)
    if sql:
        sys.stdout.write(migrations.migration_sql(chosen.database.dialect.name, wanted))
        return

    async def work() -> tuple[migrations.Versions, migrations.Versions]:
        try:
            await chosen.database.open()
            there = set(await migrations.versions(chosen.database)) - {migrations.ENGINE}
            changed = await migrations.migrate(chosen.database, wanted | there)
            if partition is not None:
                await partition_history(chosen.database, partition, keep)
            return changed
        finally:
            await chosen.database.close()

    before, after = asyncio.run(work())
    shown = escape(redact(chosen.database.url))
    changed = {branch: version for branch, version in after.items() if before.get(branch) != version}
    if json:
        history = {} if partition is None else {"partitions": partition, "kept": keep and format_duration(keep)}
        print_json({"before": before, "after": after, "changed": bool(changed), **history})
    elif not changed:
        say(f"{shown} is up to date already ({_listed(after)})")
    else:
        say(f"{shown} was brought to {_listed(changed)}")
    if not json and partition is not None:
        kept = "as long as their tasks are" if keep is None else f"for {format_duration(keep)}"
        say(f"the history is partitioned {partition}, and partitions are kept {kept}")
    if not json and set(after) == {migrations.ENGINE}:
        known = ",".join(migrations.systems_with_tables())
        say(f"[dim]no system has tables there: name those that you use, such as --systems {known}[/]")


def _listed(versions: migrations.Versions) -> str:
    return ", ".join(f"{branch} {version}" for branch, version in versions.items())


def grant(
    schema: Annotated[
        str, typer.Option(envvar="REDRIVE_SCHEMA", help="The schema that redrive's tables are in.")
    ] = "public",
    owner: Annotated[str, typer.Option(help="The role that migrates.")] = "redrive_owner",
    worker: Annotated[str, typer.Option(help="The role that serves and works.")] = "redrive_worker",
    viewer: Annotated[str, typer.Option(help="The role that only reads.")] = "redrive_viewer",
) -> None:
    """Print the SQL for three roles of PostgreSQL: one that migrates, one that works, one that only reads.

    Nothing is run: an administrator reads it and hands it to psql.

    Example: [cyan]redrive grant --schema shop | psql shop[/]
    """
    from redrive.ledgers.postgres.grants import grants

    sys.stdout.write(grants(schema=schema, owner=owner, worker=worker, viewer=viewer))


def adopt(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table of yours whose rows must be retried.")
    ] = None,
    schema: Annotated[str | None, typer.Option(help="The schema that the table is in.")] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Guess how a table of yours maps to a ledger, and print the migration that it needs.

    With [cyan]--app[/] the mappings that your application declares are checked, and printed as they should be.
    Nothing is changed. Exit code 0 says that the table fits as it is, 1 that something is to be done.

    Example: [cyan]redrive adopt feature_flag_schedules[/]
    """
    chosen = choose_app(database, app)
    require_file(chosen.store)
    declared = [lane.table for lane in chosen.lanes.values() if lane.checked and table in (None, lane.table.name)]
    if app is None and table is None:
        raise UsageError("name a table, or your application with --app")
    if app is not None and not declared:
        raise UsageError("the application adopts no such table" if table else "the application adopts no table")

    async def work() -> list[_Look]:
        try:
            await chosen.database.open()
            if app is None:
                return [await chosen.database.read(_guessed, table or "", schema)]
            return [await chosen.database.read(_checked, one) for one in declared]
        finally:
            await chosen.database.close()

    looks = asyncio.run(work())
    if json:
        documents = [look.as_json() for look in looks]
        print_json(documents[0] if app is None else documents)
    else:
        for look in looks:
            look.print()
    if not all(look.fits for look in looks):
        raise typer.Exit(PROBLEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a look at a table came to."""

    mapping: LedgerTable
    declared: LedgerTable | None
    findings: Findings
    notices: list[str]
    doubts: list[str]
    unsaid: Sequence[str] = ()

    @property
    def fits(self) -> bool:
        return not self.findings.problems

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.mapping.name,
            "fits": self.fits,
            "mapping": as_code(self.mapping, self.unsaid),
            "doubts": self.doubts,
            "problems": self.findings.problems,
            "migration": self.findings.migration,
            "notices": self.notices,
        }

    def print(self) -> None:
        console = out()

        def show(heading: str, lines: Sequence[str]) -> None:
            if lines:
                console.print(f"\n[dim]{heading}[/]")
            for line in lines:
                console.print(line, markup=False, soft_wrap=True)

        if self.declared is None:
            show("# the mapping, as far as it is sure", [as_code(self.mapping, self.unsaid)])
        elif self.mapping != self.declared:
            show("# the mapping as it should be", [as_code(self.mapping)])
        else:
            show("# the mapping that the application declares", [as_code(self.mapping)])
        show("# yours to say", [f"# {doubt}" for doubt in self.doubts])
        show("-- what is missing", [f"-- {problem}" for problem in self.findings.problems])
        show("-- the migration that mends it", [f"{statement};" for statement in self.findings.migration])
        show("-- good to know", [f"-- {notice}" for notice in self.notices])
        if self.fits:
            console.print(f"\n[green]{escape(self.mapping.name)} fits[/]: use it with app.adopt(...)")


def _guessed(connection: Connection, name: str, schema: str | None) -> _Look:
    guessed = guess(connection, name, schema)
    table, findings = examine(connection, guessed.table, words_are_known=not guessed.unsaid)
    mapping = replace(guessed.table, **findings.mapping)
    notices = _notices(connection, guessed.table, table)
    if guessed.unsaid:  # which rows would be left alone depends on words that nobody has said
        notices = [one.partition(": give them")[0] for one in notices if "Words names" not in one]
    return _Look(
        mapping=mapping, declared=None, findings=findings, doubts=guessed.doubts, notices=notices, unsaid=guessed.unsaid
    )


def _checked(connection: Connection, declared: LedgerTable) -> _Look:
    table, findings = examine(connection, declared)
    mapping = corrected(connection, declared, findings.mapping)
    notices = _notices(connection, declared, table)
    if mapping != declared:
        # What the mapping as it should be needs is what is to be done.
        _, then = examine(connection, mapping)
        findings = Findings(problems=findings.problems, migration=then.migration or findings.migration)
    return _Look(mapping=mapping, declared=declared, findings=findings, doubts=[], notices=notices)


def _notices(connection: Connection, mapping: LedgerTable, table: Table) -> list[str]:
    """What is good to know, of columns that are there."""
    there = {column["name"] for column in inspect(connection).get_columns(mapping.name, schema=mapping.schema)}
    needed = {mapping.status, mapping.kind, mapping.payload} - {None}
    return find_notices(connection, mapping, table) if needed <= there else []
