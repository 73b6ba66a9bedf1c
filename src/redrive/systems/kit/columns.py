"""Columns of tables that other programs read and write too: the types that each database's users expect, and their order.

Times are ISO 8601 text on SQLite, which has no type for them. Others may spell them in another way, so they are compared as
instants.
"""

from typing import Any

from sqlalchemy import ColumnElement, Text, Uuid, func, text
from sqlalchemy.types import TypeEngine

from redrive.extend import Instant, IsoText, comparable


def time_type(dialect: str) -> TypeEngine[Any]:
    """The type of an instant."""
    return IsoText() if dialect == "sqlite" else Instant()


def fence_type(dialect: str) -> TypeEngine[Any]:
    """The type of `claim_id`."""
    return Text() if dialect == "sqlite" else Uuid()


def place(dialect: str, *times: ColumnElement[Any]) -> ColumnElement[Any]:
    """The first of these times that is known, to order by and to build an index on; 1970 where none can be read."""
    known = [comparable(time, dialect) for time in times]
    # As text, not as a literal column: an index would take that for the column that names its table.
    earliest = text("0" if dialect == "sqlite" else "'1970-01-01 00:00:00+00'::timestamptz")
    return func.coalesce(*known, earliest, type_=known[0].type)
