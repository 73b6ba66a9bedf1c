"""Adopting a foreign table: look at it, say what is missing, print the migration that mends it.

`adopt` is called at start for every `LedgerTable` but our own. It never changes the table.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Dialect,
    FetchedValue,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.sqltypes import NULLTYPE, DateTime
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.errors import TableError
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.mapped import KEPT_BY, ForeignKey
from redrive.ledgers.sql.predicates import columns_of, ledger_indexes
from redrive.ledgers.sql.times import CREATE_INSTANT_FUNCTION, Instant, IsoText, SqliteDatetime

TIMES = (
    "due", "first_due", "lease_until", "claimed_at", "done_at", "ended_at", "created_at", "updated_at", "deadline",
)  # fmt: skip
SURROGATE = "redrive_id"
"""The column that gives rows an id of their own."""
NUMBERS = ("count", "count_max", "redrives")
NULLABLE = ("due", "lease_until", "claim_id", "claimed_at", "done_at", "ended_at", "last_error")


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


class WholeNumber(TypeDecorator[int]):
    """A count on SQLite, which keeps any text in a column of numbers: what is no number is refused when it is read."""

    impl = Integer
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
        return lambda value: value if value is None or isinstance(value, int) else int(value)


class Label(TypeDecorator[str]):
    """A label of an enum, as the text it is: one that was added since the start is a label too."""

    impl = postgresql.ENUM
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """Handed on as the driver gives it."""


@dataclass(slots=True)
class _Findings:
    """What is wrong with a table, and the statements that mend it, in the order in which they can be run."""

    problems: list[str] = field(default_factory=list)
    migration: list[str] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)
    """By role the column that must be named instead, once the migration has run."""


@dataclass(slots=True)
class _Mend:
    """A column that must change: its new type, and the expression that its values become."""

    type: str
    using: str


def adopt(connection: Connection, ledger_table: LedgerTable) -> Table:
    """The real table with the types that redrive reads and writes it by, or a `TableError` with the migration.

    One error says all: what is found out about the columns is taken as mended when the indexes are looked at.
    """
    found = _Findings()
    inspector = inspect(connection)
    if not inspector.has_table(ledger_table.name, schema=ledger_table.schema):
        where = f" in schema {ledger_table.schema!r}" if ledger_table.schema else ""
        found.problems.append(f"there is no such table{where}")
        table = _new_table(ledger_table, connection.dialect, found)
    else:
        table = _reflect(connection, ledger_table, found)
        _check_id(connection, ledger_table, table, found)
        _check_words(connection, ledger_table, table, found)
    _check_function(connection, ledger_table, table, found)
    _check_indexes(connection, ledger_table, table, found)
    if found.problems:
        raise TableError(ledger_table.name, found.problems, found.migration)
    table.info[KEPT_BY] = _pointing_at(connection, ledger_table)
    return table


def _pointing_at(connection: Connection, ledger_table: LedgerTable) -> list[ForeignKey]:
    """The foreign keys in the table's schema that forbid to delete its rows."""
    if connection.dialect.name == "sqlite":  # SQLAlchemy does not see what is said behind the REFERENCES of a column
        asked = text(
            'SELECT child.name, json_group_array(key."from"), json_group_array(coalesce(key."to", :id)) '
            "FROM sqlite_schema AS child JOIN pragma_foreign_key_list(child.name) AS key "
            "WHERE child.type = 'table' AND lower(key.\"table\") = lower(:table) AND key.on_delete IN ('NO ACTION', 'RESTRICT') "
            "GROUP BY child.name, key.id"
        )
        rows = connection.execute(asked, {"table": ledger_table.name, "id": ledger_table.id_column})
        return [ForeignKey(child, None, json.loads(own), json.loads(referred)) for child, own, referred in rows]
    default = inspect(connection).default_schema_name
    schema = ledger_table.schema or default
    found = []
    for (_, child), keys in inspect(connection).get_multi_foreign_keys(schema=ledger_table.schema).items():
        for key in keys:
            here = key["referred_table"] == ledger_table.name and (key["referred_schema"] or default) == schema
            if here and (key["options"].get("ondelete") or "NO ACTION").upper() in ("NO ACTION", "RESTRICT"):
                columns = key["constrained_columns"], key["referred_columns"]
                found.append(ForeignKey(child, ledger_table.schema, *columns))
    return found


