"""Pages of tasks by any filter, and how many there are.

For people who wait, a page is in the order of the instant that matters: when waiting tasks are due, when leases end, when
tasks ended. Indexes hold them so (`index_order`), or the census's list of the dead does (`dead_list`); what neither serves is
read by id. Every look is limited: who asks for more than an index can give gets a `TooSlowError`, not a wait. A part of the error
is looked for in the error as it is shown (`shown_errors`).

For code and commands a page is in the order of the ids and takes as long as it takes: it needs no census, and a table that
somebody has just adopted is read like any other.
"""

import time
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, func, select

from redrive.core.states import State
from redrive.core.table import TASKS
from redrive.core.task import Task, TaskId
from redrive.errors import TooSlowError
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.sift import is_unreadable
from redrive.operator.cursors import Position, read_cursor, write_cursor
from redrive.operator.shown_errors import shows, sifted
from redrive.operator.sql.dead_list import DeadList
from redrive.operator.sql.index_order import IndexOrder
from redrive.operator.sql.reads import COUNT_WITHIN, LOOK_WITHIN, Reads
from redrive.ports import Filter, Page, check_limit

COUNTED_AT_ONCE = 500


class SqlTaskPages:
    """The tasks of one ledger; see `TaskPages`. `limited` is for people who wait; see above."""

    def __init__(self, ledger: SqlLedger, *, limited: bool = True) -> None:
        self._ledger = ledger
        self._limited = limited
        self._reads = Reads(ledger.database, limited=limited)
        self._id = ledger.predicates.column("id")
        self._indexes = IndexOrder(ledger, self._reads)
        self._dead = DeadList(ledger, self._reads)

    async def page(
        self, asked: Filter, *, cursor: TaskId | None = None, limit: int = 50, newest_first: bool = False
    ) -> Page[Task]:
        """See `TaskPages.page`."""
        check_limit(limit)
        if self._is_plain(asked) and asked.error is None:
            behind = None if cursor is None else self._ledger.read_id(str(cursor))
            return await self._ledger.find(asked, cursor=behind, limit=limit, newest_first=newest_first)
        ids = await self.ids(asked, cursor=cursor, limit=limit, newest_first=newest_first)
        found = await self._ledger.find(Filter(ids=ids.items), limit=limit) if ids.items else Page(items=[])
        by_id = {task.id: task for task in found.items}
        # One that has changed between the two looks may no longer be what was asked for.
        tasks = [by_id[id_] for id_ in ids.items if id_ in by_id and asked.state in (None, by_id[id_].state)]
        return Page(items=tasks, cursor=ids.cursor)

    async def ids(
        self, asked: Filter, *, cursor: TaskId | None = None, limit: int = 500, newest_first: bool = False
    ) -> Page[TaskId]:
        """See `TaskPages.ids`."""
        self._ledger.conditions.check(asked)
        plain, after, following = self._is_plain(asked), None, None
        if cursor is not None:
            written = str(cursor)
            after = (
                Position(None, self._ledger.read_id(written)) if plain else read_cursor(written, self._ledger.read_id)
            )
        positions = await self._shown(asked, after, limit + 1, newest_first=newest_first)
        if len(positions) > limit:
            last = positions[limit - 1]
            following = last.id if plain else write_cursor(last)
        return Page(items=[position.id for position in positions[:limit]], cursor=following)

    async def due_until(self, end: datetime, *, limit: int = 2000) -> list[datetime]:
        """See `TaskPages.due_until`."""
        return await self._indexes.due_until(end, limit)

    async def count(self, asked: Filter) -> int:
        """See `TaskPages.count`."""
        self._ledger.conditions.check(asked)
        if asked.error is not None:
            return await self._count_shown(asked)
        if self._is_listed(asked):
            return await self._dead.count(asked)
        amount = await self._indexes.count(asked)
        return amount if amount is not None else await self._reads.count(self._count, asked)

    async def present(self) -> datetime:
        """See `TaskPages.present`."""
        return await self._ledger.database.read(self._ledger.present)

    def _is_listed(self, asked: Filter) -> bool:
        """Whether the list of the dead is looked through, and not the table."""
        if asked.key is not None or asked.ids is not None:
            return False
        by_list = self._limited and asked.state is State.DEAD and self._ledger.table != TASKS
        return asked.cause is not None or by_list

    def _is_plain(self, asked: Filter) -> bool:
        """Whether the table is read in the order of the ids, and a cursor is just the last of them."""
        return not self._limited and not self._is_listed(asked)

    async def _shown(self, asked: Filter, after: Position | None, limit: int, *, newest_first: bool) -> list[Position]:
        """The next rows that match, their errors as people see them."""
        text = asked.error
        if text is None:
            return await self._positions(asked, after, limit, newest_first=newest_first)

        async def look(behind: Position | None, amount: int) -> Sequence[Position]:
            return await self._positions(asked, behind, amount, newest_first=newest_first)

        async def fitting(some: Sequence[Position]) -> Sequence[Position]:
            fit = await self._reads.page(self._showing, text, [one.id for one in some]) if some else ()
            return [one for one in some if one.id in fit]

        return await sifted(look, fitting, after, limit, LOOK_WITHIN if self._limited else None)

    async def _count_shown(self, asked: Filter) -> int:
        amount, after, ends = 0, None, time.monotonic() + COUNT_WITHIN.total_seconds()
        while True:
            positions = await self._shown(asked, after, COUNTED_AT_ONCE, newest_first=False)
            amount += len(positions)
            if len(positions) < COUNTED_AT_ONCE:
                return amount
            if self._limited and time.monotonic() > ends:
                raise TooSlowError(f"there are more than {amount:,} tasks to look at")
            after = positions[-1]

    def _showing(self, connection: Connection, text: str, ids: Sequence[TaskId]) -> set[TaskId]:
        error = self._ledger.predicates.column("last_error")
        rows = connection.execute(select(self._id, error).where(self._id.in_(ids)))
        return {id_ for id_, error in rows if shows(error, text)}

    async def _positions(
        self, asked: Filter, after: Position | None, limit: int, *, newest_first: bool
    ) -> list[Position]:
        if self._is_plain(asked):
            return await self._reads.page(self._by_id, asked, after, limit, newest_first=newest_first)
        if self._is_listed(asked):
            return await self._dead.positions(asked, after, limit, newest_first=newest_first)
        if self._indexes.serves(asked):
            # A cursor without an instant is right where the first page had to be read by the ids, and only there.
            begun = after if after is not None and after.at is not None else None
            found = await self._by_index(asked, begun, limit, newest_first=newest_first)
            if found is not None:
                if after is not begun and after is not None:
                    after.check(datetime)
                return found
        if after is not None:
            after.check(type(None))
        return await self._reads.page(self._by_id, asked, after, limit, newest_first=newest_first)

    async def _by_index(
        self, asked: Filter, after: Position | None, limit: int, *, newest_first: bool
    ) -> list[Position] | None:
        try:
            return await self._indexes.positions(asked, after, limit, newest_first=newest_first)
        except Exception as error:
            if not is_unreadable(error):
                raise
            return None  # an instant that cannot be read has no place among the others: by their ids all have one

    def _by_id(
        self, connection: Connection, asked: Filter, after: Position | None, limit: int, *, newest_first: bool
    ) -> list[Position]:
        where = self._ledger.conditions.of(asked, lambda: self._ledger.present(connection))
        found = select(self._id).where(*where)
        if after is not None:
            found = found.where(self._id < after.id if newest_first else self._id > after.id)
        found = found.order_by(self._id.desc() if newest_first else self._id).limit(limit)
        return [Position(None, id_) for id_ in connection.execute(found).scalars()]

    def _count(self, connection: Connection, asked: Filter) -> int:
        where = self._ledger.conditions.of(asked, lambda: self._ledger.present(connection))
        counted = select(func.count()).select_from(self._ledger.sql_table).where(*where)
        return int(connection.execute(counted).scalar_one())
