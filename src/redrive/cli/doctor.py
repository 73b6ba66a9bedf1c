"""`redrive doctor`: look at the store, the clocks and the versions, and say what to do."""

import asyncio
import platform
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import typer
from rich.markup import escape
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from redrive._version import __version__
from redrive.access.secret_keys import is_private
from redrive.app import Redrive
from redrive.cli.common import (
    PROBLEM,
    AppOption,
    DatabaseOption,
    JsonOption,
    choose_app,
    out,
    print_json,
    run,
)
from redrive.cli.secrets import look_at_all, secret_columns
from redrive.core.durations import format_duration
from redrive.core.failure import describe_error, redact
from redrive.errors import MissingExtraError, NewerSchemaError, RedriveError, SettingsError, TableError
from redrive.lane import Lane
from redrive.ledgers.adopt.notices import ROWS_AT_START, notices
from redrive.ledgers.sql import migrate
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sqlite.database import SYNCHRONOUS
from redrive.settings import load, load_settings
from redrive.wiring import attach_found

SQLITE_OLDEST = (3, 35, 0)
"""The first with RETURNING."""
POSTGRES_OLDEST = 13
CLOCK_OFF_MAX = timedelta(seconds=2)
IDLE_MAX = timedelta(minutes=1)
OLDEST_DUE_MAX = timedelta(minutes=1)
LOCK_SECONDS_MAX = 3.0
"""How long the write lock of a SQLite file is waited for: those who write hold it for milliseconds."""
DISK_FREE_BYTES_MIN = 200 * 1024 * 1024

