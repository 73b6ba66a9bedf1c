"""Adopting a foreign table: look at it, say what is missing, print the migration that mends it.

`adopt` is called at start for every `LedgerTable` but our own. It never changes the table.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CHAR,
    JSON,
    Column,
    Connection,
    Dialect,
    Enum,
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
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.sqltypes import NULLTYPE, DateTime
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.errors import TableError
from redrive.ledgers.adopt.ids import SURROGATE, is_unique, primary_key, surrogate
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.mapped import KEPT_BY, ForeignKey
from redrive.ledgers.sql.predicates import columns_of, ledger_indexes
from redrive.ledgers.sql.times import CREATE_INSTANT_FUNCTION, Instant, IsoText, SqliteDatetime

TIMES = (
    "due", "first_due", "lease_until", "claimed_at", "done_at", "ended_at", "created_at", "updated_at", "deadline",
)  # fmt: skip
NUMBERS = ("count", "count_max", "redrives", "priority")
NULLABLE = ("due", "lease_until", "claim_id", "claimed_at", "done_at", "ended_at", "last_error")

NO_ID = (
    "no column of it is unique, and SQLite cannot give an id to rows that are there: make the table anew with `id INTEGER PRIMARY KEY` and "
    "copy its rows, or make a column unique that tells them apart and name it as the key"
)


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
    """A count on SQLite, which keeps any text in a column of numbers: what is not a number is refused when it is read."""

    impl = Integer
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
        return lambda value: value if value is None or isinstance(value, int) else int(value)


class Padded(TypeDecorator[str]):
    """Text of a fixed length, which PostgreSQL fills up with blanks: they are not part of it."""

    impl = CHAR
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
        return lambda value: None if value is None else value.rstrip(" ")


class Label(TypeDecorator[str]):
    """A label of an enum, as the text it is: one that was added since the start is a label too."""

    impl = postgresql.ENUM
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """Handed on as the driver gives it."""


@dataclass(slots=True)
class Findings:
    """What is wrong with a table, the statements that mend it in the order in which they can be run, and the mapping then."""

    problems: list[str] = field(default_factory=list)
    migration: list[str] = field(default_factory=list)
    mapping: dict[str, Any] = field(default_factory=dict)
    """By role the column that must be named instead, once the migration has run."""


@dataclass(slots=True)
class _Mend:
    """A column that must change: its new type, and the expression that its values become."""

    type: str
    using: str


def adopt(connection: Connection, ledger_table: LedgerTable) -> Table:
    """The real table with the types that redrive reads and writes it by, or a `TableError` with the migration."""
    table, found = examine(connection, ledger_table)
    if found.problems:
        raise TableError(ledger_table.name, found.problems, found.migration)
    return table


def examine(
    connection: Connection, ledger_table: LedgerTable, *, words_are_known: bool = True
) -> tuple[Table, Findings]:
    """The table as redrive would read and write it, and all that is wrong with it. The indexes hold the words, so they come when those are known.

    All at once: what is found out about the columns is taken as mended when the indexes are looked at.
    """
    found = Findings()
    inspector = inspect(connection)
    if not inspector.has_table(ledger_table.name, schema=ledger_table.schema):
        where = f" in schema {ledger_table.schema!r}" if ledger_table.schema else ""
        found.problems.append(f"there is no such table{where}")
        table = _new_table(ledger_table, connection.dialect, found)
    else:
        table = _reflect(connection, ledger_table, found)
        _check_id(connection, ledger_table, table, found)
        if words_are_known:
            _check_words(connection, ledger_table, table, found)
    _check_function(connection, ledger_table, table, found)
    if words_are_known:
        _check_indexes(connection, ledger_table, table, found)
    else:
        found.problems.append("the indexes that keep claims fast are missing: they hold your words, so name them first")
    table.info[KEPT_BY] = _pointing_at(connection, ledger_table)
    return table, found


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


def _new_table(ledger_table: LedgerTable, dialect: Dialect, found: Findings) -> Table:
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


def _reflect(connection: Connection, ledger_table: LedgerTable, found: Findings) -> Table:
    inspector = inspect(connection)
    real = {column["name"]: column for column in inspector.get_columns(ledger_table.name, schema=ledger_table.schema)}
    roles = {name: role for role, name in ledger_table.columns().items()}
    dialect = connection.dialect
    columns: list[Column[Any]] = []
    # Rows of a table with a primary key have an id already, and a column of that name would be somebody's mistake.
    made_by_us = (SURROGATE,) if primary_key(connection, ledger_table.name, ledger_table.schema) else (SURROGATE, "id")
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
                mend = _Mend(_ddl_type(role, dialect), dialect.identifier_preparer.quote(name))
        if mend is not None and role is not None:
            _change(ledger_table, name, role, mend, dialect, found, set(real))
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
            if role == "id" and name in made_by_us:
                made = surrogate(connection, ledger_table.name, ledger_table.schema, name)
                found.problems.append(f"column {name!r} ({role}) is missing" if made else NO_ID)
                found.migration += made
                columns.append(_column(name, Integer() if dialect.name == "postgresql" else Text(), primary_key=True))
                continue
            quoted, altered = dialect.identifier_preparer.quote(name), f"ALTER TABLE {_quoted(ledger_table, dialect)}"
            found.problems.append(f"column {name!r} ({role}) is missing")
            found.migration.append(f"{altered} ADD COLUMN {quoted} {_ddl_type(role, dialect)}")
            if role == "status":
                # With a default in the same statement all rows of years would be due at once.
                waiting = f"'{_escaped(ledger_table.words.waiting)}'"
                found.problems[-1] += (
                    f": rows that are there will have none and be left alone, those to try need {waiting}"
                )
                if dialect.name == "postgresql":
                    found.migration.append(f"{altered} ALTER COLUMN {quoted} SET DEFAULT {waiting}")
                else:
                    found.problems[-1] += ", and new ones too, since SQLite gives a column its default with all rows"
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
    return _column(name, Integer() if role in NUMBERS else Text(), nullable=role != "count")


def _change(
    ledger_table: LedgerTable, name: str, role: str, mend: _Mend, dialect: Dialect, found: Findings, real: set[str]
) -> None:
    """Give a column another type; where SQLite cannot, another column. No row is updated: what to fill in is the owner's to say."""
    table, column = _quoted(ledger_table, dialect), dialect.identifier_preparer.quote(name)
    if dialect.name == "postgresql":
        found.migration.append(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {mend.type} USING {mend.using}")
        return
    new = f"redrive_{role}"
    found.problems.append(
        f"SQLite cannot change column {name!r}: name {role}={new!r} in the LedgerTable, which the migration adds, and fill it "
        f"for the rows that are to be worked on; {mend.using} is what {name!r} says now"
    )
    found.mapping[role] = new
    if new not in real:
        found.migration.append(f"ALTER TABLE {table} ADD COLUMN {new} {mend.type}")


def _type_for(
    role: str | None, real: TypeEngine[Any], dialect: Dialect, name: str
) -> tuple[TypeEngine[Any], str | None, _Mend | None]:
    """How a column is read, what is wrong with it, and how it must change."""
    if role in TIMES:
        return _time_type(role, real, dialect, name)
    if role == "claim_id":
        if isinstance(real, Uuid):
            return Uuid(), None, None
        # SQLite keeps texts whole, whatever length a column names.
        if isinstance(real, String) and (dialect.name == "sqlite" or (real.length or 36) >= 36):
            return UuidText(), None, None
        mend = _Mend(_ddl_type(role, dialect), "NULL")
        return UuidText(), f"column {name!r} (claim_id) must be uuid, or text of 36 characters, not {real}", mend
    if role == "payload":
        return (real if isinstance(real, JSON) and dialect.name == "postgresql" else JsonText()), None, None
    if role in NUMBERS and isinstance(real, Integer):
        return (WholeNumber() if dialect.name == "sqlite" else real), None, None
    if role in NUMBERS:
        quoted = dialect.identifier_preparer.quote(name)
        mend = _Mend(
            "integer" if dialect.name == "postgresql" else _ddl_type(role, dialect), f"CAST({quoted} AS integer)"
        )
        return Integer(), f"column {name!r} ({role}) must be an integer, not {real}", mend
    if role == "kind" and (not isinstance(real, String) or isinstance(real, Enum)):
        return real, f"column {name!r} (kind) must be text, not {real}: kinds are chosen by their names", None
    if role == "id" and not isinstance(real, Integer | String | Uuid):
        return real, f"column {name!r} ({role}) must be an integer, a uuid or text, not {real}", None
    if role is not None and isinstance(real, CHAR) and dialect.name == "postgresql":
        return Padded(real.length), None, None
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
    if role in ("count_max", "priority"):
        return "integer"
    return "text"


def _check_words(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
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
    if isinstance(status.type, Integer):
        for word in words:
            if not word.removeprefix("-").isdecimal():
                found.problems.append(
                    f"column {status.name!r} (status) is {status.type} and cannot hold {word!r}: name its numbers, "
                    "as in Words(waiting='0', done='2', dead='3')"
                )
    elif not isinstance(status.type, String | Padded):
        found.problems.append(f"column {status.name!r} (status) must be text, an enum or an integer, not {status.type}")


def _check_function(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
    """Text times on PostgreSQL are compared and indexed by a function of ours."""
    times = {name for role, name in ledger_table.columns().items() if role in TIMES}
    in_text = any(column.name in times and isinstance(column.type, IsoText) for column in table.c)
    if connection.dialect.name != "postgresql" or not in_text:
        return
    if connection.execute(text("SELECT to_regprocedure('redrive_instant(text)')")).scalar() is None:
        found.problems.append("the function 'redrive_instant', which reads times in text, is missing")
        found.migration.append(CREATE_INSTANT_FUNCTION)


def _check_indexes(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
    if connection.dialect.name == "sqlite":
        asked = text("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = :table")
        there = set(connection.execute(asked, {"table": ledger_table.name}).scalars())
    else:
        asked = text(
            "SELECT indexname FROM pg_indexes WHERE tablename = :table AND schemaname = coalesce(:schema, current_schema())"
        )
        there = set(connection.execute(asked, {"table": ledger_table.name, "schema": ledger_table.schema}).scalars())
    for index in ledger_indexes(ledger_table, table, there=there):
        found.problems.append(f"index {index.name!r} is missing: claims would read the whole table")
        found.migration.append(_create_index(index, connection.dialect))
    apart = ledger_table.key != ledger_table.id_column
    if ledger_table.payload is not None and apart and not _is_unique(connection, ledger_table, ledger_table.key):
        found.problems.append(f"column {ledger_table.key!r} (key) is not unique: adding would not be idempotent")
        found.migration.append(_unique_index(connection, ledger_table, table, ledger_table.key))


def _check_id(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
    """Rows are claimed and settled by their ids, so two rows with one id would be one task."""
    id_ = ledger_table.id_column
    if id_ not in _real_columns(connection, ledger_table) or _is_unique(connection, ledger_table, id_):
        return
    together = primary_key(connection, ledger_table.name, ledger_table.schema)
    if id_ not in together:
        found.problems.append(f"column {id_!r} (id) is not unique: rows that share an id would be settled as one")
        found.migration.append(_unique_index(connection, ledger_table, table, id_))
        return
    found.problems.append(
        f"column {id_!r} (id) is not unique, only ({', '.join(together)}) is: rows that share an id would be settled as one. "
        f"Let each row have an id of its own, as the migration does, and name it in the LedgerTable: id={SURROGATE!r}"
    )
    found.mapping["id"] = SURROGATE
    if SURROGATE not in _real_columns(connection, ledger_table):
        found.migration += surrogate(connection, ledger_table.name, ledger_table.schema)


def _unique_index(connection: Connection, ledger_table: LedgerTable, table: Table, name: str) -> str:
    index = Index(f"{ledger_table.name[:45]}_{name[:12]}_key", columns_of(table)[name], unique=True)
    return _create_index(index, connection.dialect)


def _real_columns(connection: Connection, ledger_table: LedgerTable) -> set[str]:
    inspector = inspect(connection)
    if not inspector.has_table(ledger_table.name, schema=ledger_table.schema):
        return set()
    return {column["name"] for column in inspector.get_columns(ledger_table.name, schema=ledger_table.schema)}


def _is_unique(connection: Connection, ledger_table: LedgerTable, name: str) -> bool:
    """Whether a column is unique; one that is missing will be made so."""
    there = name in _real_columns(connection, ledger_table)
    return not there or is_unique(connection, ledger_table.name, ledger_table.schema, name)


def _create_index(index: Index, dialect: Dialect) -> str:
    return str(CreateIndex(index).compile(dialect=dialect)).strip()


def _quoted(ledger_table: LedgerTable, dialect: Dialect) -> str:
    return dialect.identifier_preparer.format_table(Table(ledger_table.name, MetaData(), schema=ledger_table.schema))


def _escaped(word: str) -> str:
    return word.replace("'", "''")
