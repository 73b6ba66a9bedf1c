"""Many rows in one parameter: a batch is a table made of a list, joined like any other.

PostgreSQL takes one array per column and `unnest`s them; SQLite takes one JSON text and `json_each`es it. Either way
the statement has the same text for one row and for five hundred, is compiled once, and costs one round trip.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_

from redrive.ledgers.sql.seam import Columns, Dialect, Parameters


class Batch:
    """A table-valued parameter with named and typed columns."""

    def __init__(self, dialect: Dialect, columns: Columns) -> None:
        self._dialect = dialect
        self._columns = columns
        self._write = dialect.batch_writer(columns)
        self.rows: FromClause = dialect.batch_rows(columns)

    def parameters(self, rows: Iterable[Sequence[Any]]) -> Parameters:
        """The bind parameters for these rows, each with its values in the order of the columns."""
        return self._write(rows)

    def match(
        self, name: str, column: ColumnElement[Any], besides: ColumnElement[bool] | None = None
    ) -> ColumnElement[bool]:
        """Whether an indexed column of a table is equal to the column `name` of the batch: what the two are joined by.

        `besides` is what the planner is told instead of all values, where only some of the rows are wanted.
        """
        same = column == self.rows.c[name]
        if besides is None:
            besides = self._dialect.batch_match(self._columns, name, column)
        return same if besides is None else and_(same, besides)
