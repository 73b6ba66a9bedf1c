"""The present, for statements that are built once and executed often."""

from typing import Any

from sqlalchemy import ColumnElement, bindparam, func

from redrive.extend import Database
from redrive.sql import Instant


def now_of(database: Database) -> ColumnElement[Any]:
    """The clock of the ledger: the server's own where it has one, else the application's, asked at each execution."""
    if database.server_clock:
        return func.statement_timestamp(type_=Instant)
    return bindparam("now", callable_=database.now, type_=Instant)
