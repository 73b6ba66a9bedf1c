"""Which rows of a ledger's table are what, in the table's own words, and the indexes that find them.

Claims stay flat because every branch of a claim reads one partial index that holds just its rows, in the order of their
due times: with one index for all a claim over a million parked rows took 75 ms and more instead of 2 ms. Words are literals
in the text of a statement: a bound word hides a partial index from the planner (103 ms).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Index,
    Integer,
    String,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
)

from redrive.core.states import State
from redrive.core.table import LedgerTable
from redrive.ledgers.sql.times import Earliest, comparable


def quoted(word: str) -> ColumnElement[str]:
    """A word as a literal in the statement's text."""
    return literal_column("'" + word.replace("'", "''") + "'", Text)


def as_text(column: ColumnElement[Any]) -> ColumnElement[str]:
    """A column that names something, also where its names are numbers."""
    return column if isinstance(column.type, String) else cast(column, Text)


def columns_of(table: Table) -> dict[str, Column[Any]]:
    """The columns by their names, which in an adopted table are not their keys."""
    return {column.name: column for column in table.c}


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows that one index holds: their ids, the instant that it holds them by, and where both come from."""

    id: ColumnElement[Any]
    at: ColumnElement[Any]
    source: FromClause
    where: ColumnElement[bool]


class Predicates:
    """Which rows are what, in the table's own words. Also what the indexes are made of."""

    def __init__(self, ledger_table: LedgerTable, table: Table) -> None:
        self.ledger_table = ledger_table
        self.table = table
        self.words = ledger_table.words
        named = columns_of(table)
        self._columns = {role: named[name] for role, name in ledger_table.columns().items() if name in named}

    def column(self, role: str) -> Column[Any]:
        """The column that plays this role."""
        return self._columns[role]

    def state(self, state: State) -> ColumnElement[bool]:
        """Rows in this state."""
        status, due, lease = self.column("status"), self.column("due"), self.column("lease_until")
        if state is State.CLAIMED:
            return status == quoted(self.words.claimed) if self.words.claimed else lease.is_not(None)
        free = [] if self.words.claimed else [lease.is_(None)]
        if state is State.WAITING:
            waiting = status == quoted(self.words.waiting)
            if self._retrying is None:
                return and_(waiting, *free)
            again = status == quoted(self._retrying)
            again = and_(again, due.is_not(None)) if self.words.shared else again
            return and_(or_(waiting, again), *free)
        word = getattr(self.words, state.value)
        if word is None:
            return literal_column("1 = 0")
        if state is State.DEAD and self.words.shared:
            free.append(due.is_(None))
        if state is State.CANCELLED and self.words.refused is not None:
            return and_(status.in_([quoted(word), quoted(self.words.refused)]), *free)
        return and_(status == quoted(word), *free)

    def ours(self) -> ColumnElement[bool]:
        """Rows with a word that somebody mapped. The others are not ours: no list and no act touches them."""
        known = self.column("status").in_([quoted(word) for word in self.words.all()])
        return known if self.words.claimed else or_(known, self.column("lease_until").is_not(None))

    def first_tries(self) -> ColumnElement[bool]:
        """Waiting rows that have not been tried and have no gate."""
        waiting = self.column("status") == quoted(self.words.waiting)
        return and_(*self._ungated, waiting, ~self._tried, self.column("lease_until").is_(None))

    def retries(self) -> ColumnElement[bool]:
        """All other waiting rows without a gate: with `first_tries` and `gated` they are the rows in the waiting state, each once."""
        status, due = self.column("status"), self.column("due")
        if self._retrying is None:
            again = [status == quoted(self.words.waiting), self._tried]
        else:
            # The word for retrying says so itself, whatever the count of a row that somebody else wrote.
            retrying = status == quoted(self._retrying)
            again = [status.in_([quoted(self.words.waiting), quoted(self._retrying)])]
            if self.words.shared:
                again.append(or_(due.is_not(None), status == quoted(self.words.waiting)))
            again.append(or_(self._tried, retrying))
        return and_(*self._ungated, *again, self.column("lease_until").is_(None))

    # --- gates --------------------------------------------------------------------------------------------------------

    @property
    def has_gates(self) -> bool:
        """Whether rows of the table may have a gate."""
        return self.ledger_table.gated_by is not None

    def gate(self) -> ColumnElement[str]:
        """The name of a row's gate."""
        assert self.ledger_table.gated_by is not None
        return as_text(self.column(self.ledger_table.gated_by))

    @property
    def _ungated(self) -> list[ColumnElement[bool]]:
        # First, so that a row fails one test instead of three.
        return [self.column(self.ledger_table.gated_by).is_(None)] if self.ledger_table.gated_by else []

    def gated(self) -> ColumnElement[bool]:
        """Waiting rows that have a gate."""
        assert self.ledger_table.gated_by is not None
        named = self.column(self.ledger_table.gated_by).is_not(None)
        free = [self.column("lease_until").is_(None)] if self.words.claimed else []
        return and_(named, self.state(State.WAITING), *free)

    def parked(self) -> ColumnElement[bool]:
        """The same rows, for people: in the order of their due times, whichever gate they have.

        That they are due at some instant is true of all of them. It keeps claims from the index that is for people: while PostgreSQL has no
        statistics yet, after many tasks came at once, it takes that one for as good as the index of gates, and would read all that is parked for each gate.
        """
        return and_(self.gated(), self.gated_due() >= Earliest())

    def band(self) -> ColumnElement[int]:
        """What goes first inside a gate: see `core.gate_order.BANDS`."""
        tried = self._tried
        if self._retrying is not None:
            tried = or_(tried, self.column("status") == quoted(self._retrying))
        again = case((tried, literal_column("0")), else_=literal_column("1"))
        if self.ledger_table.priority is None:
            return literal_column("2", Integer) + again
        return func.coalesce(self.column("priority"), literal_column("1"), type_=Integer) * literal_column("2") + again

    @property
    def has_turns(self) -> bool:
        """Whether tenants may share a gate."""
        return self.ledger_table.gate is not None and self.ledger_table.tenant is not None

    def turn(self) -> ColumnElement[str]:
        """Whose turn inside a gate that tenants share a row is; nobody's where it has no tenant."""
        return func.coalesce(as_text(self.column("tenant")), quoted(""), type_=Text())

    def gated_due(self) -> ColumnElement[Any]:
        """The instant from which a row with a gate is due, whichever try it is."""
        if self.ledger_table.first_due is None:
            return self.retry_due()
        due = comparable(self.column("due"))
        return func.coalesce(due, comparable(self.column("first_due")), Earliest(), type_=due.type)

    @property
    def _retrying(self) -> str | None:
        """The word for retrying, where it is one of its own."""
        return None if self.words.retrying == self.words.waiting else self.words.retrying

    @property
    def _tried(self) -> ColumnElement[bool]:
        """Whether a waiting row has been tried: it has a due time of its own, or a count."""
        if self.ledger_table.first_due is not None:
            return self.column("due").is_not(None)
        return self.count() > literal_column("0")

    def count(self) -> ColumnElement[Any]:
        """The count; zero where a table of others has none."""
        column = self.column("count")
        return func.coalesce(column, literal_column("0"), type_=Integer) if column.nullable else column

    def first_due(self) -> ColumnElement[Any]:
        """The instant from which a first try is due."""
        return self._due(self.column("first_due" if self.ledger_table.first_due else "due"))

    def retry_due(self) -> ColumnElement[Any]:
        """The instant from which a retry is due."""
        return self._due(self.column("due"))

    def lease_end(self) -> ColumnElement[Any]:
        """The instant at which a lease ends; claimed without a lease, it has ended."""
        lease = self.column("lease_until")
        return self._due(lease) if self.words.claimed else comparable(lease)

    def held(self) -> ColumnElement[bool]:
        """Rows that somebody holds or held."""
        return self.state(State.CLAIMED)

    def _due(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # No due time means now: as the earliest instant of all it keeps its place in the index.
        instant = comparable(column)
        return func.coalesce(instant, Earliest(), type_=instant.type)


def ledger_indexes(ledger_table: LedgerTable, table: Table, *, there: Collection[str] = ()) -> list[Index]:
    """The three partial indexes that every ledger needs, attached to the table; and up to four more where rows may have a gate.

    Those that are `there` already, by their names, are not made again: that would be most of what it costs to open a ledger.
    """
    rows = Predicates(ledger_table, table)
    kind = [rows.column("kind")] if ledger_table.kind else []
    wanted: dict[str, Callable[[], tuple[list[ColumnElement[Any]], ColumnElement[bool]]]] = {
        "first": lambda: ([*kind, rows.first_due()], rows.first_tries()),
        "retry": lambda: ([*kind, rows.retry_due()], rows.retries()),
        "lease": lambda: ([rows.lease_end()], rows.held()),
    }
    if rows.has_gates:
        wanted["gate"] = lambda: ([rows.gate(), *kind, rows.band(), rows.gated_due()], rows.gated())
        if rows.has_turns:
            wanted["turn"] = lambda: ([rows.gate(), rows.turn(), *kind, rows.band(), rows.gated_due()], rows.gated())
        wanted["parked"] = lambda: ([*kind, rows.gated_due()], rows.parked())
    if rows.has_gates and ledger_table.deadline:
        deadline = rows.column("deadline")
        wanted["deadline"] = lambda: ([comparable(deadline)], and_(rows.gated(), deadline.is_not(None)))
    indexes = []
    for name, build in wanted.items():
        full_name = f"{ledger_table.name[:45]}_{name}_idx"
        if full_name not in there:
            columns, where = build()
            indexes.append(Index(full_name, *columns, postgresql_where=where, sqlite_where=where))
    return indexes
