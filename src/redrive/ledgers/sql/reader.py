"""Reading: tasks, their history, and how many there are in which state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Integer, ScalarSelect, Select, Uuid, func, literal_column, select

from redrive.core.stack import Raised
from redrive.core.states import State
from redrive.core.task import Attempt, Deed, Task, TaskId
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.base import LedgerBase
from redrive.ledgers.sql.conditions import Conditions
from redrive.ledgers.sql.rows import RowReader
from redrive.ledgers.sql.sift import is_unreadable, sift
from redrive.ledgers.sql.stacks import read_stacks
from redrive.ports import Filter, Page, check_limit


class Reading(LedgerBase):
    """The part of a ledger that shows what is there."""

    @cached_property
    def conditions(self) -> Conditions:
        """What rows must fulfil to match a filter."""
        return Conditions(self.name, self._mapped.rows)

    async def find(
        self, filter: Filter, *, cursor: TaskId | None = None, limit: int = 100, newest_first: bool = False
    ) -> Page[Task]:
        """See `LedgerReader.find`."""
        check_limit(limit)
        self.conditions.check(filter)
        return await self.database.read(self._find, filter, cursor, limit, newest_first=newest_first)

    def _find(
        self, connection: Connection, filter: Filter, cursor: TaskId | None, limit: int, *, newest_first: bool
    ) -> Page[Task]:
        id_ = self._mapped.id
        where = self.conditions.of(filter, lambda: self.present(connection))
        statement = select(*self._mapped.table.c).where(*where)
        if cursor is not None:
            statement = statement.where(id_ < cursor if newest_first else id_ > cursor)
        statement = statement.order_by(id_.desc() if newest_first else id_).limit(limit + 1)
        try:
            tasks = self._reader.tasks(connection.execute(statement).all())
        except Exception as error:
            if not is_unreadable(error):
                raise
            ids = connection.execute(statement.with_only_columns(id_)).scalars().all()
            tasks = [self._reader.sifted_task(row) for row in sift(connection, self._mapped.table.c, id_, ids)]
        return Page(items=tasks[:limit], cursor=tasks[limit - 1].id if len(tasks) > limit else None)

    @cached_property
    def _standing(self) -> tuple[RowReader, Sequence[Any]]:
        """What says where a row stands, without what it carries."""
        roles = ("id", "key", "status", "count", "due", "lease_until")
        columns = list({self._mapped.rows.column(role).name: self._mapped.rows.column(role) for role in roles}.values())
        return RowReader(self.table, columns), columns

    def standing(self, connection: Connection, ids: Sequence[TaskId]) -> dict[TaskId, tuple[State, int]]:
        """The state and the failures of these rows, of those that are there."""
        reader, columns = self._standing
        try:
            tasks = reader.tasks(connection.execute(select(*columns).where(self._mapped.id.in_(ids))).all())
        except Exception as error:
            if not is_unreadable(error):
                raise
            tasks = [reader.sifted_task(row) for row in sift(connection, columns, self._mapped.id, ids)]
        return {task.id: (task.state, task.failures) for task in tasks}

    def unchanged(self, connection: Connection, asked: Filter, ids: Sequence[TaskId]) -> set[TaskId]:
        """Those of these rows that match a filter, as it was when it was frozen."""
        where = self.conditions.of(replace(asked, ids=ids), lambda: self.present(connection))
        return set(connection.execute(select(self._mapped.id).where(*where)).scalars())

    def payload_of(self, connection: Connection, id: TaskId) -> Any:
        """The payload of one row, as its column holds it."""
        return connection.execute(select(self._column("payload")).where(self._mapped.id == id)).scalar_one()

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
        page = await self.find(Filter(ids=[id]), limit=1)
        return page.items[0] if page.items else None

    async def get_by_key(self, key: str) -> Task | None:
        """See `LedgerReader.get_by_key`."""
        page = await self.find(Filter(key=key), limit=1)
        return page.items[0] if page.items else None

    async def named(self, names: Sequence[str]) -> dict[str, set[TaskId]]:
        """The tasks that have each name as their id or as their key: none, one or two."""
        return await self.database.read(self._named, names)

    def _named(self, connection: Connection, names: Sequence[str]) -> dict[str, set[TaskId]]:
        by_id, by_key = self._named_by_id(connection, names), self._named_by_key(connection, names)
        return {name: {*by_id.get(name, ()), *by_key.get(name, ())} for name in names}

    def _named_by_id(self, connection: Connection, names: Sequence[str]) -> dict[str, list[TaskId]]:
        read = dict[TaskId, list[str]]()
        for name in names:
            try:
                read.setdefault(self.read_id(name), []).append(name)
            except UsageError:
                continue  # no id of this table could look so
        id_ = self._mapped.id
        found = connection.execute(select(id_).where(id_.in_(list(read)))).scalars()
        return {name: [one] for one in found for name in read[one]}

    def _named_by_key(self, connection: Connection, names: Sequence[str]) -> dict[str, list[TaskId]]:
        read = dict[object, list[str]]()
        for name in names:
            if (value := self.conditions.key_value(name)) is not None:
                read.setdefault(value, []).append(name)
        key, id_ = self._mapped.rows.column("key"), self._mapped.id
        found = dict[str, list[TaskId]]()
        for value, one in connection.execute(select(key, id_).where(key.in_(list(read)))):
            for name in read[value]:
                found.setdefault(name, []).append(one)
        return found

    async def attempts(self, id: TaskId) -> list[Attempt]:
        """See `LedgerReader.attempts`."""
        return await self.database.read(self.attempts_on, id)

    def attempts_on(self, connection: Connection, id: TaskId) -> list[Attempt]:
        """The same on somebody's connection."""
        t = schema.attempt
        found = select(t).where(t.c.ledger == self.name, t.c.task_id == str(id)).order_by(t.c.ended_at, t.c.number)
        found = found.order_by(t.c.started_at)  # a run that was lost, and the next one of the same number
        rows = connection.execute(found).all()
        named = [(row.explanation or {}).get("stack", "") for row in rows]
        stacks = read_stacks(connection, {*filter(None, named)})
        return [attempt_of_row(row, stacks.get(name, ())) for row, name in zip(rows, named, strict=True)]

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
        # One statement, so that a task that changes its state meanwhile is counted once.
        counted = connection.execute(select(*(self._count(state, counted_max) for state in State))).one()
        return dict(zip(State, counted, strict=True))

    def _count(self, state: State, counted_max: int) -> ScalarSelect[int]:
        few: Select[Any] = select(literal_column("1")).where(self._mapped.rows.state(state)).limit(counted_max)
        rows = few.select_from(self._mapped.table).subquery()
        return select(func.count()).select_from(rows).scalar_subquery()


def _number(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("no database column holds it")
    return number


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL takes none in a text")
    return text


def attempt_of_row(row: Any, stack: Sequence[Raised] = ()) -> Attempt:
    """The try that a row of the history stands for; the row has the columns of the table by name."""
    return Attempt(
        claim_id=row.claim_id, number=row.number, started_at=row.started_at, ended_at=row.ended_at,
        outcome=row.outcome, state=State(row.state), worker=row.worker,
        duration=timedelta(seconds=row.duration_seconds),
        delay=None if row.delay_seconds is None else timedelta(seconds=row.delay_seconds),
        error_class=row.error_class, error=row.error, explanation=row.explanation, stack=stack,
        version=row.version,
    )  # fmt: skip
