"""The seam of adopting: what differs between the databases when a table of somebody's is looked at.

`on_sqlite.py` and `on_postgres.py` are its two sides, and `forms.py` chooses. Nobody else in this room asks which database it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Connection, Dialect, Integer, MetaData, Numeric, String, Table, Text, inspect
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.mapped import ForeignKey
from redrive.ledgers.sql.times import IsoText

SURROGATE = "redrive_id"
"""The column that gives rows an id of their own."""
TIMES = (
    "due", "first_due", "lease_until", "claimed_at", "done_at", "ended_at", "created_at", "updated_at", "deadline",
)  # fmt: skip
NUMBERS = ("count", "count_max", "redrives", "priority")


@dataclass(slots=True)
class Findings:
    """What is wrong with a table, the statements that mend it in the order in which they can be run, and the mapping then."""

    problems: list[str] = field(default_factory=list)
    migration: list[str] = field(default_factory=list)
    mapping: dict[str, Any] = field(default_factory=dict)
    """By role the column that must be named instead, once the migration has run."""


@dataclass(slots=True)
class Mend:
    """A column that must change: its new type, and the expression that its values become."""

    type: str
    using: str


Read = tuple[TypeEngine[Any], str | None, Mend | None]
"""How a column is read, what is wrong with it, and how it must change."""


class UuidText(TypeDecorator[UUID]):
    """A fence in a text column; what is not in our spelling is none of ours, and reads as None."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        try:
            read = UUID(value.strip())
        except (AttributeError, TypeError, ValueError):
            return None
        return read if str(read) == value.strip() else None


class Form:
    """One database, as far as a table of somebody's must be read and mended there; what is usual stands here."""

    new_id: str
    """The type of an id that rows get from the database."""
    time_ddl: str
    fence_ddl: str
    time_type: TypeEngine[Any]
    """How an instant is kept in a column that we add."""
    fence_type: TypeEngine[Any]
    surrogate_type: TypeEngine[Any]

    # --- looking ------------------------------------------------------------------------------------------------------

    def indexes(self, connection: Connection, ledger_table: LedgerTable) -> set[str]:
        """The names of a table's indexes."""
        raise NotImplementedError

    def has_unique_index(self, connection: Connection, name: str, schema: str | None, column: str) -> bool:
        """Whether an index says that no two rows have the same value in a column. A partial one does not."""
        raise NotImplementedError

    def pointing_at(self, connection: Connection, ledger_table: LedgerTable) -> list[ForeignKey]:
        """The foreign keys in the table's schema that forbid deleting its rows."""
        raise NotImplementedError

    # --- reading ------------------------------------------------------------------------------------------------------

    def ddl_type(self, role: str) -> str:
        """The type of a column that we add."""
        if role in TIMES:
            return self.time_ddl
        if role == "claim_id":
            return self.fence_ddl
        if role in ("count", "redrives"):
            return "integer NOT NULL DEFAULT 0"
        return "integer" if role in ("count_max", "priority") else "text"

    def read_time(self, role: str, real: TypeEngine[Any], name: str, quoted: str) -> Read:
        """How a column of instants is read."""
        if isinstance(real, String):
            return IsoText(), None, None
        problem = f"column {name!r} ({role}) must be a timestamp with zone or ISO 8601 text, not {real}"
        if not isinstance(real, Numeric | Integer):
            return self.time_type, problem, None
        # Since 1970, in seconds or, if that would lie beyond the year 5000, in milliseconds.
        unix = f"CASE WHEN {quoted} > 100000000000 THEN {quoted} / 1000.0 ELSE {quoted} END"
        return self.time_type, problem, Mend(self.time_ddl, self.from_unix(unix))

    def from_unix(self, seconds: str) -> str:
        """An instant of seconds since 1970."""
        raise NotImplementedError

    def holds_fence(self, real: TypeEngine[Any]) -> bool:
        """Whether a column of text is long enough for a fence."""
        return isinstance(real, String)

    def read_payload(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """How a payload is read."""
        return JsonText()

    def read_number(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """How a count is read."""
        return real

    def read_other(self, role: str | None, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """How any other column is read; without a role it is one that we hand on."""
        raise NotImplementedError

    def payload_notice(self, name: str, real: TypeEngine[Any], *, harm_only: bool) -> str | None:
        """What the type of a payload's column does to a payload."""
        raise NotImplementedError

    # --- mending ------------------------------------------------------------------------------------------------------

    def allow_null(self, table: str, column: str, role: str) -> str | Mend:
        """The statement that lets a column be NULL, or another column where it cannot."""
        return Mend(self.ddl_type(role), column)

    def change(
        self, table: str, column: str, name: str, role: str, mend: Mend, found: Findings, real: set[str]
    ) -> None:
        """Give a column another type; where the database cannot, another column."""
        raise NotImplementedError

    def default_status(self, altered: str, column: str, waiting: str, found: Findings) -> None:
        """Let new rows wait, and leave those alone that are there."""
        raise NotImplementedError

    def surrogate(self, table: str, name: str, column: str, together: Sequence[str]) -> list[str]:
        """The statements that give each row an id of its own. No row is updated: the database makes the values.

        None where it cannot. `together` are the columns of the primary key.
        """
        raise NotImplementedError

    def check_enum(
        self, connection: Connection, ledger_table: LedgerTable, status: Column[Any], found: Findings
    ) -> bool:
        """Whether the status is an enum; if so the words that it lacks are found."""
        return False

    def check_function(self, connection: Connection, found: Findings) -> None:
        """Find the function missing by which instants in text are compared, where one is needed."""


def escaped(word: str) -> str:
    """A word as it stands between single quotes."""
    return word.replace("'", "''")


def primary_key(connection: Connection, name: str, schema: str | None) -> list[str]:
    """The columns of the primary key."""
    return list(inspect(connection).get_pk_constraint(name, schema=schema)["constrained_columns"])


def quoted_table(dialect: Dialect, name: str, schema: str | None) -> str:
    """A table as a statement names it."""
    return dialect.identifier_preparer.format_table(Table(name, MetaData(), schema=schema))
