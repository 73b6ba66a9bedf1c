"""The seam of adopting: what differs between the databases when a table of somebody's is looked at.

`on_sqlite.py` and `on_postgres.py` are its two sides, and `forms.py` chooses. Nobody else in this room asks which database it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Column, Connection, Dialect, MetaData, Table, Text, inspect
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.ledgers.sql.mapped import ForeignKey

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

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:  # noqa: ARG002
        try:
            read = UUID(value.strip())
        except (AttributeError, TypeError, ValueError):
            return None
        return read if str(read) == value.strip() else None


class Form(Protocol):
    """One database, as far as a table of somebody's must be read and mended there."""

    new_id: str
    """The type of an id that rows get from the database."""
    time_type: TypeEngine[Any]
    """How an instant is kept in a column that we add."""
    fence_type: TypeEngine[Any]
    """The same for a fence."""
    surrogate_type: TypeEngine[Any]
    """The type of a surrogate."""

    # --- looking ------------------------------------------------------------------------------------------------------

    def indexes(self, connection: Connection, ledger_table: LedgerTable) -> set[str]:
        """The names of a table's indexes."""
        ...

    def has_unique_index(self, connection: Connection, name: str, schema: str | None, column: str) -> bool:
        """Whether an index says that no two rows have the same value in a column. A partial one does not."""
        ...

    def pointing_at(self, connection: Connection, ledger_table: LedgerTable) -> list[ForeignKey]:
        """The foreign keys in the table's schema that forbid deleting its rows."""
        ...

    # --- reading ------------------------------------------------------------------------------------------------------

    def ddl_type(self, role: str) -> str:
        """The type of a column that we add."""
        ...

    def read_time(self, role: str, real: TypeEngine[Any], name: str, quoted: str) -> Read:
        """How a column of instants is read."""
        ...

    def holds_fence(self, real: TypeEngine[Any]) -> bool:
        """Whether a column of text is long enough for a fence."""
        ...

    def read_payload(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """How a payload is read."""
        ...

    def read_number(self, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """How a count is read."""
        ...

    def read_other(self, role: str | None, real: TypeEngine[Any]) -> TypeEngine[Any]:
        """How any other column is read; without a role it is one that we hand on."""
        ...

    def payload_notice(self, name: str, real: TypeEngine[Any], *, harm_only: bool) -> str | None:
        """What the type of a payload's column does to a payload."""
        ...

    # --- mending ------------------------------------------------------------------------------------------------------

    def allow_null(self, table: str, column: str, role: str) -> str | Mend:
        """The statement that lets a column be NULL, or another column where it cannot."""
        ...

    def change(
        self, table: str, column: str, name: str, role: str, mend: Mend, found: Findings, real: set[str]
    ) -> None:
        """Give a column another type; where the database cannot, another column."""
        ...

    def default_status(self, altered: str, column: str, waiting: str, found: Findings) -> None:
        """Let new rows wait, and leave those alone that are there."""
        ...

    def surrogate(self, table: str, name: str, column: str, together: Sequence[str]) -> list[str]:
        """The statements that give each row an id of its own. No row is updated: the database makes the values.

        None where it cannot. `together` are the columns of the primary key.
        """
        ...

    def check_enum(
        self, connection: Connection, ledger_table: LedgerTable, status: Column[Any], found: Findings
    ) -> bool:
        """Whether the status is an enum; if so the words that it lacks are found."""
        ...

    def check_function(self, connection: Connection, found: Findings) -> None:
        """Find the function missing by which instants in text are compared, where one is needed."""
        ...


def escaped(word: str) -> str:
    """A word as it stands between single quotes."""
    return word.replace("'", "''")


def primary_key(connection: Connection, name: str, schema: str | None) -> list[str]:
    """The columns of the primary key."""
    return list(inspect(connection).get_pk_constraint(name, schema=schema)["constrained_columns"])


def quoted_table(dialect: Dialect, name: str, schema: str | None) -> str:
    """A table as a statement names it."""
    return dialect.identifier_preparer.format_table(Table(name, MetaData(), schema=schema))


def usual_ddl_type(role: str) -> str:
    """The type of a column that is the same on every database."""
    if role in ("count", "redrives"):
        return "integer NOT NULL DEFAULT 0"
    if role in ("count_max", "priority"):
        return "integer"
    return "text"


def no_time(role: str, real: TypeEngine[Any], name: str) -> str:
    """What is said of a column that cannot hold instants."""
    return f"column {name!r} ({role}) must be a timestamp with zone or ISO 8601 text, not {real}"


def unix_seconds(quoted: str) -> str:
    """A number since 1970, in seconds or, if that would lie beyond the year 5000, in milliseconds."""
    return f"CASE WHEN {quoted} > 100000000000 THEN {quoted} / 1000.0 ELSE {quoted} END"
