"""Where a page ended that is in the order of an instant, as a condition of SQL."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, and_, bindparam, or_

from redrive.ledgers.sql.times import Earliest
from redrive.operator.cursors import EARLIEST, Position


def behind(
    at: ColumnElement[Any], id: ColumnElement[Any], after: Position, connection: Connection, *, newest_first: bool
) -> ColumnElement[bool]:
    """The rows behind a position, by their instant and then by their id."""
    after.check(float if isinstance(at.type.dialect_impl(connection.dialect), Float) else datetime)
    instant: ColumnElement[Any] = Earliest() if after.at == EARLIEST else bindparam(None, after.at, type_=at.type)
    # Written out, not as a row value: the first half then is a range of the index, with or without the id in it.
    if newest_first:
        return and_(at <= instant, or_(at < instant, id < after.id))
    return and_(at >= instant, or_(at > instant, id > after.id))


def with_zone(at: Any) -> Any:
    """PostgreSQL's -infinity comes without a zone, and could not be compared."""
    return at.replace(tzinfo=UTC) if isinstance(at, datetime) and at.tzinfo is None else at
