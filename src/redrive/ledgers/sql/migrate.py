"""Bringing redrive's own tables to the version of this code, and refusing what is newer and says that this code is too old for it.

The engine's tables and those of each system are branches of their own: an application gets the tables of the systems that
it uses and no others. A branch is a folder of Alembic revisions that carry its name as their label; the systems keep
theirs beside their code, in `systems/NAME/migrations`. A revision is named like its file, so which there are is known by
looking at the folders; Alembic itself is imported only where there is something to migrate.
"""

import asyncio
import io
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from redrive.errors import MissingExtraError, NewerSchemaError, NotMigratedError, UsageError
from redrive.ledgers.sql import works_with
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.lock_turns import Turn, in_turns
from redrive.ledgers.sql.seam import Dialect

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
    """Upgrade the tables of the engine and of these systems to this code; returns the versions before and after.

    Locks that others hold for long, as a dump does, are asked for in short turns, so that no worker waits long behind them. If they do not
    come free, nothing has changed, and the holder is named.
    """
    branches = _branches(systems)
    # Asked for again and again rather than waited for: a caller that is cancelled must not take the lock with it.
    while not _one_at_a_time.acquire(blocking=False):  # noqa: ASYNC110 - it is shared by threads
        await asyncio.sleep(0.01)
    try:
        return await in_turns(database, lambda turn: database.rebuild(_upgrade, database, branches, turn))
    finally:
        _one_at_a_time.release()


def upgrade_on(connection: Connection, database: Database) -> Versions:
    """Upgrade the engine's own tables on somebody's connection, in their transaction; the versions that are there now.

    It waits for locks as long as that connection does.
    """
    with _one_at_a_time:
        return _upgrade(connection, database, _branches(()))[1]


async def check(database: Database, systems: Iterable[str] = ()) -> None:
    """Raise unless the database has the versions of this code, or newer ones that this code may work with."""
    current = await database.read(_current, database.dialect)
    needs = heads(systems)
    for branch, needed in needs.items():
        if not is_enough(current.get(branch), needed):
            has = current.get(branch)
            was = "not there" if has is None else f"at version {has}, this code needs {needed}"
            command = migrate_command(name for name in needs if name != ENGINE)
            other = "" if current else await elsewhere(database)
            raise NotMigratedError(f"the tables of {branch} in {database.url} are {was}: {other}run `{command}`")


def is_enough(has: str | None, needed: str) -> bool:
    """Whether code that needs one version may work with another, which `versions` has told of: its own, or a newer one."""
    branch_of, _ = _revisions()
    return has == needed or (has is not None and has not in branch_of)


async def elsewhere(database: Database) -> str:
    """Where there are tables of redrive, if they are in other schemas than the one that is looked at: the first half of a remedy."""

    def look(connection: Connection) -> str:
        here = database.dialect.schema(connection)
        others = [name for name in database.dialect.schemas_with(connection, VERSION_TABLE) if name != here]
        if not others:
            return ""
        have = f"schema {others[0]} has some" if len(others) == 1 else f"schemas {' and '.join(others)} have some"
        return f"{have}, and this looks in {here}: set REDRIVE_SCHEMA={others[0]}, or "

    return await database.read(look)


def migrate_command(systems: Iterable[str]) -> str:
    """What makes the tables of the engine and of these systems."""
    named = ",".join(systems)
    return f"redrive migrate --systems {named}" if named else "redrive migrate"


async def versions(database: Database) -> Versions:
    """The versions that the database has; empty if it was never migrated."""
    return await database.read(_current, database.dialect)


def migration_sql(dialect: str, systems: Iterable[str] = ()) -> str:
    """The SQL of all migrations, for people who run it by hand."""
    said = io.StringIO()
    _run_alembic("heads", _branches(systems), said, dialect=dialect)
    return said.getvalue()


def _branches(systems: Iterable[str]) -> list[str]:
    known = systems_with_tables()
    asked = set(systems)
    if unknown := asked - set(known):
        if not known:
            raise MissingExtraError(f"migrating the tables of {', '.join(sorted(unknown))}", "service")
        raise UsageError(
            f"there are no systems {', '.join(sorted(unknown))} with tables: choose from {', '.join(known)}"
        )
    return [ENGINE, *(name for name in known if name in asked)]


