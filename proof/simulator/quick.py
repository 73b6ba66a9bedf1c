"""A connection that runs what is asked for again and again without SQLAlchemy's way to it, and looks up once what cannot have changed.

Most statements of an idle worker are the same for ever, and most of them read what nobody has written to since. SQLAlchemy takes a
third of a millisecond for each, which is more than all else that a world does.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.sql.compiler import SQLCompiler

from redrive.ledgers.sql.compiled import Compiled

OFTEN = 5
"""Whatever ran so often in the first worlds, as one and the same object, is made once for ever."""


class QuickConnection(Connection):
    """It learns in the first worlds which statements come again."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._met: Counter[int] | None = Counter()
        self._kept: dict[int, Any] = {}
        self._known: dict[int, _Known] = {}
        self._undone = 0

    def learned(self) -> None:
        """From now on."""
        assert self._met is not None
        for id_, times in self._met.items():
            statement = self._kept[id_]
            if times >= OFTEN and isinstance(statement, Select) and self._is_fixed(statement):
                self._known[id_] = _Known(statement)
        self._met, self._kept = None, {}

    def _is_fixed(self, statement: Select[Any]) -> bool:
        """Whether its text is the same whatever it is given; with a list in it, it is not."""
        compiled = statement.compile(dialect=self.dialect)
        return isinstance(compiled, SQLCompiler) and not compiled.post_compile_params

    def undone(self) -> None:
        """What was changed was taken back."""
        self._undone += 1

    def execute(self, statement: Any, parameters: Any = None, **how: Any) -> Any:
        known = self._known.get(id(statement))
        if known is not None and not how:
            driver = self.connection.dbapi_connection
            assert isinstance(driver, sqlite3.Connection)
            return known.result(self, parameters or {}, (driver.total_changes, self._undone))
        if self._met is not None:
            self._met[id(statement)] += 1
            self._kept[id(statement)] = statement
        return super().execute(statement, parameters, **how)


class _Known:
    """A statement that reads, and what it has read the last time."""

    def __init__(self, statement: Select[Any]) -> None:
        self._compiled = Compiled(statement)
        self._names = SimpleResultMetaData([getattr(column, "name", "anon") for column in statement.selected_columns])
        self._asked: tuple[Mapping[str, Any], object] | None = None
        self._read: Sequence[Sequence[Any]] = ()

    def result(self, connection: Connection, parameters: Mapping[str, Any], version: object) -> IteratorResult[Any]:
        asked = (parameters, version)
        if asked != self._asked:
            self._read, self._asked = self._compiled.rows(connection, parameters), (dict(parameters), version)
        return IteratorResult(self._names, iter(self._read))
