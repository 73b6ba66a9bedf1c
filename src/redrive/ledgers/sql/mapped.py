"""What the statements of one ledger have in common: its table, which column is what, and the dialect of its database."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Enum,
    String,
    Table,
    Update,
    bindparam,
    cast,
    column,
    exists,
    table,
    update,
)

from redrive.core.table import LedgerTable
from redrive.ledgers.sql.predicates import Predicates, columns_of
from redrive.ledgers.sql.seam import Dialect

KEPT_BY = "kept_by"
"""In the `info` of a table: the foreign keys that forbid to delete its rows."""


class ForeignKey(NamedTuple):
    """Columns of a table that point at columns of ours."""

    table: str
    schema: str | None
    columns: Sequence[str]
    referred: Sequence[str]

    def __str__(self) -> str:
        return f"{self.table}.{', '.join(self.columns)}"


class Mapped:
    """A table that is mapped by a `LedgerTable`, on one database."""

    def __init__(self, ledger_table: LedgerTable, table: Table, dialect: Dialect) -> None:
        self.ledger_table = ledger_table
        self.table = table
        self.dialect = dialect
        self.rows = Predicates(ledger_table, table)
        self.id = self.rows.column("id")
        self._roles = frozenset(ledger_table.columns())

    def has(self, role: str) -> bool:
        """Whether the table has a column for this role."""
        return role in self._roles

    def now(self, role: str) -> ColumnElement[Any]:
        """The present, to be written into the column of this role."""
        return self.dialect.now(self.rows.column(role))

    def later(self, column: ColumnElement[Any], span: str) -> ColumnElement[Any]:
        """The instant that is the parameter `span` from now, to be written into this column."""
        return self.dialect.later(bindparam(span, type_=self.dialect.span_type(column)), column)

    def as_status(self, word: ColumnElement[Any]) -> ColumnElement[Any]:
        """A word from a parameter, also where the status is an enum of PostgreSQL's or a number."""
        type_ = self.rows.column("status").type
        return word if isinstance(type_, String) and not isinstance(type_, Enum) else cast(word, type_)

    def kept_by(self) -> list[ColumnElement[bool]]:
        """For each foreign key that forbids to delete rows it points at: whether it points at a row."""
        named = columns_of(self.table)
        found: list[ColumnElement[bool]] = []
        for key in self.table.info.get(KEPT_BY, ()):
            child = table(key.table, *(column(name) for name in key.columns), schema=key.schema).alias()
            pairs = zip(key.columns, key.referred, strict=True)
            points = [child.c[own] == named[referred] for own, referred in pairs]
            found.append(exists().where(*points))
        return found

    def update(self, values: dict[str, Any]) -> Update:
        """Write values by the roles of their columns."""
        return update(self.table).values({self.rows.column(role): value for role, value in values.items()})
