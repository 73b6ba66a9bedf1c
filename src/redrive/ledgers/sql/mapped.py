"""What the statements of one ledger have in common: its table, which column is what, and the dialect of its database."""

from typing import Any

from sqlalchemy import ColumnElement, Enum, String, Table, Update, bindparam, cast, update

from redrive.core.table import LedgerTable
from redrive.ledgers.sql.predicates import Predicates
from redrive.ledgers.sql.seam import Dialect


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

    def update(self, values: dict[str, Any]) -> Update:
        """Write values by the roles of their columns."""
        return update(self.table).values({self.rows.column(role): value for role, value in values.items()})
