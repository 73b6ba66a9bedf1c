"""For how many webhooks the queue has room: counted anew only where what was counted before leaves a doubt.

A count looks at each webhook that waits, which costs as much as to store one where the queue is deep. Where a database tells how much was
written since the last count (`Database.changes`), no more can be due now than waited then, due or not, and one for each row that was written. As
long as even those leave room, nothing is counted.
"""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, Select, bindparam, func, literal_column, select

from redrive.extend import Database, When
from redrive.sql import Changes, Compiled, comparable
from redrive.systems.webhooks.tables import due_since, events


class _Count(NamedTuple):
    waiting: int
    at: Changes


class Room:
    """The room of one queue, which refuses while more than its size are due: so one more than the size fits in."""

    def __init__(self, database: Database, size: int) -> None:
        self._database = database
        self._size = size
        pending = events.c.status == literal_column("'pending'")
        present = database.dialect.now() if database.server_clock else comparable(bindparam("now", type_=When))
        self._due = Compiled(_few(pending, due_since <= present))
        self._waiting = Compiled(_few(pending))
        self._last: _Count | None = None
        fits = _few(pending, due_since <= present).scalar_subquery() + bindparam("wanted", type_=Integer) <= size + 1
        self.condition: ColumnElement[bool] = fits
        """As `is_for`, within the statement that stores them."""

    def wanted(self, wanted: int) -> dict[str, Any]:
        """The parameters of the condition."""
        return {**self._now(), "wanted": wanted, "counted_max": self._size + 1}

    def is_for(self, connection: Connection, wanted: int) -> bool:
        """Whether so many fit in. In the transaction that stores them."""
        changes = self._database.changes(connection)
        if self._last is not None and changes is not None:
            written = changes.since(self._last.at)
            if written is not None and self._last.waiting + written + wanted <= self._size + 1:
                return True
        if changes is not None:
            self._last = _Count(self._waiting.scalar(connection, {"counted_max": self._size + 1}), changes)
        return self.due(connection, self._size + 1) + wanted <= self._size + 1

    def due(self, connection: Connection, counted_max: int) -> int:
        """How many wait and are due. No more are looked at than are counted."""
        counted: int = self._due.scalar(connection, {**self._now(), "counted_max": counted_max})
        return counted

    def _now(self) -> dict[str, Any]:
        return {} if self._database.server_clock else {"now": self._database.now()}


def _few(*where: ColumnElement[bool]) -> Select[Any]:
    few: Any = select(literal_column("1")).select_from(events).where(*where).limit(bindparam("counted_max"))
    return select(func.count()).select_from(few.subquery())
