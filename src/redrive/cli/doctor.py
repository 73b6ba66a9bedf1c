"""`redrive doctor`: look at the store, the clocks and the versions, and say what to do."""

import asyncio
import platform
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict

import typer
from rich.markup import escape
from sqlalchemy.exc import DBAPIError

from redrive._version import __version__
from redrive.access.secret_keys import is_private
from redrive.app import Redrive
from redrive.cli.doctor_database import LOCK_SECONDS_MAX, is_locked, look_at_postgres, look_at_sqlite
from redrive.cli.doctor_ledgers import look_at_lanes
from redrive.cli.findings import Finding
from redrive.cli.opened import choose_app
from redrive.cli.options import AppOption, DatabaseOption, JsonOption
from redrive.cli.output import PROBLEM, out, print_json
from redrive.cli.secrets import look_at_all, secret_columns
from redrive.core.failure import redact
from redrive.errors import MissingExtraError, NewerSchemaError, RedriveError, SettingsError
from redrive.ledgers.sql import migrate
from redrive.settings import load
from redrive.wiring import attach_found

MARKS = {"ok": "[green]✓[/]", "notice": "[yellow]![/]", "problem": "[red]✗[/]"}


def doctor(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """Check the store, its version and durability, and the clocks, and say what to do. Nothing is changed.

    With [cyan]--app[/] also adopted tables, and kinds that wait without a handler. Exit code 1 says that there is a problem.

    Example: [cyan]redrive doctor --app shop.tasks:app[/]
    """
    chosen = choose_app(database, app)

    async def work() -> list[Finding]:
        try:
            return [finding async for finding in examine(chosen, with_handlers=app is not None)]
        finally:
            await chosen.close()

    findings = asyncio.run(work())
    sick = any(finding.status == "problem" for finding in findings)
    if json:
        print_json({"healthy": not sick, "findings": [asdict(finding) for finding in findings]})
    else:
        console = out()
        for finding in findings:
            console.print(
                f"{MARKS[finding.status]} [bold]{escape(finding.name)}[/]: {escape(finding.said)}", soft_wrap=True
            )
            if finding.remedy:
                console.print(f"    → {escape(finding.remedy)}", soft_wrap=True)
        console.print("[red]there are problems[/]" if sick else "[green]all is well[/]")
    if sick:
        raise typer.Exit(PROBLEM)


async def examine(app: Redrive, *, with_handlers: bool) -> AsyncIterator[Finding]:
    """Everything that can be found out without changing anything."""
    python = platform.python_version()
    yield Finding("redrive", "ok", f"{__version__} on Python {python}, {sys.platform}")
    if not app.store.keeps_tasks:
        async for finding in _look_at_items(app):
            yield finding
        return
    database = app.database
    shown = redact(database.url)
    path = database.file
    if path is not None and not path.exists():
        remedy = "run this where the service runs, name the file with --database, or make it with `redrive migrate`"
        yield Finding("store", "problem", f"there is no file {path}", remedy)
        return
    if path is not None and await asyncio.to_thread(is_locked, path):
        yield Finding(
            name="store", status="problem", said=f"another process has held the write lock of {path} for {LOCK_SECONDS_MAX:.0f} s: "
            "nobody else can write",
            remedy=f"`fuser {path}` shows who has the file open; end it, or keep its transactions short",
        )  # fmt: skip
        return
    try:
        await database.open()
    except (RedriveError, DBAPIError, OSError) as error:
        remedy = "check DATABASE_URL, that the server runs and that it lets you in"
        yield Finding("store", "problem", f"{shown} cannot be used: {redact(str(error))}", remedy)
        return
    yield Finding("store", "ok", f"{shown} answers")
    for said, remedy in await database.advice():
        yield Finding("connection", "notice", said, remedy)
    examined = look_at_postgres(app, database) if path is None else look_at_sqlite(database, path)
    async for finding in examined:
        yield finding
    handled = set(app.lanes) if with_handlers else set()
    migrated = await _look_at_tables(app)
    yield migrated
    if migrated.status == "ok":
        try:
            kept = await secret_columns(database)
        except MissingExtraError as error:
            kept = []
            yield Finding("secrets", "notice", f"they are not looked at: {error}")
        if kept:
            async for finding in _look_at_secrets(app):
                yield finding
        async for finding in look_at_lanes(app, handled):
            yield finding


async def _look_at_items(app: Redrive) -> AsyncIterator[Finding]:
    """The table and the queues of a store over items, and what is kept there."""
    from redrive.stores.aws import ItemStore
    from redrive.systems.triggers.aws.settings import AwsSettings

    store = app.store
    assert isinstance(store, ItemStore)
    there = [Finding(*found) for found in await store.examine()]
    for finding in there:
        yield finding
    named = load(AwsSettings)
    if named.dashboard_name is not None:
        yield Finding(
            "dashboard", "ok", f"{named.dashboard_name} in CloudWatch, over the metrics in {named.metrics_namespace}"
        )
    if all(finding.status != "problem" for finding in there):
        await attach_found(app)
        await app.open()
        async for finding in _look_at_secrets(app):
            yield finding
        async for finding in look_at_lanes(app, ()):
            yield finding


async def _look_at_tables(app: Redrive) -> Finding:
    try:
        versions = await migrate.versions(app.database)
        await attach_found(app)
    except NewerSchemaError as error:
        return Finding("tables", "problem", str(error), "upgrade redrive")
    needed = migrate.heads(migrate.with_tables(app.systems))
    wrong = [
        f"{branch} is not there" if branch not in versions else f"{branch} is at {versions[branch]}, not {version}"
        for branch, version in needed.items()
        if not migrate.is_enough(versions.get(branch), version)
    ]
    if not wrong:
        said = ", ".join(f"{branch} {versions[branch]}" for branch in needed)
        newer = versions | needed != versions
        return Finding(
            "tables", "ok", f"at version {said}{', newer than this code, which may work with it' if newer else ''}"
        )
    other = "" if versions else await migrate.elsewhere(app.database)
    remedy = f"{other}run `{migrate.migrate_command(migrate.with_tables(app.systems))}`"
    return Finding("tables", "problem", ", ".join(wrong), remedy)


async def _look_at_secrets(app: Redrive) -> AsyncIterator[Finding]:
    """Whether stored secrets are encrypted, and can be read."""
    try:
        from redrive.systems.kit.secret_keeper import NO_KEY, SecretKeeper
    except MissingExtraError as error:
        yield Finding("secrets", "notice", f"they are not looked at: {error}")
        return
    keeper = SecretKeeper(app.store.file)
    try:
        has_key = keeper.has_key()
        found = await look_at_all(app, keeper.box() if has_key else None)
    except SettingsError as error:
        yield Finding("secrets", "problem", str(error))
        return
    if found.unreadable:
        remedy = "add the key that they were encrypted with to REDRIVE_SECRET_KEY, behind the others"
        yield Finding(
            "secrets",
            "problem",
            f"{found.unreadable} of {found.total} cannot be opened with any of the given keys",
            remedy,
        )
    if found.plain:
        remedy = (
            "" if has_key or keeper.file is not None else "set REDRIVE_SECRET_KEY, then "
        ) + "run `redrive secrets rotate`"
        yield Finding("secrets", "problem", f"{found.plain} of {found.total} are stored in the clear", remedy)
    if not has_key and keeper.file is None:
        yield Finding("secrets", "notice", "there is no key to encrypt them with", NO_KEY)
    if found.older:
        remedy = "run `redrive secrets rotate`, then take the old key away"
        yield Finding("secrets", "notice", f"{found.older} of {found.total} are encrypted with an older key", remedy)
    if keeper.file is not None and keeper.file.exists() and not is_private(keeper.file):
        yield Finding("secrets", "problem", f"others may read the keys in {keeper.file}", f"chmod 600 {keeper.file}")
    if found.total and not (found.unreadable or found.plain or found.older):
        yield Finding("secrets", "ok", f"{found.total} are encrypted")
