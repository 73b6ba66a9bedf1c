"""Bringing redrive's own tables to the version of this code, and refusing what is newer.

The engine's tables and those of each system are branches of their own: an application gets the tables of the systems that
it uses and no others. A branch is a folder of Alembic revisions that carry its name as their label; the systems keep
theirs beside their code, in `systems/NAME/migrations`.
"""

import asyncio
import io
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from redrive.errors import NewerSchemaError, NotMigratedError, UsageError
from redrive.ledgers.sql.database import Database

ENGINE = "engine"
VERSION_TABLE = "redrive_version"
_HERE = Path(__file__).parent
_PACKAGE = _HERE.parents[1]
_one_at_a_time = threading.Lock()
"""Alembic keeps the migration under way in global names, so a process runs one at a time, whatever the database."""

Versions = dict[str, str]
"""The version of each branch."""


def with_tables(systems: Iterable[str]) -> list[str]:
    """Those of the systems that have tables."""
    known = systems_with_tables()
    return [name for name in systems if name in known]


def systems_with_tables() -> list[str]:
    """The names of the systems that have tables."""
    return sorted(folder.parent.name for folder in (_PACKAGE / "systems").glob("*/migrations"))


def heads(systems: Iterable[str] = ()) -> Versions:
    """The versions that this code needs, of the engine and of these systems."""
    _, newest = _revisions()
    return {branch: newest[branch] for branch in _branches(systems)}


async def migrate(database: Database, systems: Iterable[str] = ()) -> tuple[Versions, Versions]:
    """Upgrade the tables of the engine and of these systems to this code; returns the versions before and after."""
    branches = _branches(systems)
    # Asked for again and again rather than waited for: a caller that is cancelled must not take the lock with it.
    while not _one_at_a_time.acquire(blocking=False):  # noqa: ASYNC110 - it is shared by threads
        await asyncio.sleep(0.01)
    try:
        return await database.rebuild(_upgrade, database, branches)
    finally:
        _one_at_a_time.release()


async def check(database: Database, systems: Iterable[str] = ()) -> None:
    """Raise unless the database has exactly the versions of this code."""
    current = await database.read(_current)
    needs = heads(systems)
    for branch, needed in needs.items():
        if current.get(branch) != needed:
            has = current.get(branch)
            was = "not there" if has is None else f"at version {has}, this code needs {needed}"
            command = migrate_command(name for name in needs if name != ENGINE)
            raise NotMigratedError(f"the tables of {branch} in {database.url} are {was}: run `{command}`")


def migrate_command(systems: Iterable[str]) -> str:
    """What makes the tables of the engine and of these systems."""
    named = ",".join(systems)
    return f"redrive migrate --systems {named}" if named else "redrive migrate"


async def versions(database: Database) -> Versions:
    """The versions that the database has; empty if it was never migrated."""
    return await database.read(_current)


def migration_sql(dialect: str, systems: Iterable[str] = ()) -> str:
    """The SQL of all migrations, for people who run it by hand."""
    config = _config(_branches(systems))
    config.attributes["dialect"] = dialect
    config.output_buffer = buffer = io.StringIO()
    command.upgrade(config, "heads", sql=True)
    return buffer.getvalue()


def _branches(systems: Iterable[str]) -> list[str]:
    known = systems_with_tables()
    asked = set(systems)
    if unknown := asked - set(known):
        raise UsageError(
            f"there are no systems {', '.join(sorted(unknown))} with tables: choose from {', '.join(known)}"
        )
    return [ENGINE, *(name for name in known if name in asked)]


def _upgrade(connection: Connection, database: Database, branches: list[str]) -> tuple[Versions, Versions]:
    database.dialect.lock_migrations(connection)
    before = _current(connection)
    for branch, needed in heads(branch for branch in branches if branch != ENGINE).items():
        if before.get(branch) != needed:
            config = _config()
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, f"{branch}@head")
            except DBAPIError as error:
                if "already exists" not in str(error.orig):
                    raise
                raise NotMigratedError(
                    f"the tables of {branch} cannot be made, because the database has one of that name which is not "
                    f"redrive's ({error.orig}): give redrive a schema or a database of its own, or leave {branch} out "
                    "of REDRIVE_SYSTEMS"
                ) from error
    after = _current(connection)
    return {name: before[name] for name in branches if name in before}, {name: after[name] for name in branches}


def _current(connection: Connection) -> Versions:
    there = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
    branch_of, _ = _revisions()
    found = {}
    for version in there:
        if version not in branch_of:
            raise NewerSchemaError(
                f"the database is at version {version}, which this redrive does not know: upgrade redrive"
            )
        found[branch_of[version]] = version
    return found


@cache
def _revisions() -> tuple[dict[str, str], Versions]:
    """The branch of every version, and the newest version of every branch.

    Read once in a process: Alembic compiles every file of every branch for each look, and the files do not change.
    """
    scripts = ScriptDirectory.from_config(_config())
    branch_of, newest = {}, {}
    for script in scripts.walk_revisions():
        [branch] = script.branch_labels
        branch_of[script.revision] = branch
        if script.is_head:
            newest[branch] = script.revision
    return branch_of, newest


def _config(branches: Iterable[str] | None = None) -> Config:
    """Where the revisions are: of all branches that there are, unless some are named."""
    named = [ENGINE, *systems_with_tables()] if branches is None else branches
    folders = [
        _HERE / "migrations" / "versions" if name == ENGINE else _PACKAGE / "systems" / name / "migrations"
        for name in named
    ]
    config = Config()
    config.set_main_option("script_location", _escaped(str(_HERE / "migrations")))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", _escaped(os.pathsep.join(map(str, folders))))
    return config


def _escaped(value: str) -> str:
    return value.replace("%", "%%")
