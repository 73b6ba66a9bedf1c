"""Adopting a foreign table: look at it, say what is missing, print the migration that mends it.

`adopt` is called at start for every `LedgerTable` but our own. It never changes the table.
"""

from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Enum,
    FetchedValue,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    inspect,
)
from sqlalchemy import Dialect as SqlDialect
from sqlalchemy.schema import CreateIndex
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.core.table import LedgerTable
from redrive.errors import TableError
from redrive.ledgers.adopt.form import (
    NUMBERS,
    SURROGATE,
    TIMES,
    Findings,
    Form,
    Mend,
    Read,
    UuidText,
    escaped,
    primary_key,
    quoted_table,
)
from redrive.ledgers.adopt.forms import form_of, is_unique, surrogate
from redrive.ledgers.sql.mapped import KEPT_BY
from redrive.ledgers.sql.predicates import columns_of, ledger_indexes
from redrive.ledgers.sql.times import IsoText

NULLABLE = ("due", "lease_until", "claim_id", "claimed_at", "done_at", "ended_at", "last_error")

NO_ID = (
    "no column of it is unique, and SQLite cannot give an id to rows that are there: make the table anew with `id INTEGER PRIMARY KEY` and "
    "copy its rows, or make a column unique that tells them apart and name it as the key"
)


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
        table = _new_table(connection, ledger_table, found)
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
    table.info[KEPT_BY] = form_of(connection).pointing_at(connection, ledger_table)
    return table, found


def _new_table(connection: Connection, ledger_table: LedgerTable, found: Findings) -> Table:
    """The table as redrive would make it."""
    form, quote = form_of(connection), connection.dialect.identifier_preparer.quote
    roles = {name: role for role, name in ledger_table.columns().items()}
    lines = []
    for name, role in roles.items():
        line = f"{quote(name)} {form.ddl_type(role)}"
        if name == ledger_table.id_column:
            line = f"{quote(name)} {'text' if name == ledger_table.key else form.new_id} PRIMARY KEY"
        elif name == ledger_table.key:
            line += " NOT NULL UNIQUE"
        elif role == "status":
            line += f" NOT NULL DEFAULT '{escaped(ledger_table.words.waiting)}'"
        elif role in ("kind", "payload"):
            line += " NOT NULL"
        lines.append(line)
    found.migration.append(f"CREATE TABLE {_quoted(ledger_table, connection.dialect)} ({', '.join(lines)})")
    return Table(
        ledger_table.name,
        MetaData(),
        *(_missing(name, role, form) for name, role in roles.items()),
        schema=ledger_table.schema,
    )


def _reflect(connection: Connection, ledger_table: LedgerTable, found: Findings) -> Table:
    inspector = inspect(connection)
    real = {column["name"]: column for column in inspector.get_columns(ledger_table.name, schema=ledger_table.schema)}
    roles = {name: role for role, name in ledger_table.columns().items()}
    form, quote, table = (
        form_of(connection),
        connection.dialect.identifier_preparer.quote,
        _quoted(ledger_table, connection.dialect),
    )
    columns: list[Column[Any]] = []
    # Rows of a table with a primary key have an id already, and a column of that name would be somebody's mistake.
    made_by_us = (SURROGATE,) if primary_key(connection, ledger_table.name, ledger_table.schema) else (SURROGATE, "id")
    for name, column in real.items():
        role = roles.get(name)
        type_, problem, mend = _read(role, column["type"], form, name, quote(name))
        if problem is not None:
            found.problems.append(problem)
        if role in NULLABLE and not column["nullable"] and name not in (ledger_table.key, ledger_table.id_column):
            found.problems.append(f"column {name!r} ({role}) must allow NULL")
            match form.allow_null(table, quote(name), role):
                case Mend() as other:
                    mend = mend or other
                case statement:
                    found.migration.append(statement)
        if mend is not None and role is not None:
            form.change(table, quote(name), name, role, mend, found, set(real))
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
                columns.append(_column(name, form.surrogate_type, primary_key=True))
                continue
            quoted, altered = quote(name), f"ALTER TABLE {table}"
            found.problems.append(f"column {name!r} ({role}) is missing")
            found.migration.append(f"{altered} ADD COLUMN {quoted} {form.ddl_type(role)}")
            if role == "status":
                # With a default in the same statement all rows of years would be due at once.
                waiting = f"'{escaped(ledger_table.words.waiting)}'"
                found.problems[-1] += (
                    f": rows that are there will have none and be left alone, those to try need {waiting}"
                )
                form.default_status(altered, quoted, waiting, found)
            columns.append(_missing(name, role, form))
    return Table(ledger_table.name, MetaData(), *columns, schema=ledger_table.schema)


