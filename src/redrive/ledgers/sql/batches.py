"""Many rows in one parameter: a batch is a table made of a list, joined like any other.

PostgreSQL takes one array per column and `unnest`s them; SQLite takes one JSON text and `json_each`es it. Either way
the statement has the same text for one row and for five hundred, is compiled once, and costs one round trip.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Dialect, FromClause, Text, and_, any_, bindparam, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

Columns = Mapping[str, TypeEngine[Any]]

PREFIX = "in_batch__"
"""Of the names of parameters. No column should be called so: SQLAlchemy would take the parameter for a value to be set."""


class Batch:
    """A table-valued parameter with named and typed columns."""

    def __init__(self, dialect: Dialect, columns: Columns) -> None:
        self._dialect = dialect
        self._columns = columns
        # On SQLite each value must go into the JSON text in the form in which the column stores it.
        self._processors = [type_.dialect_impl(dialect).bind_processor(dialect) for type_ in columns.values()]
        self.rows: FromClause = self._json_rows() if dialect.name == "sqlite" else self._array_rows()

    def parameters(self, rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """The bind parameters for these rows, each with its values in the order of the columns."""
        if self._dialect.name == "sqlite":
            stored = [
                [
                    value if process is None else process(value)
                    for value, process in zip(row, self._processors, strict=True)
                ]
                for row in rows
            ]
            return {"batch": json.dumps(stored, ensure_ascii=False, separators=(",", ":"))}
        lists = zip(*rows, strict=True)
        # `unnest` fills a shorter array up with NULL: a column that says nothing, as those for errors often do, costs nothing.
        return {
            f"{PREFIX}{name}": () if values[0] is None and values.count(None) == len(values) else values
            for name, values in zip(self._columns, lists, strict=True)
        }

    def match(self, name: str, column: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether an indexed column of a table is equal to the column `name` of the batch: what the two are joined by.

        PostgreSQL is told all values in advance. Otherwise it may rather read the index from its beginning, beside the batch,
        in a table that it takes for small.
        """
        same = column == self.rows.c[name]
        if self._dialect.name == "sqlite":
            return same
        return and_(same, column == any_(self._array(name)))

    def _array(self, name: str) -> ColumnElement[Any]:
        return bindparam(f"{PREFIX}{name}", type_=ARRAY(self._columns[name], dimensions=1))

    def _array_rows(self) -> FromClause:
        arrays = [self._array(name) for name in self._columns]
        typed = [column(name, type_) for name, type_ in self._columns.items()]
        return func.unnest(*arrays).table_valued(*typed, name="batch").render_derived()

    def _json_rows(self) -> FromClause:
        each = func.json_each(bindparam("batch", type_=Text)).table_valued("value", name="each")
        values = [
            func.json_extract(each.c.value, f"$[{position}]", type_=type_).label(name)
            for position, (name, type_) in enumerate(self._columns.items())
        ]
        return select(*values).select_from(each).subquery("batch")
