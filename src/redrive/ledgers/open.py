"""From a URL to a database, and from a database to its ledgers."""

import logging
import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from redrive.core.table import TASKS, LedgerTable
from redrive.errors import MissingExtraError, SettingsError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ports import Clock

_log = logging.getLogger("redrive")


def open_database(url: str, *, clock: Clock | None = None, durable: bool = True) -> Database:
    """The database behind a URL; nothing is connected yet.

    `clock` replaces the database's or the process's own, for tests; `durable=False` trades SQLite's fsync for speed, for
    tests too.
    """
    if url.lstrip().startswith("postgres"):
        try:
            from redrive.ledgers.postgres.open import open_postgres
        except ModuleNotFoundError as error:
            raise MissingExtraError("PostgreSQL", "postgres") from error

        return open_postgres(url, clock=clock)
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        from redrive.ledgers.sqlite.database import SqliteDatabase

        return SqliteDatabase(parsed, clock=clock, durable=durable)
    raise SettingsError(
        f"unknown database {parsed.get_backend_name()!r}: use sqlite:///file.db or postgresql://user@host/name"
    )


async def open_ledger(
    database: Database, ledger_table: LedgerTable = TASKS, *, beside: Beside | None = None
) -> SqlLedger:
    """The ledger in a table: our own, or a foreign one that is checked first."""
    if ledger_table is TASKS:
        return own_ledger(database)
    # Only for strangers: it knows the types of PostgreSQL, and those take a while to import.
    from redrive.ledgers.adopt.check import adopt
    from redrive.ledgers.adopt.notices import ROWS_AT_START, notices

    table = await database.read(adopt, ledger_table)
    for notice in await database.read(notices, ledger_table, table, ROWS_AT_START):
        _log.warning("%s: %s", ledger_table.name, notice)
    return SqlLedger(database, ledger_table, table, beside=beside)


def own_ledger(database: Database) -> SqlLedger:
    """The ledger in redrive's own table, which needs no look at the database."""
    return SqlLedger(database, TASKS, schema.task)


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        shown = re.sub(r"//[^/]*@", "//…@", url)  # a password does not belong into an error
        raise SettingsError(
            f"{shown!r} is not a database URL: write sqlite:///file.db or postgresql://user@host/name"
        ) from None
