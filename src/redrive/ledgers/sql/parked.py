"""How much a gate or a pause keeps back: due tasks, counted in the indexes up to a limit, however many there are."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from redrive.core.task import TaskId
from redrive.ledgers.sql.base import LedgerBase

_MOST: Any = bindparam("most", type_=Integer)


class Parking(LedgerBase):
    """The part of a ledger that counts what is kept back."""

    def parked_behind(self, connection: Connection, gate: str, most: int) -> int:
        """The due tasks among the first `most` that wait behind a gate."""
        return self._counted(connection, self._count_behind, gate=gate, most=most)

    async def parked_amounts(self, gates: Sequence[str], most: int) -> dict[str, int]:
        """The same of several gates."""
        return await self.database.read(self._parked_amounts, gates, most)

    def _parked_amounts(self, connection: Connection, gates: Sequence[str], most: int) -> dict[str, int]:
        return {gate: self.parked_behind(connection, gate, most) for gate in gates}

    def parked_before(self, connection: Connection, gate: str, id: TaskId, most: int) -> int:
        """Those of them that go before this task: by their band, then by their due time, then by their id."""
        rows, some = self._mapped.rows, self._behind
        mine = select(rows.band().label("band"), rows.gated_due().label("due")).where(self._mapped.id == id).subquery()
        same = and_(some.c.band == mine.c.band, some.c.due == mine.c.due, some.c.id < id)
        sooner = or_(some.c.band < mine.c.band, and_(some.c.band == mine.c.band, some.c.due < mine.c.due), same)
        beside = some.join(mine, literal_column("1 = 1"))
        return self._counted(connection, self._count_due(beside, some.c.due, sooner), gate=gate, most=most)

    def parked_kinds(self, connection: Connection, kind: str | None, most: int) -> int | None:
        """The due tasks among the first `most` of a kind, or of all; None where they wait in queues."""
        rows, branches = self._mapped.rows, []
        held = [(rows.first_due(), rows.first_tries()), (rows.retry_due(), rows.retries())]
        if rows.has_gates:
            held.append((rows.gated_due(), rows.parked()))
        for due, where in held:
            branch = select(due.label("due")).where(where)
            if kind is not None and self._mapped.has("kind"):
                branch = branch.where(rows.column("kind") == kind, due <= self._present)
            branches.append(select(branch.limit(_MOST).subquery()))
        some = select(union_all(*branches).subquery()).limit(_MOST).subquery()
        return self._counted(connection, self._count_due(some, some.c.due), most=most)

    @property
    def _present(self) -> ColumnElement[Any]:
        return self._mapped.dialect.present(self._mapped.rows.column("due"))

    @cached_property
    def _behind(self) -> Any:
        rows = self._mapped.rows
        some = select(self._mapped.id.label("id"), rows.band().label("band"), rows.gated_due().label("due"))
        mine = rows.gate() == bindparam("gate", type_=Text)
        return some.where(rows.gated(), mine).limit(_MOST).subquery("some")

    @cached_property
    def _count_behind(self) -> Select[Any]:
        """Built once: a page counts for each of its gates."""
        return self._count_due(self._behind, self._behind.c.due)

    def _count_due(self, some: FromClause, due: ColumnElement[Any], *where: ColumnElement[bool]) -> Select[Any]:
        amount = func.count(literal_column("1", Integer)).filter(and_(due <= self._present, *where))
        return select(amount).select_from(some)

    def _counted(self, connection: Connection, statement: Select[Any], **known: Any) -> int:
        return int(connection.execute(statement, self._times() | known).scalar_one())
