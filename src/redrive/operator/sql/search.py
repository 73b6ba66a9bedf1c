"""Text search through a whole ledger, a chunk of rows at a time, for work that runs in the background.

No index serves a text that may stand anywhere, so every row is read: in the order of the ids, a few thousand at a time, each
look short. What is found must also be found in the payload and the error as people may see them: who could search for what
is hidden could guess it.
"""

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, cast, func, or_, select

from redrive.core.task import TaskId
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.found import Chunk, holds_text
from redrive.ports import Filter

CHUNK_ROWS = 2000


class SqlSearch:
    """Goes through one ledger for what a filter asks; see `Search`. `shown` makes of a payload what people may see.

    The text is looked for in key, kind, last error and payload; upper and lower case are the same.
    """

    def __init__(self, ledger: SqlLedger, asked: Filter, shown: Any) -> None:
        ledger.conditions.check(replace(asked, text=None))
        self._ledger = ledger
        self._asked = asked
        self._text = (asked.text or "").lower()
        self._shown = shown
        self._id = ledger.predicates.column("id")

    async def chunk(self, after: TaskId | None) -> Chunk:
        """The next rows behind this id."""
        looked_at, last, ids = await self._ledger.database.scan(self._look, after)
        tasks = []
        for start in range(0, len(ids), 500):
            page = await self._ledger.find(Filter(ids=ids[start : start + 500]), limit=500)
            tasks += [task for task in page.items if holds_text(task, self._text, self._shown)]
        return Chunk(tasks=tasks, looked_at=looked_at, last=last)

    def _look(self, connection: Connection, after: TaskId | None) -> tuple[int, TaskId | None, list[TaskId]]:
        rows = select(self._id).order_by(self._id).limit(CHUNK_ROWS)
        if after is not None:
            rows = rows.where(self._id > after)
        there = list(connection.execute(rows).scalars())
        if not there:
            return 0, None, []
        found = select(self._id).where(self._id <= there[-1], *self._conditions(connection)).order_by(self._id)
        if after is not None:
            found = found.where(self._id > after)
        ids = list(connection.execute(found).scalars())
        return len(there), there[-1] if len(there) == CHUNK_ROWS else None, ids

    def _conditions(self, connection: Connection) -> list[ColumnElement[bool]]:
        rows = self._ledger.predicates
        where = self._ledger.conditions.of(replace(self._asked, text=None), lambda: self._ledger.present(connection))
        if self._text:
            roles = [role for role in ("key", "kind", "last_error", "payload") if role in self._ledger.table.columns()]
            columns = [rows.column(role) for role in roles]
            if self._ledger.table.payload is None:
                mapped = set(self._ledger.table.columns().values())
                columns += [column for column in self._ledger.sql_table.c if column.name not in mapped]
            where.append(or_(*(_contains(column, text) for column in columns for text in self._spellings())))
        return where

    def _spellings(self) -> set[str]:
        """The text, and as JSON writes it: a payload may hold its letters escaped."""
        text = self._text
        return {text, json.dumps(text)[1:-1].lower(), json.dumps(text, ensure_ascii=False)[1:-1]}


def _contains(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    return func.lower(cast(column, Text)).contains(text, autoescape=True)