def _new_table(ledger_table: LedgerTable, dialect: Dialect, found: _Findings) -> Table:
    """The table as redrive would make it."""
    quote = dialect.identifier_preparer.quote
    roles = {name: role for role, name in ledger_table.columns().items()}
    lines = []
    for name, role in roles.items():
        line = f"{quote(name)} {_ddl_type(role, dialect)}"
        if name == ledger_table.id_column:
            generated = dialect.name == "postgresql" and name != ledger_table.key
            own = (
                "bigint GENERATED BY DEFAULT AS IDENTITY"
                if generated
                else "integer"
                if name != ledger_table.key
                else "text"
            )
            line = f"{quote(name)} {own} PRIMARY KEY"
        elif name == ledger_table.key:
            line += " NOT NULL UNIQUE"
        elif role == "status":
            line += f" NOT NULL DEFAULT '{_escaped(ledger_table.words.waiting)}'"
        elif role in ("kind", "payload"):
            line += " NOT NULL"
        lines.append(line)
    found.migration.append(f"CREATE TABLE {_quoted(ledger_table, dialect)} ({', '.join(lines)})")
    return Table(
        ledger_table.name,
        MetaData(),
        *(_missing(name, role, dialect) for name, role in roles.items()),
        schema=ledger_table.schema,
    )


def _reflect(connection: Connection, ledger_table: LedgerTable, found: _Findings) -> Table:
    inspector = inspect(connection)
    real = {column["name"]: column for column in inspector.get_columns(ledger_table.name, schema=ledger_table.schema)}
    roles = {name: role for role, name in ledger_table.columns().items()}
    dialect = connection.dialect
    columns: list[Column[Any]] = []
    for name, column in real.items():
        role = roles.get(name)
        type_, problem, mend = _type_for(role, column["type"], dialect, name)
        if problem is not None:
            found.problems.append(problem)
        if role in NULLABLE and not column["nullable"] and name not in (ledger_table.key, ledger_table.id_column):
            found.problems.append(f"column {name!r} ({role}) must allow NULL")
            if dialect.name == "postgresql":
                quoted = dialect.identifier_preparer.quote(name)
                found.migration.append(
                    f"ALTER TABLE {_quoted(ledger_table, dialect)} ALTER COLUMN {quoted} DROP NOT NULL"
                )
            elif mend is None:
                mend = _Mend(str(column["type"]), dialect.identifier_preparer.quote(name))
        if mend is not None:
            found.migration += _change(connection, ledger_table, name, mend)
        columns.append(
            _column(
                name,
                type_,
                server_default=FetchedValue() if _is_made(column) else None,
                primary_key=name == ledger_table.id_column,
                nullable=bool(column["nullable"]),
            )
        )
    for name, role in roles.items():
        if name not in real:
            found.problems.append(f"column {name!r} ({role}) is missing")
            quoted = dialect.identifier_preparer.quote(name)
            added = _ddl_type(role, dialect)
            if role == "status":
                added += f" NOT NULL DEFAULT '{_escaped(ledger_table.words.waiting)}'"
            found.migration.append(f"ALTER TABLE {_quoted(ledger_table, dialect)} ADD COLUMN {quoted} {added}")
            columns.append(_missing(name, role, dialect))
    return Table(ledger_table.name, MetaData(), *columns, schema=ledger_table.schema)


def _is_made(column: Any) -> bool:
    """Whether the database gives the column its values."""
    return column.get("default") is not None or column.get("computed") is not None


def _column(name: str, type_: TypeEngine[Any], **options: Any) -> Column[Any]:
    """A column with a key that no parameter has: SQLAlchemy takes a parameter called `batch` for a new value of `batch`."""
    return Column(name, type_, key=f"column {name}", **options)


