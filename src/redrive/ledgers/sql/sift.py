"""One bad row: reading rows of which some cannot be read, without losing the others.

A driver decodes an answer as a whole: one year 12026, one number of 5,000 digits or one deep JSON text in one row, and all rows
are an error. What failed as a whole is asked for again in halves until the bad row stands alone, and that one is read cell by
cell. Where everything can be read, nothing of this runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, select
from sqlalchemy.exc import DBAPIError

from redrive.core.failure import describe_error
from redrive.core.task import TaskId
from redrive.errors import RedriveError
from redrive.ledgers.sql.seam import Parameters

_DECODING = (ValueError, ArithmeticError, LookupError, RecursionError)


def is_unreadable(error: Exception) -> bool:
    """Whether an answer of the database could not be decoded: it was given, and what was written is written."""
    if isinstance(error, DBAPIError):  # of SQLite's driver, for text that is not UTF-8
        return "decode to UTF-8" in str(error.orig)
    return isinstance(error, _DECODING) and not isinstance(error, RedriveError)


class Sifted(NamedTuple):
    """A row, with None for each cell that cannot be read, and by the names of their columns why not."""

    cells: tuple[Any, ...]
    unreadable: Mapping[str, str]

    def said(self, id_: TaskId) -> str | None:
        """What is wrong with the row, and the remedy; None where nothing is."""
        if not self.unreadable:
            return None
        why = "; ".join(f"column {name!r} ({error})" for name, error in self.unreadable.items())
        return f"row {id_} cannot be read: {why}. Correct the row, then redrive the task"


def sift(
    connection: Connection,
    columns: Iterable[ColumnElement[Any]],
    id_: ColumnElement[Any],
    ids: Sequence[TaskId],
    parameters: Parameters | None = None,
) -> list[Sifted]:
    """These columns of the rows with these ids, in their order. Rows that are gone are left out."""
    if not ids:
        return []
    named = {**(parameters or {}), "sifted": list(ids)}
    asked = select(id_, *columns).where(id_.in_(bindparam("sifted", expanding=True)))
    try:
        rows = {row[0]: Sifted(tuple(row[1:]), {}) for row in connection.execute(asked, named).all()}
    except Exception as error:
        if not is_unreadable(error):
            raise
    else:
        return [rows[one] for one in ids if one in rows]
    if len(ids) == 1:
        return _by_cell(connection, columns, id_, ids[0], parameters or {})
    half = len(ids) // 2
    return [
        *sift(connection, columns, id_, ids[:half], parameters),
        *sift(connection, columns, id_, ids[half:], parameters),
    ]


def _by_cell(
    connection: Connection,
    columns: Iterable[ColumnElement[Any]],
    id_: ColumnElement[Any],
    one: TaskId,
    parameters: Parameters,
) -> list[Sifted]:
    cells: list[Any] = []
    unreadable: dict[str, str] = {}
    for column in columns:
        try:
            row = connection.execute(select(column).where(id_ == one), parameters).first()
        except Exception as error:
            if not is_unreadable(error):
                raise
            cells.append(None)
            unreadable[column.name] = describe_error(error)
        else:
            if row is None:
                return []
            cells.append(row[0])
    return [Sifted(tuple(cells), unreadable)]
