"""Reading: tasks, their history, and how many there are in which state."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Integer, Select, Uuid, and_, false, func, literal_column, select, true

from redrive.core.states import State
from redrive.core.task import Attempt, Deed, Task, TaskId
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.base import LedgerBase
from redrive.ledgers.sql.times import comparable
from redrive.ports import Page, Where

PAGE_MAX = 1000


class Reading(LedgerBase):
    """The part of a ledger that shows what is there."""

    async def find(
        self, where: Where, *, after: TaskId | None = None, limit: int = 100, newest_first: bool = False
    ) -> Page:
        """See `LedgerReader.find`."""
        if not 1 <= limit <= PAGE_MAX:
            raise UsageError(f"limit must lie between 1 and {PAGE_MAX}, not {limit!r}")
        return await self.database.read(self._find, where, after, limit, newest_first=newest_first)

    def _find(
        self, connection: Connection, where: Where, after: TaskId | None, limit: int, *, newest_first: bool
    ) -> Page:
        id_ = self._mapped.id
        statement = select(*self._mapped.table.c).where(self._condition(where))
        if after is not None:
            statement = statement.where(id_ < after if newest_first else id_ > after)
        statement = statement.order_by(id_.desc() if newest_first else id_).limit(limit + 1)
        age = {} if where.older_than is None else self._age(where.older_than)
        tasks = [self._reader.task(row) for row in connection.execute(statement, age)]
        return Page(tasks=tasks[:limit], after=tasks[limit - 1].id if len(tasks) > limit else None)

    def _condition(self, where: Where) -> Any:
        rows = self._mapped.rows
        asked: list[ColumnElement[bool]] = [true()]
        if where.state is not None:
            asked.append(rows.state(where.state))
        if where.kind is not None:
            asked.append(self._column("kind") == where.kind)
        if where.key is not None:
            value = self._key_value(where.key)
            asked.append(false() if value is None else self._column("key") == value)
        if where.error is not None:
            asked.append(self._column("last_error").contains(where.error, autoescape=True))
        if where.ids is not None:
            asked.append(self._mapped.id.in_(where.ids))
        if where.older_than is not None:
            role = "updated_at" if self._mapped.has("updated_at") else "created_at"
            column = self._column(role)
            asked.append(comparable(column) <= self._mapped.dialect.ago(column))
        return and_(*asked)

    def _key_value(self, key: str) -> Any:
        """The key as the key column holds it; None if it cannot."""
        try:
            return self._key_from_text(key)
        except ValueError:
            return None

    def read_id(self, text: str) -> TaskId:
        """The id that a person wrote, in the type of the id column."""
        read: Callable[[str], TaskId]
        match self._mapped.id.type:
            case Integer():
                read, kind = _number, "a number"
            case Uuid():
                read, kind = UUID, "a UUID"
            case _:
                read, kind = _text, "text without NUL"
        try:
            return read(text)
        except ValueError:
            raise UsageError(f"an id of {self.name!r} is {kind}, not {text!r:.80}") from None

    async def get(self, id: TaskId) -> Task | None:
        """See `LedgerReader.get`."""
        page = await self.find(Where(ids=[id]), limit=1)
        return page.tasks[0] if page.tasks else None

    async def get_by_key(self, key: str) -> Task | None:
        """See `LedgerReader.get_by_key`."""
        page = await self.find(Where(key=key), limit=1)
        return page.tasks[0] if page.tasks else None

    async def attempts(self, id: TaskId) -> list[Attempt]:
        """See `LedgerReader.attempts`."""
        return await self.database.read(self._attempts, id)

    def _attempts(self, connection: Connection, id: TaskId) -> list[Attempt]:
        t = schema.attempt
        found = select(t).where(t.c.ledger == self.name, t.c.task_id == str(id)).order_by(t.c.ended_at, t.c.number)
        return [
            Attempt(
                claim_id=row.claim_id, number=row.number, started_at=row.started_at, ended_at=row.ended_at,
                outcome=row.outcome, state=State(row.state), worker=row.worker,
                duration=timedelta(seconds=row.duration_seconds),
                delay=None if row.delay_seconds is None else timedelta(seconds=row.delay_seconds),
                error_class=row.error_class, error=row.error, explanation=row.explanation,
            )
            for row in connection.execute(found)
        ]  # fmt: skip

    async def deeds(self, id: TaskId) -> list[Deed]:
        """See `LedgerReader.deeds`."""
        return await self.database.read(self._deeds, id)

    def _deeds(self, connection: Connection, id: TaskId) -> list[Deed]:
        t = schema.deed
        found = select(t).where(t.c.ledger == self.name, t.c.task_id == str(id)).order_by(t.c.id)
        return [Deed(at=row.at, act=row.act, actor=row.actor, reason=row.reason) for row in connection.execute(found)]

    async def counts(self, *, counted_max: int = 100_000) -> Mapping[State, int]:
        """See `LedgerReader.counts`."""
        return await self.database.read(self._counts, counted_max)

    def _counts(self, connection: Connection, counted_max: int) -> dict[State, int]:
        counted = {}
        for state in State:
            few: Select[Any] = select(literal_column("1")).where(self._mapped.rows.state(state)).limit(counted_max)
            rows = few.select_from(self._mapped.table).subquery()
            counted[state] = connection.execute(select(func.count()).select_from(rows)).scalar_one()
        return counted


def _number(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("no database column holds it")
    return number


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL takes none in a text")
    return text
