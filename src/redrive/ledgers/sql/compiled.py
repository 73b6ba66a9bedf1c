"""Statements that SQLAlchemy writes once, and the driver runs.

The statements of claims, settlements and adds are the same for ever: only their parameters change. To run one, SQLAlchemy looks up
what it has compiled by the whole shape of the statement and wraps each row, which takes 0.1 to 0.3 ms each time; a worker with
a hundred slots runs tasks in batches of a hundred and less. So on connections of our own the text goes straight to the driver's
cursor. SQLAlchemy still writes the text, converts the values by the types of their columns, owns connections and transactions, and
handles what goes wrong.

On a connection of the caller's, and where somebody listens to what is executed, SQLAlchemy runs the statement itself.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.sql.compiler import SQLCompiler

OWN = "redrive_own"
"""The execution option of connections that nobody but redrive uses."""
KEPT_MAX = 150
"""How many statements SQLAlchemy keeps compiled for such an engine (it forgets some when there are half as many more): mostly those of
pages, which differ with each combination of filters. One takes 25 to 130 KiB. Those that are hot are kept by their `Compiled`."""

Row = Sequence[Any]
_Convert = Callable[[Any], Any]


class Compiled:
    """One statement. It is compiled when it is first run, for the database of that connection and the parameters of that call."""

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._form: _Form | None = None
        self._row: Callable[..., Any] | None = None

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """Run it; what it returns. Raises what SQLAlchemy would."""
        form = self._formed(connection, parameters)
        if form is not None:
            return form.rows(connection, parameters)
        result = connection.execute(self.statement, parameters)
        return result.all() if result.returns_rows else ()

    def named(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """Run it; what it returns, with the values of a row under the names of their columns."""
        if self._row is None:
            self._row = _named(self.statement.exported_columns.keys())
        return [self._row(*row) for row in self.rows(connection, parameters)]

    def changed(self, connection: Connection, parameters: Mapping[str, Any]) -> int:
        """Run a statement that returns nothing; how many rows it has written."""
        form = self._formed(connection, parameters)
        if form is not None:
            return form.run(connection, parameters)[2]
        return connection.execute(self.statement, parameters).rowcount

    def _formed(self, connection: Connection, parameters: Mapping[str, Any]) -> "_Form | None":
        """The form that goes to the driver; None where SQLAlchemy has to run it."""
        if not connection.get_execution_options().get(OWN):
            return None
        form = self._form
        # Each loop has an engine of its own, and all engines of a database write a statement in the same way.
        if form is None or type(form.dialect) is not type(connection.dialect):
            form = self._form = _Form(self.statement, connection.dialect, parameters)
        return None if form.is_open or connection.dispatch.before_cursor_execute else form

    def scalar(self, connection: Connection, parameters: Mapping[str, Any]) -> Any:
        """The first value of the first row; None where there is none."""
        rows = self.rows(connection, parameters)
        return rows[0][0] if rows else None


def _named(names: Sequence[str]) -> Callable[..., Any]:
    return namedtuple("Row", names)


class _Form:
    """A statement as one driver takes it."""

    def __init__(self, statement: Any, dialect: Dialect, parameters: Iterable[str]) -> None:
        self.dialect = dialect
        compiled = statement.compile(dialect=dialect, column_keys=list(parameters))
        assert isinstance(compiled, SQLCompiler)
        self.is_open = bool(compiled.post_compile_params)
        """Whether its text depends on its parameters, as that of a list does."""
        self._text = str(compiled)
        self._names: Sequence[str] = compiled.positiontup or ()
        names = set(self._names)
        self._constants = {name: compiled.params[name] for name in names if not compiled.binds[name].required}
        self._binds = [
            (name, convert)
            for name in names
            if (convert := compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)) is not None
        ]
        self._types = [one.type for one in statement.exported_columns]
        self._reads: list[tuple[int, _Convert]] | None = None

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """What it returns, each value as its column has it."""
        rows, described, _ = self.run(connection, parameters)
        return self._read(rows, described) if rows else rows

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> tuple[Sequence[Row], Sequence[Row], int]:
        """What it returns as the driver has it, how the driver describes that, and how many rows it was about."""
        given = {**self._constants, **parameters}
        for name, convert in self._binds:
            given[name] = convert(given[name])
        if not connection.in_transaction():
            connection.begin()  # as SQLAlchemy does by itself: an error would else roll back what it has not begun
        cursor = connection.connection.cursor()
        try:
            cursor.execute(self._text, tuple(given[name] for name in self._names))
            rows: Sequence[Row] = cursor.fetchall() if self._types else ()
            described, amount = cursor.description, cursor.rowcount
        except BaseException as error:
            # As SQLAlchemy's own: it wraps what is the driver's, tells who listens, and leaves a connection that is broken or was
            # interrupted. Given a text it would wrap whatever else is raised, such as a time-out or a value that cannot be read.
            text = self._text if isinstance(error, self.dialect.loaded_dbapi.Error) else None
            connection._handle_dbapi_exception(error, text, None, cursor, None)  # noqa: SLF001
        finally:
            cursor.close()
        return rows, described, amount

    def _read(self, rows: Sequence[Row], described: Sequence[Row]) -> Sequence[Row]:
        """The rows with each value as its column has it: by columns, since most of them need nothing."""
        if self._reads is None:
            self._reads = [
                (at, convert)
                for at, (type_, column) in enumerate(zip(self._types, described, strict=True))
                if (convert := type_.dialect_impl(self.dialect).result_processor(self.dialect, column[1])) is not None
            ]
        if not self._reads:
            return rows
        columns: list[Iterable[Any]] = list(zip(*rows, strict=True))
        for at, convert in self._reads:
            columns[at] = map(convert, columns[at])
        return list(zip(*columns, strict=True))
