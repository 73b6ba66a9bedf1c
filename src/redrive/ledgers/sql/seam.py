"""The seam between what all SQL ledgers share and the database under them: everything that differs, and nothing else.

`ledgers/sqlite/dialect.py` and `ledgers/postgres/dialect.py` are its two sides. No other module asks which database it has.

Spans are where the two differ most. PostgreSQL has a clock of its own, so a delay crosses the wall as a span and is added to the
server's present. SQLite has none, so the instant is computed here, and is bound in the form in which its column stores it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

import sqlalchemy
from sqlalchemy import CTE, ColumnElement, Connection, Delete, FromClause, Insert, Label, Select, Table, Update
from sqlalchemy.types import TypeEngine

from redrive.core.decide import Settlement
from redrive.core.gate_rules import GateRule
from redrive.core.gates import Gate
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_rows import GateAsk, GateRows, NamedGate

Columns = Mapping[str, TypeEngine[Any]]
Parameters = dict[str, Any]


class SettleRows(Protocol):
    """What settlements leave in the rows of a ledger's table: the same on every database."""

    id: ColumnElement[Any]
    fence: ColumnElement[Any]
    started_at: ColumnElement[Any] | None
    """The column that says when a row was claimed, where there is one."""
    has_gates: bool
    """Whether rows may have a gate."""

    @property
    def columns(self) -> Columns:
        """Of a batch of settlements: row and fence, `ends` and `extra`. A writer may add some of its own."""
        ...

    @property
    def ends(self) -> Columns:
        """What a task has come to, which others may have as well."""
        ...

    @property
    def extra(self) -> Columns:
        """What a system adds."""
        ...

    def by_columns(self, settlements: Sequence[Settlement], now: datetime | None) -> list[Sequence[Any]]:
        """The values of each column. Raises `UsageError` if a settlement contradicts itself."""
        ...

    def ends_by_columns(self, settlements: Sequence[Settlement], now: datetime | None) -> list[Sequence[Any]]:
        """Those of `ends`."""
        ...

    def extra_by_columns(self, settlements: Sequence[Settlement]) -> list[Sequence[Any]]:
        """Those of `extra`."""
        ...

    def update(self, batch: FromClause, match: ColumnElement[bool]) -> Update:
        """End the claims of a batch where this matches, which sees to the fence."""
        ...


class Prepared(NamedTuple):
    """What was made of settlements before their transaction, and for which instant."""

    now: datetime
    parts: Any
    """The batches, as their writer wants them."""
    rolled_up: Parameters


class SettleWriter(Protocol):
    """Writes settlements: rows, history and rollup, in as few statements as the database needs."""

    one_statement: bool
    """Whether it is one statement, which commits by itself, or several that need a transaction."""

    def prepare(self, settlements: Sequence[Settlement], now: datetime | None) -> Prepared | None:
        """What `write` needs of all of these and can be made before the transaction; None where it had better do so itself."""
        ...

    def write(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        *,
        ledger: str,
        worker: str,
        now: datetime | None,
        wait: bool,
        prepared: Prepared | None = None,
    ) -> Sequence[Settlement]:
        """Write those whose fence is still there; returns the others. No two are of the same task.

        Rows that somebody has locked are waited for, or left out. `prepared` is what `prepare` made of the same settlements for the
        same instant.
        """
        ...


class Runs(Protocol):
    """A statement, or what takes several of them."""

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Run it; what it returns."""
        ...


Taken = Callable[[], Sequence[Sequence[Any]]]
"""Reads what a statement has returned. It needs no connection any more."""


@runtime_checkable
class Takes(Runs, Protocol):
    """The same where nobody else can write while it runs: what it returns is best read when the transaction is over."""

    def take(self, connection: Connection, parameters: Mapping[str, Any]) -> Taken:
        """Run it; what reads what it returns."""
        ...


class HeldRows(Protocol):
    """How rows are held, and what is read of them: the same on every database."""

    @property
    def columns(self) -> list[ColumnElement[Any]]:
        """What a claim reads."""
        ...

    @property
    def present(self) -> Label[Any]:
        """The ledger's present."""
        ...

    def hold(self, where: ColumnElement[bool]) -> Update:
        """Hold rows and return them: the columns, and behind them the present."""
        ...

    def held(self, where: ColumnElement[bool]) -> Update:
        """The same, without a word of them."""
        ...


