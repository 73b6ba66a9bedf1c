"""Times that any tool can read: `timestamptz` on PostgreSQL, ISO 8601 text on SQLite, and how the two are compared.

SQLite has no type for times. Its text may be written in any spelling, so it is compared as an instant, never as text.
"""

from typing import Any

from sqlalchemy import ColumnElement, Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from redrive.extend import Instant, IsoText

WHEN = Instant().with_variant(IsoText(), "sqlite")
"""The type of such a column."""


class instant(FunctionElement[Any]):  # noqa: N801 - used like a function of SQL
    """A time as something that orders by instant; an index may be built on it.

    It knows the database only when it is compiled: `instant(table.c.updated_at) <= instant(bindparam("until", type_=WHEN))`.
    """

    inherit_cache = True
    type = Instant().with_variant(Float(), "sqlite")

    def __init__(self, time: ColumnElement[Any]) -> None:
        super().__init__(time)


@compiles(instant)
def _as_it_is(element: instant, compiler: SQLCompiler, **given: Any) -> str:
    [time] = element.clauses
    return compiler.process(time, **given)


@compiles(instant, "sqlite")
def _by_day(element: instant, compiler: SQLCompiler, **given: Any) -> str:
    [time] = element.clauses
    return f"julianday({compiler.process(time, **given)})"
