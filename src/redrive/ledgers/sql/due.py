"""What is due: the two branches that claims and people read it by, how long until the next, and which kinds are open."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    union_all,
)

from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.ledgers.sql.base import IDS_MAX, LedgerBase
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import Branch, Predicates
from redrive.ledgers.sql.times import comparable
from redrive.ports import Waiter

KINDS_PER_LOOK_MAX = 40
KINDS_LISTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class DueBranch:
    """First tries or retries: its rows, the instant that its index orders them by, and the column that it is made of."""

    rows: ColumnElement[bool]
    due: ColumnElement[Any]
    column: ColumnElement[Any]


def due_branch(rows: Predicates, name: str) -> DueBranch:
    """The branch called `first` or `retry`."""
    if name == "first":
        column = rows.column("first_due" if rows.ledger_table.first_due else "due")
        return DueBranch(rows.first_tries(), rows.first_due(), column)
    return DueBranch(rows.retries(), rows.retry_due(), rows.column("due"))


def kind_conditions(rows: Predicates, kinds: int) -> list[list[ColumnElement[bool]]]:
    """One condition for each kind that is bound as `kind_0 …`; none at all for zero kinds."""
    if kinds == 0:
        return [[]]
    column = rows.column("kind")
    return [[column == bindparam(f"kind_{position}", type_=column.type)] for position in range(kinds)]


def kind_parameters(kinds: Sequence[str] | None) -> dict[str, str]:
    """The parameters of these conditions."""
    return {f"kind_{position}": kind for position, kind in enumerate(kinds or ())}


class DueStatements:
    """The statements, each with its purpose."""

    def __init__(self, mapped: Mapped) -> None:
        self._mapped = mapped
        self._next_dues: dict[tuple[int, bool], Select[Any]] = {}

    def next_due(self, kinds: int, *, signed: bool = False) -> Select[Any]:
        """How many seconds until the next row is due, at least zero unless `signed`; no row where none waits."""
        if (kinds, signed) not in self._next_dues:
            heads = []
            for name in ("first", "retry"):
                branch = due_branch(self._mapped.rows, name)
                for at, kind in enumerate(kind_conditions(self._mapped.rows, kinds)):
                    build = self._since_due if signed else self._until_due
                    heads.append(build(branch, kind, f"{name}_{at}"))
            self._next_dues[kinds, signed] = select(func.min(union_all(*heads).subquery("heads").c.seconds))
        return self._next_dues[kinds, signed]

    def _until_due(self, branch: DueBranch, kind: list[ColumnElement[bool]], name: str) -> Select[Any]:
        head = select(branch.due.label("due")).where(branch.rows, *kind).order_by(branch.due).limit(1).subquery(name)
        seconds = self._mapped.dialect.seconds_until(head.c.due, branch.column, signed=False)
        return select(seconds.label("seconds"))

    def _since_due(self, branch: DueBranch, kind: list[ColumnElement[bool]], name: str) -> Select[Any]:
        """The same, below zero where it has been due: without a due time since it was made, if that is known."""
        mapped = self._mapped
        columns = [branch.column, *([mapped.rows.column("created_at")] if mapped.has("created_at") else [])]
        shown = [comparable(one).label(f"at_{at}") for at, one in enumerate(columns)]
        head = select(*shown).where(branch.rows, *kind).order_by(branch.due).limit(1).subquery(name)
        known = [mapped.dialect.seconds_until(head.c[f"at_{at}"], one, signed=True) for at, one in enumerate(columns)]
        return select(func.coalesce(*known, literal_column("0.0")).label("seconds")).select_from(head)

    @cached_property
    def open_kinds(self) -> Any:
        """The kinds that wait or are held: a loose index scan, one probe per kind, over both claim indexes."""
        rows = self._mapped.rows
        column = rows.column("kind")
        scans = []
        for name, where in (("first", rows.first_tries()), ("retry", rows.retries())):
            smallest = select(func.min(column).label("kind")).where(where)
            scan = smallest.cte(f"{name}_kinds", recursive=True)
            following = select(func.min(column)).where(where, column > scan.c.kind).scalar_subquery()
            scan = scan.union_all(select(following).where(scan.c.kind.is_not(None)))
            scans.append(select(scan.c.kind).where(scan.c.kind.is_not(None)).limit(KINDS_LISTED_MAX))
        # What is held is bounded by the slots of all workers, so it can simply be read.
        scans.append(select(column.label("kind")).where(rows.held()).distinct().limit(KINDS_LISTED_MAX))
        return select(union_all(*(select(scan.subquery()) for scan in scans)).subquery("kinds").c.kind).distinct()


class Due(LedgerBase):
    """The part of a ledger that says what is due."""

    @cached_property
    def _due(self) -> DueStatements:
        return DueStatements(self._mapped)

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:
        """See `Ledger.next_due`."""
        known = await self._known(kinds)
        if known == []:
            return None
        return await self.database.read(self._next_due, known)

    def _next_due(self, connection: Connection, kinds: list[str] | None) -> timedelta | None:
        soonest = self._seconds_left(connection, kinds)
        return None if soonest is None else timedelta(seconds=min(soonest, 1e9))

    async def oldest_due(self) -> timedelta | None:
        """How long the oldest due task has been waiting; None where none is due."""
        known = await self._known(None)
        if known == []:
            return None
        return await self.database.read(self._oldest_due, known)

    def _oldest_due(self, connection: Connection, kinds: list[str] | None) -> timedelta | None:
        left = self._seconds_left(connection, kinds, signed=True)
        return None if left is None or left > 0 else timedelta(seconds=min(-left, 1e9))

    def _seconds_left(self, connection: Connection, kinds: list[str] | None, *, signed: bool = False) -> float | None:
        """The seconds until the next task is due; below zero, if signed, where it has been due."""
        size = KINDS_PER_LOOK_MAX
        parts = [[]] if kinds is None else [kinds[start : start + size] for start in range(0, len(kinds), size)]
        times, left = self._times(), []
        for part in parts:
            statement = self._due.next_due(len(part), signed=signed)
            left.append(connection.execute(statement, times | kind_parameters(part)).scalar())
        return min((float(one) for one in left if one is not None), default=None)

    async def overdue(self, kind: str, age: timedelta, *, limit: int = IDS_MAX) -> list[TaskId]:
        """Waiting tasks of a kind that have been due for so long, oldest first."""
        return await self.database.read(self._overdue, kind, age, limit)

    def _overdue(self, connection: Connection, kind: str, age: timedelta, limit: int) -> list[TaskId]:
        rows, due = self._mapped.rows, self._mapped.rows.column("due")
        long_ago = comparable(due) <= self._mapped.dialect.ago(due)
        found = select(self._mapped.id).where(rows.state(State.WAITING), self._column("kind") == kind, long_ago)
        return list(connection.execute(found.order_by(due).limit(limit), self._age(age)).scalars())

    async def open_kinds(self) -> list[str]:
        """See `Ledger.open_kinds`."""
        if self.table.kind is None:
            return []
        return await self.database.read(self._open_kinds)

    def _open_kinds(self, connection: Connection) -> list[str]:
        return sorted(connection.execute(self._due.open_kinds).scalars())

    async def _known(self, kinds: Sequence[str] | None) -> list[str] | None:
        """The kinds to look for; None where the table has none."""
        if self.table.kind is None:
            return None
        return list(kinds) if kinds is not None else await self.open_kinds()

    def waiter(self) -> AbstractContextManager[Waiter]:
        """See `Ledger.waiter`."""
        return self.database.waiter(self.name)

    # --- what is open, for people ------------------------------------------------------------------------------------

    def open_branches(
        self,
        connection: Connection,  # noqa: ARG002 - where the rows wait in queues, one must be asked for
        state: State,
        kind: str | None,
        conditions: Sequence[ColumnElement[bool]],
    ) -> list[Branch]:
        """The rows that wait or are held, of a kind, by the indexes that claims use: in the order of their instants."""
        rows = self._mapped.rows
        if kind is not None:
            conditions = [self._column("kind") == kind, *conditions]
        by_index = (
            [(rows.first_tries(), rows.first_due()), (rows.retries(), rows.retry_due())]
            if state is State.WAITING
            else [(rows.held(), rows.lease_end())]
        )
        return [Branch(self._mapped.id, at, self.sql_table, and_(held, *conditions)) for held, at in by_index]

    def count_held(self, connection: Connection, counted_max: int) -> int:
        """How many tasks are held now, up to so many."""
        held: Select[Any] = select(literal_column("1")).select_from(self.sql_table).where(self._mapped.rows.held())
        few = held.limit(counted_max).subquery()
        return int(connection.execute(select(func.count()).select_from(few)).scalar_one())
