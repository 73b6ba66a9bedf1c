"""Instants in columns: how they are stored, written and compared.

Times are compared as instants, never as text. These storages are known:

- `Instant`: `timestamptz` on PostgreSQL, whole microseconds since 1970 on SQLite; redrive's own columns.
- `IsoText`: ISO 8601 text of any spelling, with `Z`, an offset or none (then UTC), with or without fractions.
- `When`: `timestamptz` on PostgreSQL, such text on SQLite; for tables that any tool should be able to read.
- `SqliteDatetime`: what SQLite columns declared DATETIME hold by convention, `2026-01-31 09:00:00.000000` in UTC.

What each database makes of the expressions at the end stands in its own `spelling.py`; an index can serve all of them.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, DateTime, Dialect, Float, Text
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

CREATE_INSTANT_FUNCTION = (
    "CREATE OR REPLACE FUNCTION redrive_instant(text) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT "
    "PARALLEL SAFE SET timezone TO 'UTC' AS $$ SELECT $1::timestamptz $$"
)
"""Immutable in truth, because its zone is fixed; PostgreSQL's own cast depends on the session and cannot be indexed."""


class _Microseconds(TypeDecorator[datetime]):
    """An instant as whole microseconds since 1970."""

    impl = BigInteger
    cache_ok = True

    # The processors themselves, not `process_…_value`: a claim reads eight a row.
    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:  # noqa: ARG002
        return lambda value: None if value is None else (value - EPOCH) // MICROSECOND

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
        return lambda value: None if value is None else EPOCH + timedelta(microseconds=value)


_STORED = DateTime(timezone=True).with_variant(_Microseconds(), "sqlite")
_COMPARABLE = DateTime(timezone=True).with_variant(Float(), "sqlite")


class Instant(TypeDecorator[datetime]):
    """An instant to the microsecond."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return _STORED.dialect_impl(dialect)


class IsoText(TypeDecorator[datetime]):
    """An instant in ISO 8601 text; written in UTC with microseconds and `Z`, read in any spelling."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else self.write(value.astimezone(UTC))

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        try:
            read = datetime.fromisoformat(value)
            return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
        except (TypeError, ValueError, OverflowError):
            return None  # a stranger's text: the row still runs, its time is unknown

    @staticmethod
    def write(value: datetime) -> str:
        # A tenth of what strftime takes: many are written in one go.
        return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


class SqliteDatetime(IsoText):
    """The same in the spelling that SQLite's users and SQLAlchemy expect of a DATETIME column."""

    cache_ok = True

    @staticmethod
    def write(value: datetime) -> str:
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")


_WRITTEN = DateTime(timezone=True).with_variant(IsoText(), "sqlite")


class When(TypeDecorator[datetime]):
    """An instant in a column that any tool can read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return _WRITTEN.dialect_impl(dialect)


class InstantOfText(FunctionElement[Any]):
    """What is text, or is text on SQLite, as something that orders by instant."""

    type = _COMPARABLE
    inherit_cache = True


class Earliest(FunctionElement[Any]):
    """The instant before all others."""

    type = _COMPARABLE
    inherit_cache = True


class EpochSeconds(FunctionElement[int]):
    """An `Instant` as whole seconds since 1970."""

    type = BigInteger()
    inherit_cache = True


class HourOf(FunctionElement[datetime]):
    """The start of the hour that an `Instant` lies in."""

    type = Instant()
    inherit_cache = True


def comparable(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """The value as something that orders by instant and that an index may be built on."""
    return InstantOfText(value) if isinstance(value.type, IsoText | When) else value
