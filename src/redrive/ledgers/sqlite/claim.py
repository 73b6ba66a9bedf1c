"""Claiming on SQLite, in three steps: which rows are due, to hold them, and to read them.

Its driver gives the interpreter away for each row that it returns (see `settle.py`). So the rows are read as one JSON text, which
also takes less time than to read them one by one. JSON cannot hold all that SQLite can: where it does not say exactly what a
row has, the rows are read as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Connection, Integer, String, Text, Uuid, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.seam import Dialect, HeldRows, Taken
from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sqlite.json_batches import from_json

_EXACT = (Integer, Boolean, String, Uuid)
"""What is stored as whole numbers or as text."""
COLUMNS_MAX = 100
"""So many arguments SQLite takes for one function, and some more."""
_NOT_JSON = ("JSON cannot hold BLOB", "decode to UTF-8", "too big")


class SqliteClaim:
    """Holds the rows whose ids a statement selects, and returns them. Nobody else writes between its statements."""

    def __init__(self, dialect: Dialect, id_: ColumnElement[Any], ids: Any, rows: HeldRows) -> None:
        stored = [_stored(column.type, dialect) for column in rows.columns]
        self._as_json = len(stored) <= COLUMNS_MAX and all(isinstance(one, _EXACT) for one in stored)
        self._is_strange = id_.table is not schema.task
        """Whether columns may hold other things than they are declared for."""
        converts = [column.type.dialect_impl(dialect.sqlalchemy) for column in rows.columns]
        wanted: list[tuple[int, Callable[[Any], Any]]] = [
            (at, convert)
            for at, one in enumerate(converts)
            if (convert := one.result_processor(dialect.sqlalchemy, None)) is not None
        ]
        instants = {at for at, column in enumerate(rows.columns) if isinstance(column.type, Instant)}
        self._converts = [one for one in wanted if one[0] not in instants]
        self._converts_alike = [one for one in wanted if one[0] in instants]
        self._present = str(rows.present.element.key)
        taken = func.json_each(bindparam("taken", type_=Text)).table_valued("value", name="each")
        named = id_.in_(select(taken.c.value))
        self._find = Compiled(select(func.json_group_array(id_)).where(id_.in_(ids)))
        self._hold = Compiled(rows.held(named))
        self._read = Compiled(select(func.json_group_array(func.json_array(*rows.columns))).where(named))
        self._read_rows = Compiled(select(*rows.columns, rows.present).where(named))

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """See `Runs.rows`."""
        return self.take(connection, parameters)()

    def take(self, connection: Connection, parameters: Mapping[str, Any]) -> Taken:
        """See `Takes.take`."""
        taken = self._find.scalar(connection, parameters)
        if taken == "[]":
            return tuple
        held, present = {**parameters, "taken": taken}, parameters[self._present]
        self._hold.rows(connection, held)
        text = self._read_text(connection, held) if self._as_json else None
        if text is not None and not self._is_strange:
            return lambda: self._rows(_columns(text), present)
        columns = None if text is None else _columns(text)
        if columns is None or any(float in set(map(type, column)) for column in columns):  # a number may be cut
            rows = self._read_rows.rows(connection, held)
            return lambda: rows
        return lambda: self._rows(columns, present)

    def _rows(self, columns: list[Sequence[Any]], present: datetime) -> Sequence[Sequence[Any]]:
        """The rows of columns as they are stored."""
        for at, convert in self._converts:
            columns[at] = list(map(convert, columns[at]))
        for at, convert in self._converts_alike:  # what was added together has the same times
            known = {cell: convert(cell) for cell in set(columns[at])}
            amount = len(columns[at])
            columns[at] = [*known.values()] * amount if len(known) == 1 else [known[cell] for cell in columns[at]]
        return list(zip(*columns, (present,) * len(columns[0]), strict=True))

    def _read_text(self, connection: Connection, held: Mapping[str, Any]) -> str | None:
        """The rows as they are stored now; None where JSON cannot hold what they have."""
        try:
            return str(self._read.scalar(connection, held))
        except DBAPIError as error:
            if not any(said in str(error.orig) for said in _NOT_JSON):
                raise
            return None


def _columns(text: str) -> list[Sequence[Any]]:
    return list(zip(*from_json(text), strict=True))


def _stored(type_: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """What a column of this type is for SQLite."""
    stored = type_.dialect_impl(dialect.sqlalchemy)
    while isinstance(stored, TypeDecorator):
        stored = stored.impl_instance
    return stored