def _upgrade(
    connection: Connection, database: Database, branches: list[str], turn: Turn | None = None
) -> tuple[Versions, Versions]:
    database.dialect.lock_migrations(connection)
    if turn is not None:
        turn.session = database.dialect.wait_briefly(connection, turn.span)
    schema = database.dialect.schema(connection)
    before = _current(connection, database.dialect)
    needs = heads(branch for branch in branches if branch != ENGINE)
    behind = [branch for branch, needed in needs.items() if not is_enough(before.get(branch), needed)]
    branch_of, _ = _revisions()
    if behind and not systems_with_tables() and (others := before.keys() - {ENGINE}):
        raise MissingExtraError(f"migrating tables beside those of {', '.join(sorted(others))}", "service")
    if behind and (newer := [version for version in before.values() if version not in branch_of]):
        raise NewerSchemaError(
            f"the tables of {', '.join(behind)} are to be migrated, but a newer redrive has migrated others (to {', '.join(newer)}): "
            "migrate with that one"
        )
    for branch in needs:
        if branch in behind:
            try:
                _run_alembic(f"{branch}@head", [ENGINE, *systems_with_tables()], connection=connection, schema=schema)
            except DBAPIError as error:
                if "already exists" not in str(error.orig):
                    raise
                raise NotMigratedError(
                    f"the tables of {branch} cannot be made, because the database has one of that name which is not "
                    f"redrive's ({error.orig}): give redrive a schema or a database of its own, or leave {branch} out "
                    "of REDRIVE_SYSTEMS"
                ) from error
    after = _current(connection, database.dialect)
    return {name: before[name] for name in branches if name in before}, {name: after[name] for name in branches}


def _current(connection: Connection, dialect: Dialect) -> Versions:
    if not inspect(connection).has_table(VERSION_TABLE, schema=dialect.schema(connection)):
        return {}
    there = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars()  # noqa: S608 - a name of ours
    branch_of, newest = _revisions()
    found, unknown = {}, []
    for version in there:
        if version in branch_of:
            found[branch_of[version]] = version
        else:
            unknown.append(version)
    told = works_with.told(connection) if unknown else {}
    for version in unknown:
        branch, oldest = told.get(version, (None, None))
        if branch is None and not systems_with_tables() and not version.startswith("redrive_"):
            branch = version.rpartition("_")[0]  # of a system: none is installed here, so nobody here minds its version
        if branch is None:
            raise NewerSchemaError(
                f"the database is at version {version}, which this redrive does not know: upgrade redrive"
            )
        if branch in newest and oldest not in branch_of:
            raise NewerSchemaError(
                f"the tables of {branch} are at version {version}, which needs code of version {oldest} or later, and this redrive"
                f" has {newest[branch]}: upgrade redrive"
            )
        found[branch] = version
    return found


@cache
def _revisions() -> tuple[dict[str, str], Versions]:
    """The branch of every version, and the newest version of every branch. Read once in a process: files do not change."""
    branch_of, newest = {}, {}
    for branch in (ENGINE, *systems_with_tables()):
        for file in sorted(_folder(branch).glob("*_[0-9][0-9][0-9][0-9]_*.py")):
            name, number, _ = file.name.split("_", 2)
            newest[branch] = f"{name}_{number}"
            branch_of[newest[branch]] = branch
    return branch_of, newest


def _folder(branch: str) -> Path:
    """Where the revisions of a branch are."""
    return _HERE / "migrations" / "versions" if branch == ENGINE else _PACKAGE / "systems" / branch / "migrations"


def _run_alembic(target: str, branches: Iterable[str], said: io.StringIO | None = None, **attributes: Any) -> None:
    """Upgrade to a target, with the revisions of these branches: a connection's tables, or SQL that is only said."""
    from alembic import command
    from alembic.config import Config

    config = Config(output_buffer=said, attributes=attributes)
    config.set_main_option("script_location", _escaped(str(_HERE / "migrations")))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", _escaped(os.pathsep.join(str(_folder(name)) for name in branches)))
    command.upgrade(config, target, sql=said is not None)


def _escaped(value: str) -> str:
    return value.replace("%", "%%")
