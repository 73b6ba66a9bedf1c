"""Many rows in one parameter: a batch is a table made of a list, joined like any other.

PostgreSQL takes one array per column and `unnest`s them; SQLite takes one JSON text and `json_each`es it. Either way
the statement has the same text for one row and for five hundred, is compiled once, and costs one round trip.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, FromClause, and_

from redrive.ledgers.sql.seam import Columns, Dialect, Parameters

SHAPES_MAX = 16
"""So many forms of one statement are kept."""

S = TypeVar("S")


class Batch:
    """A table-valued parameter with named and typed columns."""

    def __init__(self, dialect: Dialect, columns: Columns, same: Collection[str] = (), *, joined: bool = True) -> None:
        """`same` are columns that have one value for all rows, see `Shapes`; `joined` as in `Dialect.batch_rows`."""
        self._dialect = dialect
        self._columns = columns
        self._write = dialect.batch_writer(columns, same)
        self.rows: FromClause = dialect.batch_rows(columns, same, joined=joined)

    def parameters(self, rows: Iterable[Sequence[Any]]) -> Parameters:
        """The bind parameters for these rows, each with its values in the order of the columns."""
        return self._write(list(zip(*rows, strict=True)) or [()] * len(self._columns))

    def of_columns(self, columns: Sequence[Sequence[Any]]) -> Parameters:
        """The same for rows that are given by columns."""
        return self._write(columns)

    def alike(self, name: str) -> ColumnElement[Any]:
        """The value of a column that is the same in all rows."""
        return self._dialect.alike(name, self._columns[name])

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


class Shapes(Generic[S]):
    """One statement over batches, in a form for each set of columns that are the same in all rows of a batch.

    What is settled together is mostly alike: one claim, one outcome, one count, often one error. Only the ids and how long
    each took are then sent as lists, a fifth of what all columns would be. There are few such sets; when there are many, the form
    without any serves them all.
    """

    def __init__(
        self, columns: Columns, build: Callable[[frozenset[str]], S], *, apart: Collection[str] = ("id",)
    ) -> None:
        """`build` makes the form in which these columns are the same; columns that stand `apart` never are."""
        self._names = tuple(columns)
        self._apart = frozenset(apart)
        self._build = build
        self._forms: dict[frozenset[str], S] = {}

    def of(self, columns: Sequence[Sequence[Any]]) -> S:
        """The form for rows that are given by columns."""
        same = frozenset(
            name
            for name, values in zip(self._names, columns, strict=True)
            if name not in self._apart and is_one(values)
        )
        if same not in self._forms:
            if len(self._forms) >= SHAPES_MAX:
                same = frozenset()
            self._forms.setdefault(same, self._build(same))
        return self._forms[same]


def is_one(values: Sequence[Any]) -> bool:
    """Whether all values are the same. Where two claims meet in a batch the ends tell them apart, without a look at each."""
    return bool(values[0] == values[-1]) and values.count(values[0]) == len(values)