class GateClaim(Protocol):
    """Takes what gates let through."""

    def ask(self, connection: Connection, ask: GateAsk) -> tuple[Compiled, Parameters] | None:
        """The statement that holds it and returns it as claims are read, with its parameters; None where there is nothing."""
        ...

    def discover(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """Gates that tasks name and that are not there, do not know their kind, or sleep though something is due."""
        ...

    def discover_lately(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """Gates that sleep since a moment ago though something is due."""
        ...


class Dialect(Protocol):
    """One database, as far as statements must know it."""

    name: str
    sqlalchemy: sqlalchemy.Dialect
    has_queues: bool
    """Whether tasks can wait in queues of PGMQ here; where not, there are no schemas either."""

    has_partitions: bool
    """Whether the history can be partitioned by time here."""

    writes_together: bool
    """Whether one statement can write several tables."""

    batches_bytes: bool
    """Whether a batch can have columns of bytes."""

    # --- time ---------------------------------------------------------------------------------------------------------

    def now(self, column: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
        """The present, to be written into this column (default: one of our own)."""
        ...

    def minute(self) -> ColumnElement[Any]:
        """The minute that the present lies in."""
        ...

    def span_type(self, column: ColumnElement[Any]) -> TypeEngine[Any]:
        """The type of a span that leads to an instant in this column, as parameters carry it."""
        ...

    def span(self, now: datetime | None, span: timedelta | None) -> Any:
        """The value of such a parameter."""
        ...

    def later(self, span: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The instant so long from now, to be written into this column."""
        ...

    def present(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The present, to be compared with `comparable(column)`."""
        ...

    def ago(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The instant that is the parameter `age` before now, to be compared in the same way."""
        ...

    def unreadable(self, at: ColumnElement[Any]) -> Sequence[ColumnElement[bool]]:
        """Which instants of this comparable column cannot be read, so that no page can end there; each condition is a range of an index."""
        ...

    def seconds_until(
        self, instant: ColumnElement[Any], column: ColumnElement[Any], *, signed: bool
    ) -> ColumnElement[Any]:
        """The seconds from now to an instant that was made comparable from this column; at least zero unless `signed`."""
        ...

    def times(self, now: datetime | None, **spans: timedelta | None) -> Parameters:
        """The parameters of the present, and of spans by their names."""
        ...

    def age(self, now: datetime | None, age: timedelta) -> Parameters:
        """The parameters of `ago`."""
        ...

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch_rows(self, columns: Columns, same: Collection[str] = (), *, joined: bool = True) -> FromClause:
        """A table made of one parameter, or of one for each column. Columns that are the `same` in all rows are one value each.

        `joined` says that it is joined to rows of a table, and not only inserted.
        """
        ...

    def batch_writer(
        self, columns: Columns, same: Collection[str] = ()
    ) -> Callable[[Sequence[Sequence[Any]]], Parameters]:
        """What makes these parameters of the values of each column."""
        ...

    def alike(self, name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """The value of a column that is the same in all rows of a batch."""
        ...

    def batch_match(self, columns: Columns, name: str, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
        """What the planner must be told besides, where an indexed column is joined to a column of a batch."""
        ...

    # --- statements ---------------------------------------------------------------------------------------------------

    def insert(self, table: Table) -> Any:
        """An insert that knows `on_conflict_do_nothing` and `on_conflict_do_update`."""
        ...

    def json(self, text: ColumnElement[Any], type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """JSON text, to be written into a column of this type."""
        ...

    def among(self, column: ColumnElement[Any], ids: Any) -> ColumnElement[bool]:
        """Whether a column is one of the ids that a statement selects, which is run once."""
        ...

    def take(self, turns: Sequence[tuple[str, Sequence[Select[Any]]]], limit: Any, reserved: Any) -> list[CTE]:
        """Take up to `limit` rows from ordered branches, turn by turn, each turn what those before it left.

        The first turn leaves `reserved` of them to the others.
        """
        ...

    def take_and_read(self, id_: ColumnElement[Any], ids: Any, rows: HeldRows) -> Runs:
        """Hold the rows whose ids a statement selects, which is run once, and return them as `HeldRows.hold` does."""
        ...

    def unlocked(self, column: ColumnElement[Any], ids: Select[Any]) -> ColumnElement[bool] | None:
        """Whether a column is one of these ids and nobody else has locked its row, which is locked here until the commit.

        None where rows are not locked one by one.
        """
        ...

    def impatient(self, locking: Select[Any]) -> Select[Any]:
        """A statement that locks rows, and does not wait long for them: `StillLocked`, also from what follows in its transaction."""
        ...

    def move(
        self, table: Table, where: ColumnElement[bool]
    ) -> tuple[FromClause, list[ColumnElement[bool]], list[Delete]]:
        """Rows that are read and deleted: where to read them from, under which conditions, and what to run afterwards."""
        ...

    def together(self, first: Insert, then: Insert) -> Sequence[Insert]:
        """Two inserts in as few statements as it takes; each is executed with the parameters of both."""
        ...

    def settle(self, rows: SettleRows) -> SettleWriter:
        """How settlements are written here."""
        ...

    def read_gates(self, connection: Connection, ledger: str, names: Sequence[str]) -> list[tuple[Gate, GateRule]]:
        """Gates with their limits."""
        ...

    def write_gates(self, connection: Connection, ledger: str, gates: Sequence[Gate]) -> None:
        """Write gates that nobody else can have changed since they were read."""
        ...

    def gate_claim(self, rows: GateRows) -> GateClaim:
        """How rows with gates are claimed here."""
        ...

    def lock_migrations(self, connection: Connection) -> None:
        """Hold other processes off until the commit, so that many may start at once."""
        ...

    def wait_briefly(self, connection: Connection, span: timedelta) -> int | None:
        """Let no statement of this transaction wait longer for a lock (`StillLocked`); the session, where there are others to ask about it."""
        ...

    def in_the_way(self, connection: Connection, session: int) -> Sequence[str]:
        """Who holds what that session waits for just now, in words."""
        ...

    def schema(self, connection: Connection) -> str | None:
        """The schema that tables are made in and looked for first; None where there is none."""
        ...

    def schemas_with(self, connection: Connection, table: str) -> Sequence[str]:
        """The schemas that have a table of this name."""
        ...

    def keep_history(self, connection: Connection) -> int:
        """Make partitions of the history ahead and drop old ones, where it has some; how many there were."""
        ...
