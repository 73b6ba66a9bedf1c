"""How `redrive doctor` examines a database: its version, how durable it is, its clock and its settings."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, text

from redrive.app import Redrive
from redrive.cli.findings import Finding
from redrive.core.durations import format_duration
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sqlite.database import SYNCHRONOUS
from redrive.settings import load_settings

SQLITE_OLDEST = (3, 35, 0)
"""The first with RETURNING."""
POSTGRES_OLDEST = 13
CLOCK_OFF_MAX = timedelta(seconds=2)
IDLE_MAX = timedelta(minutes=1)
LOCK_SECONDS_MAX = 3.0
"""How long the write lock of a SQLite file is waited for: those who write hold it for milliseconds."""
DISK_FREE_BYTES_MIN = 200 * 1024 * 1024


def is_locked(path: Path) -> bool:
    """Whether the write lock of a SQLite file is not to be had for a while."""
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS_MAX, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return "locked" in str(error)  # whatever else is wrong shows when it is opened
    return False


async def look_at_sqlite(database: Database, path: Path) -> AsyncIterator[Finding]:
    """The version, the durability, the journal, and the room on the disk."""
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
    free = shutil.disk_usage(path.parent).free
    if free < DISK_FREE_BYTES_MIN:
        yield Finding("disk", "problem", f"{free // 2**20} MiB are free", "make room: SQLite stops without")


async def look_at_postgres(app: Redrive, database: Database) -> AsyncIterator[Finding]:
    """The version, the durability, sessions that hold transactions open, the server's settings, and its clock."""
    for finding in await database.read(_look_at_sessions):
        yield finding
    async for finding in _look_at_settings(app, database):
        yield finding
    yield await _look_at_clock(database)


def _look_at_sessions(connection: Connection) -> list[Finding]:
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


async def _look_at_settings(app: Redrive, database: Database) -> AsyncIterator[Finding]:
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


async def _look_at_clock(database: Database) -> Finding:
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
