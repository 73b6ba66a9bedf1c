"""Tasks in the order of the instant that matters, read from the indexes that hold them so.

What claims read holds waiting and claimed rows in just that order, kind by kind, in any ledger: partial indexes, or the
messages of a queue. redrive's own table has one more index for what has ended.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, Select, and_, bindparam, func, select, union_all

from redrive.core.states import State
from redrive.core.table import TASKS
from redrive.ledgers.sql.due import KINDS_LISTED_MAX, KINDS_PER_LOOK_MAX
from redrive.ledgers.sql.ended_kinds import ended_kinds
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import Branch
from redrive.operator.cursors import Position
from redrive.operator.sql.cursors import behind, with_zone
from redrive.operator.sql.reads import Reads
from redrive.ports import Filter

OPEN = (State.WAITING, State.CLAIMED)


class IndexOrder:
    """The rows of one ledger by its indexes."""

    def __init__(self, ledger: SqlLedger, reads: Reads) -> None:
        self._ledger = ledger
        self._reads = reads
        self._rows = ledger.predicates
        self._own = ledger.table == TASKS

    def serves(self, asked: Filter) -> bool:
        """Whether indexes hold the rows in question in the order of their instants."""
        if asked.key is not None or asked.ids is not None:
            return False
        return asked.state in OPEN or (self._own and (asked.state is not None or asked.kind is not None))

    async def positions(
        self, asked: Filter, after: Position | None, limit: int, *, newest_first: bool
    ) -> list[Position] | None:
        """The next rows that match; None where there are too many kinds to look through one by one, or a row without a place among them."""
        kinds = await self._kinds(asked)
        if kinds is None:
            return None
        found: list[Position] = []
        for start in range(0, len(kinds), KINDS_PER_LOOK_MAX):
            some = kinds[start : start + KINDS_PER_LOOK_MAX]
            # Before the first page: whoever begins in this order must be able to go on in it to the last.
            if after is None and not self._own and await self._reads.page(self._has_odd_instant, asked, some):
                return None
            found += await self._reads.page(self._heads, asked, some, after, limit, newest_first=newest_first)
        found.sort(key=lambda position: (position.at, position.id), reverse=newest_first)
        return found[:limit]

    async def count(self, asked: Filter) -> int | None:
        """How many wait or are held; None where the table must be asked."""
        if asked.state not in OPEN or asked.key is not None or asked.ids is not None:
            return None
        kinds = await self._kinds(asked)
        if kinds is None or len(kinds) > KINDS_PER_LOOK_MAX:
            return None
        return await self._reads.count(self._count, asked, kinds)

    async def due_until(self, end: datetime, limit: int) -> list[datetime]:
        """When waiting rows are due from now until then, the soonest first; none where there are too many kinds to look through."""
        found: list[datetime] = []
        kinds = await self._kinds(Filter(state=State.WAITING)) or []
        for start in range(0, len(kinds), KINDS_PER_LOOK_MAX):
            found += await self._reads.page(self._due_until, kinds[start : start + KINDS_PER_LOOK_MAX], end, limit)
        return sorted(found)[:limit]

    def _due_until(
        self, connection: Connection, kinds: Sequence[str | None], end: datetime, limit: int
    ) -> list[datetime]:
        now, parts = self._ledger.present(connection), list[Select[Any]]()
        for kind in kinds:
            for branch in self._branches(connection, Filter(state=State.WAITING), kind, []):
                at = branch.at
                if isinstance(at.type.dialect_impl(connection.dialect), Float):
                    return []  # texts of strangers on SQLite: they are ordered, and not read back
                begin, last = (bindparam(None, one, type_=at.type) for one in (now, end))
                head = select(at.label("at")).select_from(branch.source).where(branch.where, at > begin, at <= last)
                parts.append(select(head.order_by(at).limit(limit).subquery()))
        if not parts:
            return []
        rows = union_all(*parts).subquery("heads")
        found = connection.execute(select(rows.c.at).order_by(rows.c.at).limit(limit)).scalars()
        return [at for at in map(with_zone, found) if isinstance(at, datetime)]

    async def _kinds(self, asked: Filter) -> list[str | None] | None:
        """The kinds to look through, each by itself: their indexes begin with it. None if they are too many."""
        if self._ledger.table.kind is None:
            return [None]
        if asked.kind is not None:
            return [asked.kind]
        if asked.state is None:
            return None
        is_open = asked.state in OPEN
        kinds = await self._ledger.open_kinds() if is_open else await self._reads.page(ended_kinds, KINDS_LISTED_MAX)
        return None if len(kinds) >= KINDS_LISTED_MAX else [*kinds]

    def _branches(
        self, connection: Connection, asked: Filter, kind: str | None, rest: Sequence[ColumnElement[bool]]
    ) -> list[Branch]:
        """The rows of a kind, one branch for each index that holds some of them."""
        found: list[Branch] = []
        for state in State if asked.state is None else [asked.state]:
            if state in OPEN:
                found += self._ledger.open_branches(connection, state, kind, rest)
            else:
                at, of_kind = self._rows.column("ended_at"), self._rows.column("kind") == kind
                ended = and_(self._rows.state(state), at.is_not(None), of_kind, *rest)
                found.append(Branch(self._rows.column("id"), at, self._ledger.sql_table, ended))
        return found

    def _rest(self, connection: Connection, asked: Filter) -> list[ColumnElement[bool]]:
        return self._ledger.conditions.of(asked, lambda: self._ledger.present(connection), kind=False)

    def _has_odd_instant(self, connection: Connection, asked: Filter, kinds: Sequence[str | None]) -> bool:
        """Whether a row of somebody else's table has an instant that no calendar holds, or a text that is none."""
        rest, parts = self._rest(connection, asked), list[Select[Any]]()
        for kind in kinds:
            for branch in self._branches(connection, asked, kind, rest):
                for odd in self._ledger.database.dialect.unreadable(branch.at):
                    found = select(branch.id.label("id")).select_from(branch.source).where(branch.where, odd).limit(1)
                    parts.append(select(found.subquery()))
        if not parts:
            return False
        return connection.execute(select(union_all(*parts).subquery()).limit(1)).first() is not None

    def _heads(
        self,
        connection: Connection,
        asked: Filter,
        kinds: Sequence[str | None],
        after: Position | None,
        limit: int,
        *,
        newest_first: bool,
    ) -> list[Position]:
        """The first rows of each branch and kind, merged."""
        rest = self._rest(connection, asked)
        parts: list[Select[Any]] = []
        for kind in kinds:
            for branch in self._branches(connection, asked, kind, rest):
                at, id_ = branch.at, branch.id
                head = select(at.label("at"), id_.label("id")).select_from(branch.source).where(branch.where)
                if after is not None:
                    head = head.where(behind(at, id_, after, connection, newest_first=newest_first))
                order = (at.desc(), id_.desc()) if newest_first else (at, id_)
                parts.append(select(head.order_by(*order).limit(limit).subquery()))
        if not parts:
            return []
        rows = union_all(*parts).subquery("heads")
        merged = (rows.c.at.desc(), rows.c.id.desc()) if newest_first else (rows.c.at, rows.c.id)
        found = connection.execute(select(rows).order_by(*merged).limit(limit))
        return [Position(with_zone(row.at), row.id) for row in found]

    def _count(self, connection: Connection, asked: Filter, kinds: Sequence[str | None]) -> int:
        """One statement, as the limit is for each."""
        rest = self._rest(connection, asked)
        branches = [one for kind in kinds for one in self._branches(connection, asked, kind, rest)]
        if not branches:
            return 0
        counts = [select(func.count().label("amount")).select_from(one.source).where(one.where) for one in branches]
        return int(connection.execute(select(func.sum(union_all(*counts).subquery().c.amount))).scalar_one())
