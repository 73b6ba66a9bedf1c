"""PostgreSQL's side of the seam: the server's clock, arrays, rows that are locked one by one.

The present is `statement_timestamp()`: `clock_timestamp()` is evaluated per row, and `now()` is old inside a long transaction.
Only where a test gives a clock of its own is it bound.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy
from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Delete,
    FromClause,
    Interval,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    extract,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from redrive.core.durations import format_duration
from redrive.core.gate_rules import GateRule
from redrive.core.gates import Gate
from redrive.ledgers.postgres.gates import PostgresGateClaim
from redrive.ledgers.postgres.partitions import keep_partitions
from redrive.ledgers.postgres.settle import PostgresSettle, for_an_update
from redrive.ledgers.sql import gate_rows
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_rows import GateRows
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Columns, HeldRows, Parameters, SettleRows
from redrive.ledgers.sql.times import Earliest, Instant, IsoText

PREFIX = "in_batch__"
"""Of the names of parameters. No column should be called so: SQLAlchemy would take the parameter for a value to be set."""
_FIRST: ColumnElement[Any] = literal_column("timestamptz '0001-01-01 00:00:00+00'")
_LAST: ColumnElement[Any] = literal_column("timestamptz '9999-12-31 23:59:59.999999+00'")
_ENDLESS: ColumnElement[Any] = literal_column("timestamptz 'infinity'")
LOCK_PATIENCE = "2s"
"""How long a group of many waits for a lock that it can do without."""
MIGRATION_LOCK = 7_236_011_947
"""The advisory lock under which tables are migrated."""
SHOWN_MAX = 3
"""How many of those in the way of a migration are named."""
_IN_THE_WAY = text(
    "SELECT o.pid, coalesce(nullif(o.application_name, ''), 'unnamed') AS name,"
    " extract(epoch FROM clock_timestamp() - o.xact_start) AS seconds FROM pg_stat_activity AS o"
    " WHERE o.pid = ANY (pg_blocking_pids(:session)) ORDER BY seconds DESC NULLS LAST LIMIT :shown"
)


class _Unnested(FunctionElement[Any]):
    """Arrays as the columns of a table; the first has an element for each row.

    Of an array that is a parameter a plan which is kept assumes ten elements, and joins a batch to its rows by comparing each with each: 250,000
    comparisons for 500 tasks, more than half of what a settlement cost. Of a series it assumes a thousand, and hashes them.
    """

    inherit_cache = True


@compiles(_Unnested)
def _unnested(element: _Unnested, compiler: Any, **options: Any) -> str:
    arrays = [compiler.process(array, **options) for array in element.clauses]
    columns = ", ".join(f"unnest({array})" for array in arrays)
    return f"ROWS FROM ({columns}, generate_series(1, cardinality({arrays[0]})))"


class PostgresDialect:
    """See `Dialect`."""

    name = "postgresql"
    has_queues = True
    has_partitions = True
    writes_together = True
    batches_bytes = True

    def __init__(self, dialect: sqlalchemy.Dialect, *, server_clock: bool, schema: str | None = None) -> None:
        self.sqlalchemy = dialect
        self._server_clock = server_clock
        self._schema = schema

    # --- time ---------------------------------------------------------------------------------------------------------

    def now(self, column: ColumnElement[Any] | None = None) -> ColumnElement[Any]:
        """See `Dialect.now`."""
        if self._server_clock:
            return _written(func.statement_timestamp(type_=Instant), column)
        return _written(bindparam("now_instant", type_=Instant), column)

    def minute(self) -> ColumnElement[Any]:
        """See `Dialect.minute`."""
        return func.date_trunc("minute", self.now())

    def span_type(self, column: ColumnElement[Any]) -> TypeEngine[Any]:  # noqa: ARG002
        """See `Dialect.span_type`."""
        return Interval()

    def span(self, now: datetime | None, span: timedelta | None) -> Any:  # noqa: ARG002
        """See `Dialect.span`."""
        return span

    def later(self, span: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[Any]:
        """See `Dialect.later`."""
        return _written(self.now() + span, column)

    def present(self, column: ColumnElement[Any]) -> ColumnElement[Any]:  # noqa: ARG002
        """See `Dialect.present`."""
        return self.now()

    def ago(self, column: ColumnElement[Any]) -> ColumnElement[Any]:  # noqa: ARG002
        """See `Dialect.ago`."""
        return self.now() - bindparam("age", type_=Interval)

    def unreadable(self, at: ColumnElement[Any]) -> Sequence[ColumnElement[bool]]:
        """See `Dialect.unreadable`: years that Python does not know, and the first instant that it knows, for which minus infinity is read. Both infinities can be read."""
        return and_(at > _LAST, at < _ENDLESS), and_(at <= _FIRST, at > Earliest())

    def seconds_until(
        self, instant: ColumnElement[Any], column: ColumnElement[Any], *, signed: bool
    ) -> ColumnElement[Any]:
        """See `Dialect.seconds_until`."""
        now = self.present(column)
        return extract("epoch", instant - now if signed else func.greatest(instant, now) - now)

    def times(self, now: datetime | None, **spans: timedelta | None) -> Parameters:
        """See `Dialect.times`."""
        return spans if self._server_clock else {"now_instant": now, **spans}

    def age(self, now: datetime | None, age: timedelta) -> Parameters:
        """See `Dialect.age`."""
        return self.times(now, age=age)

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch_rows(self, columns: Columns, same: Collection[str] = (), *, joined: bool = True) -> FromClause:
        """See `Dialect.batch_rows`. What is only inserted has no other plan: with a series beside it one task would seem to be a
        thousand, and PostgreSQL would make a plan for each that is added alone."""
        apart = {name: type_ for name, type_ in columns.items() if name not in same}
        arrays = [_array(name, type_) for name, type_ in apart.items()]
        typed = [column(name, type_) for name, type_ in apart.items()]
        unnested = _Unnested(*arrays) if joined else func.unnest(*arrays)
        rows = unnested.table_valued(*typed, name="batch").render_derived()
        if not same:
            return rows
        alike = [self.alike(name, columns[name]).label(name) for name in columns if name in same]
        return select(*rows.c, *alike).select_from(rows).subquery("rows_of_batch")

    def batch_writer(
        self, columns: Columns, same: Collection[str] = ()
    ) -> Callable[[Sequence[Sequence[Any]]], Parameters]:
        """See `Dialect.batch_writer`."""
        names = [(f"{PREFIX}{name}", name in same) for name in columns]

        def write(given: Sequence[Sequence[Any]]) -> Parameters:
            # `unnest` fills a shorter array up with NULL: a column that says nothing, as those for errors often do, costs
            # nothing.
            return {
                name: values[0] if alike else () if values[0] is None and values.count(None) == len(values) else values
                for (name, alike), values in zip(names, given, strict=True)
            }

        return write

    def alike(self, name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """See `Dialect.alike`."""
        # Some drivers leave the type of a parameter open, and PostgreSQL then takes a span for a text.
        return cast(bindparam(f"{PREFIX}{name}", type_=type_), type_)

    def batch_match(self, columns: Columns, name: str, column: ColumnElement[Any]) -> ColumnElement[bool]:
        """All values in advance: PostgreSQL may otherwise rather read the index from its beginning, beside the batch, in a
        table that it takes for small."""
        return column == any_(_array(name, columns[name]))

    # --- statements ---------------------------------------------------------------------------------------------------

    def insert(self, table: Table) -> Insert:
        """See `Dialect.insert`."""
        return insert(table)

    def json(self, text: ColumnElement[Any], type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """See `Dialect.json`: a cast spares the round through Python's own encoder."""
        return cast(text, type_)

    def among(self, column: ColumnElement[Any], ids: Any) -> ColumnElement[bool]:
        """As an array: joined instead, PostgreSQL at times chose a generic plan of 160 ms, or ran the subquery once per row."""
        return column == any_(func.array(ids.scalar_subquery()))

    def take(self, turns: Sequence[tuple[str, Sequence[Select[Any]]]], limit: Any, reserved: Any) -> list[CTE]:
        """One locking CTE per branch. What is left is handed on: counted anew in each, forty kinds took 250 ms to plan."""
        taken: list[CTE] = []
        left = select((limit - reserved).label("amount")).cte("left_at_first")
        for name, branches in turns:
            if taken:  # what was reserved is free now
                amount: Any = select(left.c.amount).scalar_subquery()
                left = select((amount + reserved).label("amount")).cte(f"left_for_{name}")
            for position, branch in enumerate(branches):
                amount = select(left.c.amount).scalar_subquery()
                taken.append(branch.limit(amount).with_for_update(skip_locked=True).cte(f"{name}_{position}"))
                used: Any = select(func.count()).select_from(taken[-1]).scalar_subquery()
                left = select((amount - used).label("amount")).cte(f"left_after_{name}_{position}")
        return taken

    def take_and_read(self, id_: ColumnElement[Any], ids: Any, rows: HeldRows) -> Compiled:
        """See `Dialect.take_and_read`: in one statement, since others claim at the same time."""
        return Compiled(rows.hold(self.among(id_, ids)))

    def unlocked(self, column: ColumnElement[Any], ids: Select[Any]) -> ColumnElement[bool]:
        """See `Dialect.unlocked`. Who never waits for a row needs no order."""
        return self.among(column, for_an_update(ids, wait=False).correlate(None))

    def impatient(self, locking: Select[Any]) -> Select[Any]:
        """See `Dialect.impatient`. The limit travels with the statement, which saves a round trip; one that is set stays."""
        limit = func.current_setting("lock_timeout")
        set_one = func.set_config(
            "lock_timeout", case((limit == quoted("0"), quoted(LOCK_PATIENCE)), else_=limit), True
        )
        return locking.join(select(set_one.label("limit")).cte("patience"), true())

    def move(
        self, table: Table, where: ColumnElement[bool]
    ) -> tuple[FromClause, list[ColumnElement[bool]], list[Delete]]:
        """See `Dialect.move`: in one statement, since others write at the same time."""
        return delete(table).where(where).returning(*table.c).cte("gone"), [], []

    def together(self, first: sqlalchemy.Insert, then: sqlalchemy.Insert) -> Sequence[sqlalchemy.Insert]:
        """See `Dialect.together`: one statement, and one round trip."""
        return [then.add_cte(first.cte("first"))]

    def settle(self, rows: SettleRows) -> PostgresSettle:
        """See `Dialect.settle`."""
        return PostgresSettle(self, rows)

    def read_gates(self, connection: Connection, ledger: str, names: Sequence[str]) -> list[tuple[Gate, GateRule]]:
        """See `Dialect.read_gates`."""
        return gate_rows.read_gates(connection, ledger, names)

    def write_gates(self, connection: Connection, ledger: str, gates: Sequence[Gate]) -> None:
        """See `Dialect.write_gates`."""
        gate_rows.write_gates(connection, ledger, gates)

    def gate_claim(self, rows: GateRows) -> PostgresGateClaim:
        """See `Dialect.gate_claim`."""
        return PostgresGateClaim(self, rows)

    def lock_migrations(self, connection: Connection) -> None:
        """See `Dialect.lock_migrations`."""
        connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        self.make_schema(connection)

    def wait_briefly(self, connection: Connection, span: timedelta) -> int | None:
        """See `Dialect.wait_briefly`."""
        limit_locks(connection, span)
        session: int = connection.execute(select(func.pg_backend_pid())).scalar_one()
        return session

    def in_the_way(self, connection: Connection, session: int) -> Sequence[str]:
        """See `Dialect.in_the_way`. Of sessions of other roles PostgreSQL tells the name alone."""
        found = connection.execute(_IN_THE_WAY, {"session": session, "shown": SHOWN_MAX + 1}).all()
        words = [f"process {row.pid} ({row.name}{_for_how_long(row.seconds)})" for row in found[:SHOWN_MAX]]
        return [*words, "others"] if len(found) > SHOWN_MAX else words

    def make_schema(self, connection: Connection) -> None:
        """Make the schema that was asked for, if it is not there."""
        there = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
        if self._schema is not None and connection.execute(there, {"name": self._schema}).first() is None:
            connection.execute(CreateSchema(self._schema))

    def schema(self, connection: Connection) -> str | None:
        """See `Dialect.schema`."""
        here: str | None = self._schema or connection.execute(select(func.current_schema())).scalar()
        return here

    def schemas_with(self, connection: Connection, table: str) -> Sequence[str]:
        """See `Dialect.schemas_with`."""
        asked = text(
            "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relname = :table AND c.relkind IN ('r', 'p') ORDER BY 1"
        )
        return connection.execute(asked, {"table": table}).scalars().all()

    def keep_history(self, connection: Connection) -> int:
        """See `Dialect.keep_history`."""
        return keep_partitions(connection)


def _array(name: str, type_: TypeEngine[Any]) -> ColumnElement[Any]:
    return bindparam(f"{PREFIX}{name}", type_=ARRAY(type_, dimensions=1))


def _written(instant: ColumnElement[Any], column: ColumnElement[Any] | None) -> ColumnElement[Any]:
    """An instant in the form in which this column stores it."""
    if column is None or not isinstance(column.type, IsoText):
        return instant
    return func.to_char(func.timezone("UTC", instant), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"', type_=Text)


def limit_locks(connection: Connection, span: timedelta) -> None:
    """Let no statement of this transaction wait longer for a lock."""
    connection.execute(select(func.set_config("lock_timeout", f"{span.total_seconds() * 1000:.0f}ms", True)))


def _for_how_long(seconds: Any) -> str:
    """Since when somebody is in a transaction, if that is known."""
    return (
        ""
        if seconds is None
        else f", in a transaction for {format_duration(timedelta(seconds=max(1, round(seconds))))}"
    )
