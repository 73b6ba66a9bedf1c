"""Bringing redrive's own tables to the version of this code, and refusing what is newer."""

import asyncio
import io
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select

from redrive.errors import NewerSchemaError, NotMigratedError
from redrive.ledgers.database import Database

VERSION_TABLE = "redrive_version"
_one_at_a_time = threading.Lock()
"""Alembic keeps the migration under way in global names, so a process runs one at a time, whatever the database."""
_LOCK = 7_236_011_947
"""The advisory lock under which PostgreSQL is migrated, so that many processes may start at once."""


def head() -> str:
    """The version that this code needs."""
    version = _scripts().get_current_head()
    assert version is not None
    return version


async def migrate(database: Database) -> tuple[str | None, str]:
    """Upgrade to the version of this code; returns the versions before and after."""
    # Asked for again and again rather than waited for: a caller that is cancelled must not take the lock with it.
    while not _one_at_a_time.acquire(blocking=False):  # noqa: ASYNC110 - it is shared by threads
        await asyncio.sleep(0.01)
    try:
        return await database.write(_upgrade)
    finally:
        _one_at_a_time.release()


async def check(database: Database) -> None:
    """Raise unless the database has exactly the version of this code."""
    current = await database.read(_current)
    _refuse_newer(current)
    if current != head():
        was = "not migrated" if current is None else f"at version {current}, this code needs {head()}"
        raise NotMigratedError(f"{database.url} is {was}: run `redrive migrate`")


async def version(database: Database) -> str | None:
    """The version that the database has; None if it was never migrated."""
    return await database.read(_current)


def migration_sql(dialect: str) -> str:
    """The SQL of all migrations, for people who run it by hand."""
    config = _config()
    config.attributes["dialect"] = dialect
    config.output_buffer = buffer = io.StringIO()
    command.upgrade(config, "head", sql=True)
    return buffer.getvalue()


def _upgrade(connection: Connection) -> tuple[str | None, str]:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    before = _current(connection)
    _refuse_newer(before)
    if before != head():
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return before, head()


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _refuse_newer(current: str | None) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if current is not None and current not in known:
        raise NewerSchemaError(
            f"the database is at version {current}, which this redrive does not know (it knows up to {head()}): "
            "upgrade redrive"
        )


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
