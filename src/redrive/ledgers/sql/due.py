"""What is due: the two branches that claims and people read it by, how long until the next, and which kinds are open."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Subquery,
    Text,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from redrive.core.durations import ZERO
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.ledgers.sql.base import IDS_MAX
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gates import Gating
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.predicates import Branch, Predicates
from redrive.ledgers.sql.times import comparable
from redrive.ports import Page, Waiter

KINDS_PER_LOOK_MAX = 40
"""How many kinds a statement has branches for; of more it is first looked up which are due."""
KINDS_LISTED_MAX = 1000
STATEMENTS_KEPT = 12
"""How many statements of a sort are kept, each for its number of kinds. Where kinds come and go that is any from 1 to 40, with two to four
branches for each kind: all of them were 100 MiB. A place for no kind would be no way out: PostgreSQL plans anew each time for it."""


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
        self.next_due = lru_cache(STATEMENTS_KEPT)(self._next_due)
        self.since_due = lru_cache(STATEMENTS_KEPT)(self._since_due)

    def _next_due(self, kinds: int) -> Compiled:
        """How many seconds until the next row is due, at least zero; no row where none waits."""
        return self._soonest(kinds, self._until_due)

    def _since_due(self, kinds: int) -> Compiled:
        """The same, below zero where it has been due."""
        return self._soonest(kinds, self._since_due_or_made)

    def _soonest(self, kinds: int, build: Callable[[DueBranch, str, int], Select[Any]]) -> Compiled:
        each = [build(due_branch(self._mapped.rows, name), name, kinds) for name in ("first", "retry")]
        return Compiled(select(func.min(union_all(*each).subquery("soonest").c.seconds)))

    def _until_due(self, branch: DueBranch, name: str, kinds: int) -> Select[Any]:
        heads = self._heads(branch, name, kinds, branch.due.label("due"))
        return select(self._mapped.dialect.seconds_until(heads.c.due, branch.column, signed=False).label("seconds"))

    def _since_due_or_made(self, branch: DueBranch, name: str, kinds: int) -> Select[Any]:
        """Below zero where it has been due: without a due time since it was made, if that is known."""
        mapped = self._mapped
        columns = [branch.column, *([mapped.rows.column("created_at")] if mapped.has("created_at") else [])]
        shown = [comparable(one).label(f"at_{at}") for at, one in enumerate(columns)]
        heads = self._heads(branch, name, kinds, *shown)
        known = [mapped.dialect.seconds_until(heads.c[f"at_{at}"], one, signed=True) for at, one in enumerate(columns)]
        return select(func.coalesce(*known, literal_column("0.0")).label("seconds")).select_from(heads)

    def _heads(self, branch: DueBranch, name: str, kinds: int, *shown: ColumnElement[Any]) -> Subquery:
        """The first row of each kind. How far away it is, is told of all of them at once: for each it made the statement more than twice as large."""
        heads = [
            select(*shown).where(branch.rows, *kind).order_by(branch.due).limit(1).subquery(f"{name}_{at}")
            for at, kind in enumerate(kind_conditions(self._mapped.rows, kinds))
        ]
        return union_all(*(select(head) for head in heads)).subquery(name)

    # --- many kinds: as a list, each looked up by itself in the same index ---------------------------------------------

    @cached_property
    def kinds(self) -> Batch:
        """Any number of kinds."""
        return Batch(self._mapped.dialect, {"kind": Text()})

    def _of_each(self, branch: DueBranch, *shown: ColumnElement[Any]) -> Select[Any]:
        """The first row of the branch for each of the kinds. Limited to it: PostgreSQL would else read all rows once."""
        mine = self._mapped.rows.column("kind") == self.kinds.rows.c.kind
        return select(*shown).where(branch.rows, mine).correlate(self.kinds.rows).limit(literal_column("1"))

    @cached_property
    def due_kinds(self) -> Select[Any]:
        """Those of the kinds that have something due, in their order, up to `limit`: one or two probes for each."""
        due: list[ColumnElement[bool]] = []
        for name in ("first", "retry"):
            branch = due_branch(self._mapped.rows, name)
            row = self._of_each(branch, literal_column("1")).where(
                branch.due <= self._mapped.dialect.present(branch.column)
            )
            due.append(row.scalar_subquery().is_not(None))
        return select(self.kinds.rows.c.kind).where(or_(*due)).limit(bindparam("limit", type_=Integer))

    @cached_property
    def next_due_of_many(self) -> Select[Any]:
        """How many seconds until the next row of the kinds is due, at least zero; none where none waits."""
        heads = []
        for name in ("first", "retry"):
            branch = due_branch(self._mapped.rows, name)
            head = self._of_each(branch, branch.due).order_by(branch.due).scalar_subquery()
            each = select(head.label("due")).select_from(self.kinds.rows).subquery(f"{name}_heads")
            seconds = self._mapped.dialect.seconds_until(each.c.due, branch.column, signed=False)
            heads.append(select(seconds.label("seconds")).where(each.c.due.is_not(None)))
        return select(func.min(union_all(*heads).subquery("heads").c.seconds))

    # --- which kinds are open -----------------------------------------------------------------------------------------

    @cached_property
    def open_kinds(self) -> Any:
        """The kinds that wait or are held: a loose index scan, one probe per kind, over both claim indexes."""
        return self._list([], lambda _: [], [])

    @cached_property
    def open_kinds_after(self) -> Any:
        """Those that wait and come behind the kind `after`."""
        column = self._mapped.rows.column("kind")
        return self._list([column > bindparam("after", type_=Text)], lambda _: [], None)

    @cached_property
    def open_kinds_with(self) -> Any:
        """Those that begin with `prefix`, up to the first that does not."""
        column, prefix = self._mapped.rows.column("kind"), bindparam("prefix", type_=Text)

        def begins(kind: ColumnElement[str]) -> list[ColumnElement[bool]]:
            return [func.substr(kind, literal_column("1"), func.length(prefix)) == prefix]

        return self._list([column >= prefix], begins, begins(column))

    def _list(
        self,
        begin: list[ColumnElement[bool]],
        wanted: Callable[[ColumnElement[str]], list[ColumnElement[bool]]],
        held: list[ColumnElement[bool]] | None,
    ) -> Any:
        """Kinds that wait, in their order and up to `limit`, from where `begin` holds to where `wanted` does not; and held ones."""
        rows, limit = self._mapped.rows, bindparam("limit", type_=Integer)
        column = rows.column("kind")
        scans = []
        for name, where in (("first", rows.first_tries()), ("retry", rows.retries())):
            smallest = select(func.min(column).label("kind")).where(where, *begin)
            scan = smallest.cte(f"{name}_kinds", recursive=True)
            following = select(func.min(column)).where(where, column > scan.c.kind).scalar_subquery()
            scan = scan.union_all(select(following).where(scan.c.kind.is_not(None), *wanted(scan.c.kind)))
            scans.append(select(scan.c.kind).where(scan.c.kind.is_not(None), *wanted(scan.c.kind)).limit(limit))
        waiting = union_all(*(select(scan.subquery()) for scan in scans)).subquery("waiting")
        parts = [
            select(waiting.c.kind, literal_column("1").label("waits")).distinct().order_by(waiting.c.kind).limit(limit)
        ]
        if held is not None:
            # What is held is bounded by the slots of all workers, so it can simply be read.
            few = select(column.label("kind"), literal_column("0").label("waits")).where(rows.held(), *held)
            parts.append(few.distinct().limit(limit))
        return union_all(*(select(part.subquery()) for part in parts))


class Due(Gating):
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
        left = None if soonest is None else timedelta(seconds=min(soonest, 1e9))
        if left == ZERO or not self._uses_gates(connection):
            return left
        gates = self._gates_due(connection, kinds)
        return left if gates is None else gates if left is None else min(left, gates)

    async def oldest_due(self) -> timedelta | None:
        """How long the oldest due task has been waiting; None where none is due."""
        known = await self._known(None)
        if known == []:
            return None
        return await self.database.read(self.oldest_due_of, known)

    def oldest_due_of(self, connection: Connection, kinds: list[str] | None) -> timedelta | None:
        """The same for these kinds; None for all of a table that has none."""
        left = self._seconds_left(connection, kinds, signed=True)
        return None if left is None or left > 0 else timedelta(seconds=min(-left, 1e9))

    def _seconds_left(self, connection: Connection, kinds: list[str] | None, *, signed: bool = False) -> float | None:
        """The seconds until the next task is due; below zero, if signed, where it has been due."""
        size = KINDS_PER_LOOK_MAX
        if kinds is not None and len(kinds) > size and not signed:
            many = self._due.kinds.parameters((kind,) for kind in kinds)
            soonest = connection.execute(self._due.next_due_of_many, many | self._times()).scalar()
            return None if soonest is None else float(soonest)
        parts = [[]] if kinds is None else [kinds[start : start + size] for start in range(0, len(kinds), size)]
        times, left = self._times(), []
        build = self._due.since_due if signed else self._due.next_due
        for part in parts:
            left.append(build(len(part)).scalar(connection, times | kind_parameters(part)))
        return min((float(one) for one in left if one is not None), default=None)

    async def overdue(self, kind: str, age: timedelta, *, limit: int = IDS_MAX) -> list[TaskId]:
        """Waiting tasks of a kind that have been due for so long, oldest first."""
        return await self.database.read(self._overdue, kind, age, limit)

    def _overdue(self, connection: Connection, kind: str, age: timedelta, limit: int) -> list[TaskId]:
        rows, due = self._mapped.rows, self._mapped.rows.column("due")
        long_ago = comparable(due) <= self._mapped.dialect.ago(due)
        found = select(self._mapped.id).where(rows.state(State.WAITING), self._column("kind") == kind, long_ago)
        return list(connection.execute(found.order_by(due).limit(limit), self._age(age)).scalars())

    def _due_kinds(self, connection: Connection, kinds: list[str], limit: int) -> list[str]:
        """Those of the kinds that have something due, up to so many."""
        parameters = self._due.kinds.parameters((kind,) for kind in kinds)
        return list(connection.execute(self._due.due_kinds, parameters | self._times() | {"limit": limit}).scalars())

    async def open_kinds(self) -> list[str]:
        """The kinds that wait or are held; where there are very many, some of them."""
        return sorted((await self.list_kinds()).items)

    async def list_kinds(self, *, prefix: str = "", after: str | None = None) -> Page[str]:
        """See `Ledger.list_kinds`."""
        if self.table.kind is None:
            return Page(items=[])
        return await self.database.read(self._list_kinds, prefix, after)

    def _list_kinds(self, connection: Connection, prefix: str = "", after: str | None = None) -> Page[str]:
        statement = self._due.open_kinds_with if prefix else self._due.open_kinds
        if after is not None:
            statement = self._due.open_kinds_after
        found = connection.execute(statement, {"limit": KINDS_LISTED_MAX, "prefix": prefix, "after": after}).all()
        waiting = [kind for kind, waits in found if waits]
        held = {kind for kind, waits in found if not waits}
        if after is None and self._uses_gates(connection):
            held |= {kind for kind in self._gated_kinds(connection) if kind.startswith(prefix)}
        held.difference_update(waiting)
        return Page(items=[*held, *waiting], cursor=waiting[-1] if len(waiting) >= KINDS_LISTED_MAX else None)

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
        if state is State.WAITING and rows.has_gates:
            by_index.append((rows.parked(), rows.gated_due()))
        return [Branch(self._mapped.id, at, self.sql_table, and_(held, *conditions)) for held, at in by_index]

    def count_held(self, connection: Connection, counted_max: int) -> int:
        """How many tasks are held now, up to so many."""
        held: Select[Any] = select(literal_column("1")).select_from(self.sql_table).where(self._mapped.rows.held())
        few = held.limit(counted_max).subquery()
        return int(connection.execute(select(func.count()).select_from(few)).scalar_one())