def _missing(name: str, role: str, dialect: Dialect) -> Column[Any]:
    """A column that the migration adds, as it will be."""
    sqlite = dialect.name == "sqlite"
    if role in TIMES:
        return _column(name, IsoText() if sqlite else Instant())
    if role == "claim_id":
        return _column(name, UuidText() if sqlite else Uuid())
    return _column(name, Integer() if role in ("count", "count_max", "redrives") else Text(), nullable=role != "count")


def _change(connection: Connection, ledger_table: LedgerTable, name: str, mend: _Mend) -> list[str]:
    """The statements that give a column another type, and let it be NULL on SQLite."""
    quote = connection.dialect.identifier_preparer.quote
    table, column = _quoted(ledger_table, connection.dialect), quote(name)
    if connection.dialect.name == "postgresql":
        return [f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {mend.type} USING {mend.using}"]
    # SQLite cannot alter a column: a new one takes its place, and the indexes that name it are made anew.
    asked = text("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = :table AND sql LIKE :name")
    indexes = connection.execute(asked, {"table": ledger_table.name, "name": f"%{name}%"}).all()
    new = quote(f"{name}_new")
    return [
        *(f"DROP INDEX {quote(index)}" for index, _ in indexes),
        f"ALTER TABLE {table} ADD COLUMN {new} {mend.type}",
        f"UPDATE {table} SET {new} = {mend.using}",  # noqa: S608 - identifiers are quoted
        f"ALTER TABLE {table} DROP COLUMN {column}",
        f"ALTER TABLE {table} RENAME COLUMN {new} TO {column}",
        *(sql for _, sql in indexes),
    ]


def _type_for(
    role: str | None, real: TypeEngine[Any], dialect: Dialect, name: str
) -> tuple[TypeEngine[Any], str | None, _Mend | None]:
    """How a column is read, what is wrong with it, and how it must change."""
    if role in TIMES:
        return _time_type(role, real, dialect, name)
    if role == "claim_id":
        if isinstance(real, Uuid):
            return Uuid(), None, None
        if isinstance(real, String):
            return UuidText(), None, None
        mend = _Mend(_ddl_type(role, dialect), "NULL")
        return UuidText(), f"column {name!r} (claim_id) must be uuid or text, not {real}", mend
    if role == "payload":
        return (real if isinstance(real, JSON) and dialect.name == "postgresql" else JsonText()), None, None
    if role in NUMBERS and isinstance(real, Integer):
        return (WholeNumber() if dialect.name == "sqlite" else real), None, None
    if role in NUMBERS:
        quoted = dialect.identifier_preparer.quote(name)
        mend = _Mend("integer", f"CAST({quoted} AS integer)")
        return Integer(), f"column {name!r} ({role}) must be an integer, not {real}", mend
    if role == "id" and not isinstance(real, Integer | String | Uuid):
        return real, f"column {name!r} ({role}) must be an integer, a uuid or text, not {real}", None
    if isinstance(real, postgresql.ENUM):
        return Label(*real.enums, name=real.name, schema=real.schema, create_type=False), None, None
    if role is None and dialect.name == "sqlite":
        # SQLite keeps whatever was written: other columns are handed on as they are, JSON decoded.
        return (JsonText() if isinstance(real, JSON) else NULLTYPE), None, None
    return real, None, None


def _time_type(
    role: str | None, real: TypeEngine[Any], dialect: Dialect, name: str
) -> tuple[TypeEngine[Any], str | None, _Mend | None]:
    quoted, sqlite = dialect.identifier_preparer.quote(name), dialect.name == "sqlite"
    if isinstance(real, DateTime):
        if sqlite:
            return SqliteDatetime(), None, None
        if not real.timezone:
            problem = f"column {name!r} ({role}) has no time zone: its instants change with the session's zone"
            return Instant(), problem, _Mend("timestamptz", f"{quoted} AT TIME ZONE 'UTC'")
        return Instant(), None, None
    if isinstance(real, String):
        return IsoText(), None, None
    problem = f"column {name!r} ({role}) must be a timestamp with zone or ISO 8601 text, not {real}"
    mend = None
    if isinstance(real, Numeric | Integer):
        # Since 1970, in seconds or, if that would lie beyond the year 5000, in milliseconds.
        unix = f"CASE WHEN {quoted} > 100000000000 THEN {quoted} / 1000.0 ELSE {quoted} END"
        mend = (
            _Mend("TEXT", f"strftime('%Y-%m-%dT%H:%M:%fZ', {unix}, 'unixepoch')")
            if sqlite
            else _Mend("timestamptz", f"to_timestamp({unix})")
        )
    return (IsoText() if sqlite else Instant()), problem, mend


def _ddl_type(role: str, dialect: Dialect) -> str:
    if role in TIMES:
        return "timestamptz" if dialect.name == "postgresql" else "TEXT"
    if role == "claim_id":
        return "uuid" if dialect.name == "postgresql" else "TEXT"
    if role in ("count", "redrives"):
        return "integer NOT NULL DEFAULT 0"
    if role == "count_max":
        return "integer"
    return "text"


def _check_words(connection: Connection, ledger_table: LedgerTable, table: Table, found: _Findings) -> None:
    status, dialect = columns_of(table)[ledger_table.status], connection.dialect
    words = ledger_table.words.all()
    if isinstance(status.type, Label):
        enum_type: Any = status.type.impl_instance
        preparer = dialect.identifier_preparer
        schema = f"{preparer.quote_schema(enum_type.schema)}." if enum_type.schema else ""
        for word in words:
            if word not in enum_type.enums:
                found.problems.append(f"the enum of {ledger_table.status!r} has no word {word!r}")
                enum = f"{schema}{preparer.quote(str(enum_type.name))}"
                found.migration.append(f"ALTER TYPE {enum} ADD VALUE '{_escaped(word)}'")
        return
    if ledger_table.status not in {
        column["name"] for column in inspect(connection).get_columns(ledger_table.name, schema=ledger_table.schema)
    }:
        return
    row = connection.execute(select(status).where(status.not_in(words)).limit(1)).first()
    if row is not None:
        found.problems.append(
            f"a row has the unknown status word {row[0]!r}; Words names {', '.join(words)}: "
            "name it there too, or let such rows be dead, as the migration does"
        )
        quote = dialect.identifier_preparer.quote
        dead, due = _escaped(ledger_table.words.dead), quote(ledger_table.due)
        known = ", ".join(f"'{_escaped(word)}'" for word in words)
        found.migration.append(
            f"UPDATE {_quoted(ledger_table, dialect)} SET {quote(status.name)} = '{dead}', {due} = NULL "  # noqa: S608 - quoted
            f"WHERE {quote(status.name)} NOT IN ({known})"
        )


def _check_function(connection: Connection, ledger_table: LedgerTable, table: Table, found: _Findings) -> None:
    """Text times on PostgreSQL are compared and indexed by a function of ours."""
    times = {name for role, name in ledger_table.columns().items() if role in TIMES}
    in_text = any(column.name in times and isinstance(column.type, IsoText) for column in table.c)
    if connection.dialect.name != "postgresql" or not in_text:
        return
    if connection.execute(text("SELECT to_regprocedure('redrive_instant(text)')")).scalar() is None:
        found.problems.append("the function 'redrive_instant', which reads times in text, is missing")
        found.migration.append(CREATE_INSTANT_FUNCTION)


def _check_indexes(connection: Connection, ledger_table: LedgerTable, table: Table, found: _Findings) -> None:
    if connection.dialect.name == "sqlite":
        asked = text("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = :table")
        there = set(connection.execute(asked, {"table": ledger_table.name}).scalars())
    else:
        asked = text(
            "SELECT indexname FROM pg_indexes WHERE tablename = :table AND schemaname = coalesce(:schema, current_schema())"
        )
        there = set(connection.execute(asked, {"table": ledger_table.name, "schema": ledger_table.schema}).scalars())
    for index in ledger_indexes(ledger_table, table):
        if index.name not in there:
            found.problems.append(f"index {index.name!r} is missing: claims would read the whole table")
            found.migration.append(_create_index(index, connection.dialect))
    apart = ledger_table.key != ledger_table.id_column
    if ledger_table.payload is not None and apart and not _is_unique(connection, ledger_table, ledger_table.key):
        found.problems.append(f"column {ledger_table.key!r} (key) is not unique: adding would not be idempotent")
        found.migration.append(_unique_index(connection, ledger_table, table, ledger_table.key))


def _check_id(connection: Connection, ledger_table: LedgerTable, table: Table, found: _Findings) -> None:
    """Rows are claimed and settled by their ids, so two rows with one id would be one task."""
    id_ = ledger_table.id_column
    if id_ not in _real_columns(connection, ledger_table) or _is_unique(connection, ledger_table, id_):
        return
    primary = inspect(connection).get_pk_constraint(ledger_table.name, schema=ledger_table.schema)
    together = primary["constrained_columns"]
    if id_ not in together:
        found.problems.append(f"column {id_!r} (id) is not unique: rows that share an id would be settled as one")
        found.migration.append(_unique_index(connection, ledger_table, table, id_))
        return
    found.problems.append(
        f"column {id_!r} (id) is not unique, only ({', '.join(together)}) is: rows that share an id would be settled as one. "
        f"Let each row have an id of its own, as the migration does, and name it in the LedgerTable: id={SURROGATE!r}"
    )
    found.mapping["id"] = SURROGATE
    found.migration += _surrogate(connection, ledger_table, together)


def _surrogate(connection: Connection, ledger_table: LedgerTable, together: Sequence[str]) -> list[str]:
    """The statements that give each row an id of its own. No row is updated: the database makes the values."""
    dialect = connection.dialect
    if SURROGATE in _real_columns(connection, ledger_table):
        return []
    table, quote = _quoted(ledger_table, dialect), dialect.identifier_preparer.quote
    if dialect.name == "postgresql":
        return [f"ALTER TABLE {table} ADD COLUMN {SURROGATE} bigint GENERATED BY DEFAULT AS IDENTITY UNIQUE"]
    made = f"json_array({', '.join(quote(name) for name in together)})"
    index = quote(f"{ledger_table.name[:45]}_{SURROGATE}_key")
    return [
        f"ALTER TABLE {table} ADD COLUMN {SURROGATE} TEXT GENERATED ALWAYS AS ({made}) VIRTUAL",
        f"CREATE UNIQUE INDEX {index} ON {table} ({SURROGATE})",
    ]


def _unique_index(connection: Connection, ledger_table: LedgerTable, table: Table, name: str) -> str:
    index = Index(f"{ledger_table.name[:45]}_{name[:12]}_key", columns_of(table)[name], unique=True)
    return _create_index(index, connection.dialect)


def _real_columns(connection: Connection, ledger_table: LedgerTable) -> set[str]:
    columns = inspect(connection).get_columns(ledger_table.name, schema=ledger_table.schema)
    return {column["name"] for column in columns}


def _is_unique(connection: Connection, ledger_table: LedgerTable, column: str) -> bool:
    inspector = inspect(connection)
    name, schema = ledger_table.name, ledger_table.schema
    if not inspector.has_table(name, schema=schema):
        return True  # it will be made so
    if inspector.get_pk_constraint(name, schema=schema)["constrained_columns"] == [column]:
        return True
    # A partial index is no help: ON CONFLICT would have to repeat its condition.
    if connection.dialect.name == "sqlite":
        asked = text(
            'SELECT count(*) FROM pragma_index_list(:table) AS list WHERE list."unique" AND NOT list.partial AND '
            "(SELECT json_group_array(name) FROM pragma_index_info(list.name)) = json_array(:key)"
        )
        return bool(connection.execute(asked, {"table": name, "key": column}).scalar())
    indexes = [index for index in inspector.get_indexes(name, schema=schema) if index["unique"]]
    return any(
        index["column_names"] == [column] and "postgresql_where" not in index.get("dialect_options", {})
        for index in indexes
    )


def _create_index(index: Index, dialect: Dialect) -> str:
    return str(CreateIndex(index).compile(dialect=dialect)).strip()


def _quoted(ledger_table: LedgerTable, dialect: Dialect) -> str:
    return dialect.identifier_preparer.format_table(Table(ledger_table.name, MetaData(), schema=ledger_table.schema))


def _escaped(word: str) -> str:
    return word.replace("'", "''")
