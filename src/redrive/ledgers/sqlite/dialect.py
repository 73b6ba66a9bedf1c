"""SQLite's side of the seam: instants are bound, batches are JSON, nothing is locked row by row."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy
from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Delete,
    Float,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal_column,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects.sqlite import Insert, dialect, insert
from sqlalchemy.types import TypeEngine

from redrive.core.gate_rules import GateRule
from redrive.core.gates import Gate
from redrive.ledgers.sql.gate_rows import GateRows
from redrive.ledgers.sql.seam import Columns, HeldRows, Parameters, SettleRows
from redrive.ledgers.sql.times import Instant, IsoText, comparable
from redrive.ledgers.sqlite import gate_rows
from redrive.ledgers.sqlite.claim import SqliteClaim
from redrive.ledgers.sqlite.gates import SqliteGateClaim
from redrive.ledgers.sqlite.json_batches import to_json
from redrive.ledgers.sqlite.settle import SqliteSettle

_ALIKE = "in_batch__"
_SQLITE = dialect()
_STORAGES = ("instant", "isotext", "sqlitedatetime")
"""How an instant may be stored: each has a parameter of its own, since the same instant is a number here and text there."""


class SqliteDialect:
    """See `Dialect`."""

    name = "sqlite"
    has_queues = False
    has_partitions = False
    writes_together = False
    batches_bytes = False  # they are JSON

    def __init__(self, dialect: sqlalchemy.Dialect) -> None:
        self.sqlalchemy = dialect

    # --- time ---------------------------------------------------------------------------------------------------------

    def now(self, column: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
        """See `Dialect.now`."""
        return _bound("now", Instant() if column is None else column.type)

    def minute(self) -> ColumnElement[Any]:
        """See `Dialect.minute`."""
        return bindparam("now_minute", type_=Instant)

    def span_type(self, column: ColumnElement[Any]) -> TypeEngine[Any]:
        """See `Dialect.span_type`."""
        return column.type

    def span(self, now: datetime | None, span: timedelta | None) -> Any:
        """See `Dialect.span`."""
        return None if now is None or span is None else now + span

    def later(self, span: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[Any]:  # noqa: ARG002
        """See `Dialect.later`: the parameter is the instant already."""
        return span

    def present(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """See `Dialect.present`."""
        return comparable(self.now(column))

    def ago(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """See `Dialect.ago`."""
        return comparable(_bound("age", column.type))

    def unreadable(self, at: ColumnElement[Any]) -> Sequence[ColumnElement[bool]]:
        """See `Dialect.unreadable`: texts that are no instant."""
        return (at.is_(None),) if isinstance(at.type.dialect_impl(_SQLITE), Float) else ()

    def seconds_until(
        self, instant: ColumnElement[Any], column: ColumnElement[Any], *, signed: bool
    ) -> ColumnElement[Any]:
        """See `Dialect.seconds_until`."""
        per_second = 1 / 86400 if isinstance(column.type, IsoText) else 1_000_000
        left = (cast(instant, Float) - cast(self.present(column), Float)) / per_second
        return left if signed else case((left > 0, left), else_=literal_column("0.0"))

    def times(self, now: datetime | None, **spans: timedelta | None) -> Parameters:
        """See `Dialect.times`."""
        assert now is not None
        stamps = {f"now_{name}": now for name in _STORAGES}
        stamps["now_minute"] = now.replace(second=0, microsecond=0)
        return stamps | {name: self.span(now, span) for name, span in spans.items()}

    def age(self, now: datetime | None, age: timedelta) -> Parameters:
        """See `Dialect.age`."""
        assert now is not None
        return {f"age_{name}": now - age for name in _STORAGES}

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch_rows(self, columns: Columns, same: Collection[str] = (), *, joined: bool = True) -> FromClause:  # noqa: ARG002
        """See `Dialect.batch_rows`."""
        each = func.json_each(bindparam("batch", type_=Text)).table_valued("key", "value", name="each")
        apart = [name for name in columns if name not in same]

        def told(name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
            if name in same:
                return self.alike(name, type_)
            if len(apart) == 1:
                return type_coerce(each.c.value, type_)
            if _is_object(columns, apart):
                if name != apart[0]:
                    return type_coerce(each.c.value, type_)
                return cast(each.c.key, type_) if isinstance(type_, Integer) else type_coerce(each.c.key, type_)
            return func.json_extract(each.c.value, literal_column(f"'$[{apart.index(name)}]'"), type_=type_)

        return (
            select(*(told(name, type_).label(name) for name, type_ in columns.items()))
            .select_from(each)
            .subquery("batch")
        )

    def batch_writer(
        self, columns: Columns, same: Collection[str] = ()
    ) -> Callable[[Sequence[Sequence[Any]]], Parameters]:
        """See `Dialect.batch_writer`: one text for all, or one value for all rows."""
        # Each value goes into the JSON text in the form in which the column stores it.
        dialect = self.sqlalchemy
        convert = {name: type_.dialect_impl(dialect).bind_processor(dialect) for name, type_ in columns.items()}
        as_object = _is_object(columns, [name for name in columns if name not in same])

        def write(given: Sequence[Sequence[Any]]) -> Parameters:
            alike, apart = dict[str, Any](), list[Sequence[Any]]()
            for (name, process), values in zip(convert.items(), given, strict=True):
                if name in same:
                    alike[f"{_ALIKE}{name}"] = values[0]
                else:
                    apart.append(values if process is None else [process(value) for value in values])
            listed: Any = apart[0] if len(apart) == 1 else list(zip(*apart, strict=True))
            if as_object:
                members = dict(listed)
                assert len(members) == len(listed), "no two rows of a batch have the same id"
                listed = members
            return {"batch": to_json(listed), **alike}

        return write

    def alike(self, name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """See `Dialect.alike`."""
        return bindparam(f"{_ALIKE}{name}", type_=type_)

    def batch_match(self, columns: Columns, name: str, column: ColumnElement[Any]) -> None:
        """See `Dialect.batch_match`: nothing."""

    # --- statements ---------------------------------------------------------------------------------------------------

    def insert(self, table: Table) -> Insert:
        """See `Dialect.insert`."""
        return insert(table)

    def json(self, text: ColumnElement[Any], type_: TypeEngine[Any]) -> ColumnElement[Any]:  # noqa: ARG002
        """See `Dialect.json`: it is stored as text."""
        return text

    def among(self, column: ColumnElement[Any], ids: Any) -> ColumnElement[bool]:
        """See `Dialect.among`."""
        return column.in_(ids)

    def take(self, turns: Sequence[tuple[str, Sequence[Select[Any]]]], limit: Any, reserved: Any) -> list[CTE]:
        """The branches behind one another and one limit: SQLite, which locks nothing here, copies a CTE wherever it is named."""
        taken: list[CTE] = []
        for name, branches in turns:
            limited = [
                select(branch.limit(limit).subquery(f"{name}_{position}")) for position, branch in enumerate(branches)
            ]
            used: Any = select(func.count()).select_from(taken[-1]).scalar_subquery() if taken else reserved
            taken.append(select(union_all(*limited).subquery(f"{name}_due")).limit(limit - used).cte(name))
        return taken

    def take_and_read(self, id_: ColumnElement[Any], ids: Any, rows: HeldRows) -> SqliteClaim:
        """See `Dialect.take_and_read`."""
        return SqliteClaim(self, id_, ids, rows)

    def unlocked(self, column: ColumnElement[Any], ids: Select[Any]) -> None:
        """See `Dialect.unlocked`: whoever writes here has locked the whole database."""

    def impatient(self, locking: Select[Any]) -> Select[Any]:
        """See `Dialect.impatient`: as it is."""
        return locking

    def move(
        self, table: Table, where: ColumnElement[bool]
    ) -> tuple[FromClause, list[ColumnElement[bool]], list[Delete]]:
        """See `Dialect.move`: nobody else writes meanwhile, so the rows are read first and deleted afterwards."""
        return table, [where], [delete(table).where(where)]

    def together(self, first: sqlalchemy.Insert, then: sqlalchemy.Insert) -> Sequence[sqlalchemy.Insert]:
        """See `Dialect.together`: one after the other, there is no way to a server."""
        return [first, then]

    def settle(self, rows: SettleRows) -> SqliteSettle:
        """See `Dialect.settle`."""
        return SqliteSettle(self, rows)

    def read_gates(self, connection: Connection, ledger: str, names: Sequence[str]) -> list[tuple[Gate, GateRule]]:
        """See `Dialect.read_gates`."""
        return gate_rows.read_gates(connection, ledger, names)

    def write_gates(self, connection: Connection, ledger: str, gates: Sequence[Gate]) -> None:
        """See `Dialect.write_gates`."""
        gate_rows.write_gates(connection, ledger, gates)

    def gate_claim(self, rows: GateRows) -> SqliteGateClaim:
        """See `Dialect.gate_claim`."""
        return SqliteGateClaim(self, rows)

    def lock_migrations(self, connection: Connection) -> None:
        """Every write holds the file's one lock."""

    def wait_briefly(self, connection: Connection, span: timedelta) -> None:
        """See `Dialect.wait_briefly`: who writes has the lock already."""

    def in_the_way(self, connection: Connection, session: int) -> Sequence[str]:  # noqa: ARG002
        """See `Dialect.in_the_way`."""
        return ()

    def schema(self, connection: Connection) -> None:
        """See `Dialect.schema`: there are none."""

    def schemas_with(self, connection: Connection, table: str) -> Sequence[str]:  # noqa: ARG002
        """See `Dialect.schemas_with`."""
        return ()

    def keep_history(self, connection: Connection) -> int:  # noqa: ARG002
        """See `Dialect.keep_history`: it goes with its tasks."""
        return 0


def _is_object(columns: Columns, apart: Sequence[str]) -> bool:
    """Whether a batch is a JSON object, ids and one value of each: nothing in it has to be read twice, as arrays in an array have.

    Only where the ids are told to be apart from what is the same: then no two rows have the same.
    """
    return len(apart) == 2 < len(columns) and apart[0] == "id" and isinstance(columns["id"], Integer | Text)


def _bound(name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
    """A parameter that holds an instant in the form in which a column of this type stores it."""
    return bindparam(f"{name}_{type(type_).__name__.lower()}", type_=type_)
