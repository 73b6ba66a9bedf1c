"""`redrive doctor`: look at the store, the clocks and the versions, and say what to do."""

import platform
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import typer
from rich.markup import escape
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from redrive._version import __version__
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
    sqlite_path,
)
from redrive.core.durations import format_duration
from redrive.core.failure import describe_error, redact
from redrive.errors import NewerSchemaError, RedriveError, TableError
from redrive.lane import Lane
from redrive.ledgers.adopt.notices import ROWS_AT_START, notices
from redrive.ledgers.sql import migrate
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sqlite.database import SYNCHRONOUS
from redrive.settings import load_settings

SQLITE_OLDEST = (3, 35, 0)
"""The first with RETURNING."""
POSTGRES_OLDEST = 13
CLOCK_OFF_MAX = timedelta(seconds=2)
IDLE_MAX = timedelta(minutes=1)
OLDEST_DUE_MAX = timedelta(minutes=1)
DISK_FREE_BYTES_MIN = 200 * 1024 * 1024

MARKS = {"ok": "[green]✓[/]", "notice": "[yellow]![/]", "problem": "[red]✗[/]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "notice", "problem"]
    said: str
    remedy: str = ""


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
    yield Finding(name="redrive", status="ok", said=f"{__version__} on Python {python}, {sys.platform}")
    database = app.database
    shown = redact(database.url)
    path = sqlite_path(database.url)
    if path is not None and not path.exists():
        yield Finding(
            name="store", status="problem", said=f"there is no file {path}",
            remedy="run this where the service runs, name the file with --database, or make it with `redrive migrate`",
        )  # fmt: skip
        return
    try:
        await database.open()
    except (RedriveError, DBAPIError, OSError) as error:
        yield Finding(
            name="store", status="problem", said=f"{shown} cannot be used: {redact(str(error))}",
            remedy="check DATABASE_URL, that the server runs and that it lets you in",
        )  # fmt: skip
        return
    yield Finding(name="store", status="ok", said=f"{shown} answers")
    if path is not None:
        async for finding in _sqlite(database):
            yield finding
        free = shutil.disk_usage(path.parent).free
        if free < DISK_FREE_BYTES_MIN:
            yield Finding(
                name="disk",
                status="problem",
                said=f"{free // 2**20} MiB are free",
                remedy="make room: SQLite stops without",
            )
    else:
        for finding in await database.read(_postgres):
            yield finding
        yield await _clock(database)
    migrated = await _migrated(app)
    yield migrated
    if migrated.status == "ok":
        async for finding in _lanes(app, with_handlers=with_handlers):
            yield finding


async def _migrated(app: Redrive) -> Finding:
    try:
        versions = await migrate.versions(app.database)
    except NewerSchemaError as error:
        return Finding(name="tables", status="problem", said=str(error), remedy="upgrade redrive")
    needed = migrate.heads(app.systems_with_tables)
    wrong = [
        f"{branch} is not there" if branch not in versions else f"{branch} is at {versions[branch]}, not {version}"
        for branch, version in needed.items()
        if versions.get(branch) != version
    ]
    if not wrong:
        said = ", ".join(f"{branch} {version}" for branch, version in needed.items())
        return Finding(name="tables", status="ok", said=f"at version {said}")
    return Finding(name="tables", status="problem", said=", ".join(wrong), remedy="run `redrive migrate`")


async def _sqlite(database: Database) -> AsyncIterator[Finding]:
    old = sqlite3.sqlite_version_info < SQLITE_OLDEST
    yield Finding(
        name="SQLite", status="problem" if old else "ok", said=f"version {sqlite3.sqlite_version}",
        remedy="redrive needs 3.35 or later: use a newer Python" if old else "",
    )  # fmt: skip
    synchronous = await database.write(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
    journal = await database.read(lambda connection: connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
    level = SYNCHRONOUS.get(synchronous, str(synchronous))
    durable = synchronous >= 2
    yield Finding(
        name="durability", status="ok" if durable else "problem",
        said=f"synchronous={level}: " + ("what is acknowledged survives a power cut" if durable else "a power cut may lose work"),
        remedy="" if durable else "make the application without durable=False",
    )  # fmt: skip
    yield Finding(
        name="journal", status="ok" if journal == "wal" else "notice", said=f"journal_mode={journal}",
        remedy="" if journal == "wal" else "the file's disk does not allow WAL; use a local one, readers wait for writers",
    )  # fmt: skip


def _postgres(connection: Connection) -> list[Finding]:
    number, shown, fsync, commit, read_only = connection.execute(
        text(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('fsync'), "
            "current_setting('synchronous_commit'), pg_is_in_recovery()"
        )
    ).one()
    old = number // 10_000 < POSTGRES_OLDEST
    findings = [
        Finding(
            name="PostgreSQL", status="problem" if old else "ok", said=f"version {shown}",
            remedy=f"redrive needs {POSTGRES_OLDEST} or later" if old else "",
        )
    ]  # fmt: skip
    if read_only:
        findings.append(
            Finding(
                name="role", status="problem", said="the server is a read-only replica", remedy="use the primary's URL"
            )
        )
    if fsync != "on" or commit == "off":
        findings.append(
            Finding(
                name="durability", status="problem", said=f"fsync={fsync}, synchronous_commit={commit}: a crash may lose work",
                remedy="set fsync = on and synchronous_commit = on for this database",
            )
        )  # fmt: skip
    else:
        findings.append(Finding(name="durability", status="ok", said=f"fsync={fsync}, synchronous_commit={commit}"))
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
        findings.append(
            Finding(
                name="transactions", status="problem",
                said=f"session {pid} ({who}) holds a transaction open and has done nothing for {since}; every claim gets slower",
                remedy=f"end it with SELECT pg_terminate_backend({pid}), and set idle_in_transaction_session_timeout",
            )
        )  # fmt: skip
    if not idle:
        findings.append(Finding(name="transactions", status="ok", said="none is open and idle for long"))
    return findings


async def _clock(database: Database) -> Finding:
    before = datetime.now(UTC)
    theirs: datetime = await database.read(
        lambda connection: connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    )
    ours = before + (datetime.now(UTC) - before) / 2
    off = theirs - ours
    if abs(off) <= CLOCK_OFF_MAX:
        return Finding(name="clock", status="ok", said="this machine and the database agree")
    ahead = "ahead of" if off > timedelta(0) else "behind"
    return Finding(
        name="clock", status="problem", said=f"the database is {format_duration(abs(off))} {ahead} this machine",
        remedy="set both by NTP: due times are the database's, key expiry and previews are this machine's",
    )  # fmt: skip


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


async def _lanes(app: Redrive, *, with_handlers: bool) -> AsyncIterator[Finding]:
    for lane in app.lanes.values():
        try:
            ledger = await lane.ledger()
        except TableError as error:
            yield Finding(
                name=lane.name, status="problem", said="; ".join(error.problems),
                remedy="run " + "; ".join(error.migration) if error.migration else f"see `redrive adopt {lane.name}`",
            )  # fmt: skip
            continue
        except RedriveError as error:
            yield Finding(name=lane.name, status="problem", said=describe_error(error))
            continue
        for finding in _retention(lane, ledger):
            yield finding
        if lane.checked:
            for notice in await app.database.read(notices, lane.table, ledger.sql_table, ROWS_AT_START):
                yield Finding(name=lane.name, status="notice", said=notice)
        counts = await lane.counts()
        shown = ", ".join(f"{amount} {state}" for state, amount in counts.items() if amount) or "empty"
        yield Finding(name=lane.name, status="ok", said=shown)
        waited = await ledger.oldest_due()
        if waited is not None and waited > OLDEST_DUE_MAX:
            yield Finding(
                name=lane.name, status="notice",
                said=f"the oldest due task has been waiting for {format_duration(timedelta(seconds=int(waited.total_seconds())))}",
                remedy="see that a worker runs that knows its kind, and that it keeps up",
            )  # fmt: skip
        if with_handlers and lane.table.kind is not None:
            known = set(lane.handlers.among(kinds := await ledger.open_kinds()))
            unknown = [kind for kind in kinds if kind not in known]
            if unknown:
                yield Finding(
                    name=lane.name, status="problem", said=f"tasks wait without a handler here: {', '.join(unknown[:10])}",
                    remedy="register handlers for these kinds, or cancel the tasks",
                )  # fmt: skip