MARKS = {"ok": "[green]✓[/]", "notice": "[yellow]![/]", "problem": "[red]✗[/]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "notice", "problem"]
    said: str
    remedy: str = ""

    @classmethod
    def of(cls, name: str, said: str, *, well: bool, remedy: str = "") -> "Finding":
        """What is well, or a problem with its remedy."""
        return cls(name, "ok", said) if well else cls(name, "problem", said, remedy)


def doctor(database: DatabaseOption = None, app: AppOption = None, json: JsonOption = False) -> None:  # noqa: FBT002
    """Check the store, its version and durability, the clocks, and say what to do. Nothing is changed.

    With [cyan]--app[/] also adopted tables, and kinds that wait without a handler. Exit code 1 says that there is a problem.

    Example: [cyan]redrive doctor --app shop.tasks:app[/]
    """
    chosen = choose_app(database, app)

    async def work() -> list[Finding]:
        try:
            return [finding async for finding in examine(chosen, with_handlers=app is not None)]
        finally:
            await chosen.close()

    findings = run(work())
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
        async for finding in _items(app):
            yield finding
        return
    database = app.database
    shown = redact(database.url)
    path = database.file
    if path is not None and not path.exists():
        remedy = "run this where the service runs, name the file with --database, or make it with `redrive migrate`"
        yield Finding("store", "problem", f"there is no file {path}", remedy)
        return
    if path is not None and await asyncio.to_thread(_is_locked, path):
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
    if path is not None:
        async for finding in _sqlite(database):
            yield finding
        free = shutil.disk_usage(path.parent).free
        if free < DISK_FREE_BYTES_MIN:
            yield Finding("disk", "problem", f"{free // 2**20} MiB are free", "make room: SQLite stops without")
    else:
        for finding in await database.read(_postgres):
            yield finding
        async for finding in _server(app, database):
            yield finding
        yield await _clock(database)
    handled = set(app.lanes) if with_handlers else set()
    migrated = await _migrated(app)
    yield migrated
    if migrated.status == "ok":
        try:
            kept = await secret_columns(database)
        except MissingExtraError as error:
            kept = []
            yield Finding("secrets", "notice", f"they are not looked at: {error}")
        if kept:
            async for finding in _secrets(app):
                yield finding
        async for finding in _lanes(app, handled):
            yield finding


async def _items(app: Redrive) -> AsyncIterator[Finding]:
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
        async for finding in _secrets(app):
            yield finding
        async for finding in _lanes(app, ()):
            yield finding


async def _migrated(app: Redrive) -> Finding:
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


async def _secrets(app: Redrive) -> AsyncIterator[Finding]:
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
            "secrets", "problem", f"{found.unreadable} of {found.total} open with no key that is given", remedy
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


def _is_locked(path: Path) -> bool:
    """Whether the write lock of a SQLite file is not to be had for a while."""
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS_MAX, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return "locked" in str(error)  # whatever else is wrong shows when it is opened
    return False


async def _sqlite(database: Database) -> AsyncIterator[Finding]:
    yield Finding.of(
        "SQLite", f"version {sqlite3.sqlite_version}", well=sqlite3.sqlite_version_info >= SQLITE_OLDEST,
        remedy="redrive needs 3.35 or later: use a newer Python",
    )  # fmt: skip
    synchronous = await database.write(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
    journal = await database.read(lambda connection: connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
    level = SYNCHRONOUS.get(synchronous, str(synchronous))
    durable = synchronous >= 2
    means = "what is acknowledged survives a power cut" if durable else "a power cut may lose work"
    remedy = "make the application without durable=False"
    yield Finding.of("durability", f"synchronous={level}: {means}", well=durable, remedy=remedy)
    if journal == "wal":
        yield Finding("journal", "ok", "journal_mode=wal")
    else:
        remedy = "the file's disk does not allow WAL; use a local one, readers wait for writers"
        yield Finding("journal", "notice", f"journal_mode={journal}", remedy)


def _postgres(connection: Connection) -> list[Finding]:
    number, shown, fsync, commit, read_only = connection.execute(
        text(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('fsync'), "
            "current_setting('synchronous_commit'), pg_is_in_recovery()"
        )
    ).one()
    remedy, recent = f"redrive needs {POSTGRES_OLDEST} or later", number // 10_000 >= POSTGRES_OLDEST
    findings = [Finding.of("PostgreSQL", f"version {shown}", well=recent, remedy=remedy)]
    if read_only:
        findings.append(Finding("role", "problem", "the server is a read-only replica", "use the primary's URL"))
    said, durable = f"fsync={fsync}, synchronous_commit={commit}", fsync == "on" and commit != "off"
    said += "" if durable else ": a crash may lose work"
    remedy = "set fsync = on and synchronous_commit = on for this database"
    findings.append(Finding.of("durability", said, well=durable, remedy=remedy))
    idle = connection.execute(
        text(
            "SELECT pid, coalesce(nullif(application_name, ''), usename, '?') AS who, extract(epoch FROM now() - state_change) AS seconds "
            "FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%' "
            "AND now() - state_change > make_interval(secs => :most) ORDER BY state_change LIMIT 5"
        ),
        {"most": IDLE_MAX.total_seconds()},
    ).all()
    for pid, who, seconds in idle:
        since = format_duration(timedelta(seconds=int(seconds)))
        said = (
            f"session {pid} ({who}) holds a transaction open and has done nothing for {since}; every claim gets slower"
        )
        remedy = f"end it with SELECT pg_terminate_backend({pid}), and set idle_in_transaction_session_timeout"
        findings.append(Finding("transactions", "problem", said, remedy))
    if not idle:
        findings.append(Finding("transactions", "ok", "none is open and idle for long"))
    return findings


async def _server(app: Redrive, database: Database) -> AsyncIterator[Finding]:
    """How the server is set up: what it admits, copies, cleans up and keeps."""
    from redrive.ledgers.postgres import checkup
    from redrive.ledgers.postgres.database import PostgresDatabase

    assert isinstance(database, PostgresDatabase)
    if database.address.portable:
        return  # another engine keeps other books on itself
    tables = [lane.table.name for lane in app.lanes.values()]
    prunes = load_settings().retention is not None
    opens = 0 if await database.is_pooled() else database.connections_max
    found = await database.read(checkup.look_at_server, opens, tables, prunes=prunes)
    async with database.transaction() as session:
        found += await session.connection.run_sync(checkup.look_at_limits, pooled=await database.is_pooled())
    for about, said, remedy in found:
        yield Finding(about, "notice", said, remedy)


async def _clock(database: Database) -> Finding:
    before = datetime.now(UTC)
    theirs: datetime = await database.read(
        lambda connection: connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    )
    ours = before + (datetime.now(UTC) - before) / 2
    off = theirs - ours
    if abs(off) <= CLOCK_OFF_MAX:
        return Finding("clock", "ok", "this machine and the database agree")
    said = f"the database is {format_duration(abs(off))} {'ahead of' if off > timedelta(0) else 'behind'} this machine"
    remedy = "set both by NTP: due times are the database's, key expiry and previews are this machine's"
    return Finding("clock", "problem", said, remedy)


def _retention(lane: Lane, ledger: SqlLedger) -> Iterator[Finding]:
    """What the settings would have pruned, and cannot."""
    settings = load_settings().worker()
    kept = lane.tune(settings).retention if lane.tune else settings.retention
    for state in kept:
        why = ledger.unprunable(state)
        if why is not None:
            yield Finding(
                name=lane.name, status="notice", said=f"tasks that are {state} are kept for ever: {why}",
                remedy="name such a column, or set RETENTION_DAYS=0 if they are to be kept",
            )  # fmt: skip
    if kept and ledger.kept_by:
        yield Finding(
            name=lane.name, status="notice",
            said=f"rows that {' and '.join(map(str, ledger.kept_by))} points at are never pruned: the foreign key forbids it",
            remedy="declare it ON DELETE CASCADE or SET NULL if they should go",
        )  # fmt: skip


async def _lanes(app: Redrive, handled: Collection[str]) -> AsyncIterator[Finding]:
    """All ledgers of the database, as far as they are known; of those that are handled here also whether all kinds are."""
    for lane in app.lanes.values():
        try:
            ledger = await lane.ledger()
        except TableError as error:
            remedy = "run " + "; ".join(error.migration) if error.migration else f"see `redrive adopt {lane.name}`"
            yield Finding(lane.name, "problem", "; ".join(error.problems), remedy)
            continue
        except RedriveError as error:
            yield Finding(lane.name, "problem", describe_error(error))
            continue
        if isinstance(ledger, SqlLedger):
            for finding in _retention(lane, ledger):
                yield finding
            if lane.checked:
                for notice in await app.database.read(notices, lane.table, ledger.sql_table, ROWS_AT_START):
                    yield Finding(name=lane.name, status="notice", said=notice)
        counts = await lane.counts()
        shown = ", ".join(f"{amount} {state}" for state, amount in counts.items() if amount) or "empty"
        yield Finding(lane.name, "ok", shown)
        waited = await ledger.oldest_due()
        if waited is not None and waited > OLDEST_DUE_MAX:
            said = format_duration(timedelta(seconds=int(waited.total_seconds())))
            remedy = "see that a worker runs that knows its kind, and that it keeps up"
            yield Finding(lane.name, "notice", f"the oldest due task has been waiting for {said}", remedy)
        if lane.name in handled and lane.table.kind is not None:
            known = set(lane.handlers.among(kinds := await ledger.open_kinds()))
            unknown = [kind for kind in kinds if kind not in known]
            if unknown:
                said = f"tasks wait without a handler here: {', '.join(unknown[:10])}"
                yield Finding(lane.name, "problem", said, "register handlers for these kinds, or cancel the tasks")