def _is_made(column: Any) -> bool:
    """Whether the database gives the column its values."""
    return column.get("default") is not None or column.get("computed") is not None


def _column(name: str, type_: TypeEngine[Any], **options: Any) -> Column[Any]:
    """A column with a key that no parameter has: SQLAlchemy takes a parameter called `batch` for a new value of `batch`."""
    return Column(name, type_, key=f"column {name}", **options)


def _missing(name: str, role: str, form: Form) -> Column[Any]:
    """A column that the migration adds, as it will be."""
    if role in TIMES:
        return _column(name, form.time_type)
    if role == "claim_id":
        return _column(name, form.fence_type)
    return _column(name, Integer() if role in NUMBERS else Text(), nullable=role != "count")


def _read(role: str | None, real: TypeEngine[Any], form: Form, name: str, quoted: str) -> Read:
    """How a column is read, what is wrong with it, and how it must change."""
    if role in TIMES:
        return form.read_time(role, real, name, quoted)
    if role == "claim_id":
        if isinstance(real, Uuid):
            return Uuid(), None, None
        if form.holds_fence(real):
            return UuidText(), None, None
        mend = Mend(form.ddl_type(role), "NULL")
        return UuidText(), f"column {name!r} (claim_id) must be uuid, or text of 36 characters, not {real}", mend
    if role == "payload":
        return form.read_payload(real), None, None
    if role in NUMBERS and isinstance(real, Integer):
        return form.read_number(real), None, None
    if role in NUMBERS:
        mend = Mend(form.ddl_type(role).partition(" ")[0], f"CAST({quoted} AS integer)")
        return Integer(), f"column {name!r} ({role}) must be an integer, not {real}", mend
    if role == "kind" and (not isinstance(real, String) or isinstance(real, Enum)):
        return real, f"column {name!r} (kind) must be text, not {real}: kinds are chosen by their names", None
    if role == "id" and not isinstance(real, Integer | String | Uuid):
        return real, f"column {name!r} ({role}) must be an integer, a uuid or text, not {real}", None
    return form.read_other(role, real), None, None


def _check_words(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
    status = columns_of(table)[ledger_table.status]
    if form_of(connection).check_enum(connection, ledger_table, status, found):
        return
    if isinstance(status.type, Integer):
        for word in ledger_table.words.all():
            if not word.removeprefix("-").isdecimal():
                found.problems.append(
                    f"column {status.name!r} (status) is {status.type} and cannot hold {word!r}: name its numbers, "
                    "as in Words(waiting='0', done='2', dead='3')"
                )
    elif not _is_text(status.type):
        found.problems.append(f"column {status.name!r} (status) must be text, an enum or an integer, not {status.type}")


def _is_text(type_: TypeEngine[Any]) -> bool:
    return isinstance(type_, String) or (isinstance(type_, TypeDecorator) and isinstance(type_.impl_instance, String))


def _check_function(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
    """Instants in text may be compared and indexed by a function of ours."""
    times = {name for role, name in ledger_table.columns().items() if role in TIMES}
    if any(column.name in times and isinstance(column.type, IsoText) for column in table.c):
        form_of(connection).check_function(connection, found)


def _check_indexes(connection: Connection, ledger_table: LedgerTable, table: Table, found: Findings) -> None:
    there = form_of(connection).indexes(connection, ledger_table)
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


def _create_index(index: Index, dialect: SqlDialect) -> str:
    return str(CreateIndex(index).compile(dialect=dialect)).strip()


def _quoted(ledger_table: LedgerTable, dialect: SqlDialect) -> str:
    return quoted_table(dialect, ledger_table.name, ledger_table.schema)
