"""How much a gate or a pause keeps back: due tasks, counted in the indexes up to a limit, however many there are."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    and_,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from redrive.core.task import TaskId
from redrive.ledgers.sql.base import LedgerBase


class Parking(LedgerBase):
    """The part of a ledger that counts what is kept back."""

    def parked_behind(self, connection: Connection, gate: str, most: int) -> int:
        """The due tasks among the first `most` that wait behind a gate."""
        some = self._behind(gate, most)
        return self._count_due(connection, some, some.c.due <= self._present)

    def parked_before(self, connection: Connection, gate: str, id: TaskId, most: int) -> int:
        """Those of them that go before this task: by their band, then by their due time, then by their id."""
        rows, some = self._mapped.rows, self._behind(gate, most)
        mine = select(rows.band().label("band"), rows.gated_due().label("due")).where(self._mapped.id == id).subquery()
        same = and_(some.c.band == mine.c.band, some.c.due == mine.c.due, some.c.id < id)
        sooner = or_(some.c.band < mine.c.band, and_(some.c.band == mine.c.band, some.c.due < mine.c.due), same)
        beside = some.join(mine, literal_column("1 = 1"))
        return self._count_due(connection, beside, some.c.due <= self._present, sooner)

    def parked_kinds(self, connection: Connection, kind: str | None, most: int) -> int | None:
        """The due tasks among the first `most` of a kind, or of all; None where they wait in queues."""
        rows, branches = self._mapped.rows, []
        held = [(rows.first_due(), rows.first_tries()), (rows.retry_due(), rows.retries())]
        if rows.has_gates:
            held.append((rows.gated_due(), rows.gated()))
        for due, where in held:
            branch = select(due.label("due")).where(where)
            if kind is not None and self._mapped.has("kind"):
                branch = branch.where(rows.column("kind") == kind, due <= self._present)
            branches.append(select(branch.limit(most).subquery()))
        some = select(union_all(*branches).subquery()).limit(most).subquery()
        return self._count_due(connection, some, some.c.due <= self._present)

    @property
    def _present(self) -> ColumnElement[Any]:
        return self._mapped.dialect.present(self._mapped.rows.column("due"))

    def _behind(self, gate: str, most: int) -> Any:
        rows = self._mapped.rows
        some = select(self._mapped.id.label("id"), rows.band().label("band"), rows.gated_due().label("due"))
        return some.where(rows.gated(), rows.gate() == gate).limit(most).subquery("some")

    def _count_due(self, connection: Connection, some: FromClause, *where: ColumnElement[bool]) -> int:
        counted = select(func.count(literal_column("1", Integer)).filter(and_(*where))).select_from(some)
        return int(connection.execute(counted, self._times()).scalar_one())
