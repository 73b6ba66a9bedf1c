"""Dead tasks by the list that the census keeps: by cause in any ledger, and in adopted tables, which have no index for them.

The list may be a census behind where others write the table, so each task on it is looked at again: the table has the
last word.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, func, select

from redrive.core.states import State
from redrive.core.table import TASKS
from redrive.core.task import TaskId
from redrive.errors import TooSlowError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.cursors import Position
from redrive.operator.sql import reads
from redrive.operator.sql.cursors import behind
from redrive.ports import Filter

LISTED_AT_ONCE = 500
LISTED_LOOKS_MAX = 40


class DeadList:
    """The dead tasks of one ledger, in the order in which they died."""

    def __init__(self, ledger: SqlLedger, limits: reads.Reads) -> None:
        self._ledger = ledger
        self._reads = limits
        self._id = ledger.predicates.column("id")

    async def positions(
        self, asked: Filter, after: Position | None, limit: int, *, newest_first: bool
    ) -> list[Position]:
        """The next ones that match."""
        positions: list[Position] = []
        ends = time.monotonic() + reads.LOOK_WITHIN.total_seconds()
        looked = 0
        while not self._reads.limited or looked < LISTED_LOOKS_MAX:
            if self._reads.limited and time.monotonic() > ends:
                raise TooSlowError(f"fewer than {limit} of the dead tasks looked at in time match")
            some = await self._reads.page(self._some, asked, after, LISTED_AT_ONCE, newest_first=newest_first)
            dead = await self._reads.page(self._still_dead, asked, [position.id for position in some])
            positions += [position for position in some if position.id in dead]
            if len(positions) >= limit or len(some) < LISTED_AT_ONCE:
                return positions[:limit]
            after = some[-1]
            looked += 1
        raise TooSlowError(f"fewer than {limit} of {LISTED_LOOKS_MAX * LISTED_AT_ONCE:,} dead tasks match")

    async def count(self, asked: Filter) -> int:
        """How many match."""
        if asked == Filter(cause=asked.cause, state=asked.state, until=asked.until):
            listed = await self._reads.count(self._count, asked)
            # Nobody else writes our own table. In those of others the list may be a census behind; so few are looked at.
            if self._ledger.table == TASKS or listed > LISTED_LOOKS_MAX * LISTED_AT_ONCE:
                return listed
        amount, after, ends = 0, None, time.monotonic() + reads.COUNT_WITHIN.total_seconds()
        while True:
            if self._reads.limited and time.monotonic() > ends:
                raise TooSlowError(f"there are more than {amount:,} dead tasks to look at")
            positions = await self.positions(asked, after, LISTED_AT_ONCE, newest_first=False)
            amount += len(positions)
            if len(positions) < LISTED_AT_ONCE:
                return amount
            after = positions[-1]

    def _where(self, asked: Filter) -> list[ColumnElement[bool]]:
        d = schema.dead
        where = [d.c.ledger == self._ledger.name]
        if asked.cause is not None:
            where.append(d.c.cause == asked.cause)
        if asked.until is not None:
            where.append(d.c.listed_at <= asked.until)
        return where

    def _some(
        self, connection: Connection, asked: Filter, after: Position | None, limit: int, *, newest_first: bool
    ) -> list[Position]:
        d = schema.dead
        found = select(d.c.since, d.c.task_id).where(*self._where(asked))
        if after is not None:
            last = Position(after.at, str(after.id))
            found = found.where(behind(d.c.since, d.c.task_id, last, connection, newest_first=newest_first))
        order = (d.c.since.desc(), d.c.task_id.desc()) if newest_first else (d.c.since, d.c.task_id)
        rows = connection.execute(found.order_by(*order).limit(limit))
        return [Position(row.since, self._ledger.read_id(row.task_id)) for row in rows]

    def _still_dead(self, connection: Connection, asked: Filter, ids: Sequence[TaskId]) -> set[TaskId]:
        if not ids:
            return set()
        # The list knows the cause, and since when they are dead; the rest the row must say.
        present = asked.until or self._ledger.present(connection)
        rest = self._ledger.conditions.of(
            replace(asked, state=None, cause=None, until=None), lambda: present, state=State.DEAD
        )
        dead = self._ledger.predicates.state(State.DEAD)
        return set(connection.execute(select(self._id).where(dead, self._id.in_(ids), *rest)).scalars())

    def _count(self, connection: Connection, asked: Filter) -> int:
        listed = select(func.count()).select_from(schema.dead).where(*self._where(asked))
        return int(connection.execute(listed).scalar_one())
