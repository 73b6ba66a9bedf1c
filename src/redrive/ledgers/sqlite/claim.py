"""Claiming on SQLite, in few steps: the due rows come as one text, and are then held.

Its driver gives the interpreter away for each row that it returns (see `settle.py`). So the rows are read as one JSON text, which
also takes less time than to read them one by one. JSON cannot hold all that SQLite can: where it does not say exactly what a
row has, the rows are read as they are.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Connection, Integer, String, Text, Uuid, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator, TypeEngine

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.seam import Dialect, HeldRows

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
        self._id_at = [column.name for column in rows.columns].index(id_.name)
        converts = [column.type.dialect_impl(dialect.sqlalchemy) for column in rows.columns]
        self._converts: list[tuple[int, Callable[[Any], Any]]] = [
            (at, convert)
            for at, one in enumerate(converts)
            if (convert := one.result_processor(dialect.sqlalchemy, None)) is not None
        ]
        self._present = str(rows.present.element.key)
        taken = func.json_each(bindparam("taken", type_=Text)).table_valued("value", name="each")
        named = id_.in_(select(taken.c.value))
        self._find = Compiled(select(func.json_group_array(func.json_array(*rows.columns))).where(id_.in_(ids)))
        self._find_ids = Compiled(select(func.json_group_array(id_)).where(id_.in_(ids)))
        self._hold = Compiled(rows.held(named))
        self._read = Compiled(select(*rows.columns, rows.present).where(named))

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """See `Runs.rows`."""
        found = self._read_json(connection, parameters) if self._as_json else None
        if found is None:
            taken = self._find_ids.scalar(connection, parameters)
        else:
            taken = json.dumps([row[self._id_at] for row in found])
        if taken == "[]":
            return ()
        held = {**parameters, "taken": taken}
        self._hold.rows(connection, held)
        if found is not None:
            columns: list[Sequence[Any]] = list(zip(*found, strict=True))
            if not self._is_strange or not any(float in set(map(type, column)) for column in columns):
                return self._converted(columns, parameters[self._present])
        return self._read.rows(connection, held)

    def _read_json(self, connection: Connection, parameters: Mapping[str, Any]) -> list[list[Any]] | None:
        """The rows as they are stored; None where JSON cannot hold them."""
        try:
            rows: list[list[Any]] = json.loads(self._find.scalar(connection, parameters))
        except DBAPIError as error:
            if not any(said in str(error.orig) for said in _NOT_JSON):
                raise
            return None
        return rows

    def _converted(self, columns: list[Sequence[Any]], now: Any) -> Sequence[Sequence[Any]]:
        for at, convert in self._converts:
            columns[at] = list(map(convert, columns[at]))
        return list(zip(*columns, (now,) * len(columns[0]), strict=True))


def _stored(type_: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    """What a column of this type is for SQLite."""
    stored = type_.dialect_impl(dialect.sqlalchemy)
    while isinstance(stored, TypeDecorator):
        stored = stored.impl_instance
    return stored
