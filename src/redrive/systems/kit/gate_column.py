"""The column of gates, for migrations: rows without a gate keep their indexes, and rows with one get indexes of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from alembic import op


@dataclass(frozen=True, slots=True, kw_only=True)
class GateColumn:
    """What the indexes of a table's waiting rows are made of, in its own words; `{}` stands for a column of a time."""

    table: str
    first: str
    """Rows that have not been tried."""
    retry: str
    """All others that wait."""
    waiting: str
    """Both together."""
    tried: str
    first_due: Sequence[str]
    retry_due: Sequence[str]
    due: Sequence[str]
    """The columns of which the first that is there says when a row with a gate is due."""
    kind: str | None = None
    priority: bool = False
    times_are_text: bool = True
    """Whether SQLite keeps its times as text."""

    def add(self) -> None:
        """Add the column, and index rows by it."""
        op.add_column(self.table, sa.Column("gate", sa.Text()))
        if self.priority:
            op.add_column(self.table, sa.Column("priority", sa.SmallInteger()))
        self._index_waiting("gate IS NULL AND ")
        level = "coalesce(priority, 1) * 2" if self.priority else "2"
        band = f"{level} + CASE WHEN ({self.tried}) THEN 0 ELSE 1 END"
        where = f"gate IS NOT NULL AND {self.waiting} AND lease_until IS NULL"
        self._create("gate", ["gate", *self._kind, band if _sqlite() else f"({band})", self._instant(self.due)], where)
        due = self._instant(self.due)
        self._create("parked", [*self._kind, due], f"{where} AND {due} >= {_earliest()}")

    def drop(self) -> None:
        """Take the column away. What waits behind a gate waits without one then."""
        for name in ("gate", "parked"):
            op.drop_index(f"{self.table}_{name}_idx", self.table)
        self._index_waiting("")
        op.drop_column(self.table, "gate")
        if self.priority:
            op.drop_column(self.table, "priority")

    @property
    def _kind(self) -> list[str]:
        return [] if self.kind is None else [self.kind]

    def _index_waiting(self, which: str) -> None:
        for name, due, rows in (("first", self.first_due, self.first), ("retry", self.retry_due, self.retry)):
            op.drop_index(f"{self.table}_{name}_idx", self.table)
            self._create(name, [*self._kind, self._instant(due)], f"{which}{rows} AND lease_until IS NULL")

    def _instant(self, columns: Sequence[str]) -> str:
        compared = [f"julianday({name})" for name in columns] if _sqlite() and self.times_are_text else columns
        return f"coalesce({', '.join([*compared, _earliest()])})"

    def _create(self, name: str, columns: Sequence[str], where: str) -> None:
        op.execute(f"CREATE INDEX {self.table}_{name}_idx ON {self.table} ({', '.join(columns)}) WHERE {where}")


def _earliest() -> str:
    return "0" if _sqlite() else "'-infinity'::timestamptz"


def _sqlite() -> bool:
    return op.get_context().dialect.name == "sqlite"
