"""What the verbs of a ledger share: its database, its table, and what is written beside it."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Integer, Table, Text, Uuid, bindparam, delete

from redrive.core.table import LedgerTable
from redrive.errors import UsageError
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.effects import SqlEffectMarks
from redrive.ledgers.sql.fences import Fences
from redrive.ledgers.sql.mapped import KEPT_BY, ForeignKey, Mapped
from redrive.ledgers.sql.minute import count_flow
from redrive.ledgers.sql.predicates import Predicates
from redrive.ledgers.sql.progress import SqlProgress
from redrive.ledgers.sql.rows import RowReader
from redrive.ledgers.sql.seam import Parameters

ANNOUNCE_HORIZON = timedelta(seconds=1)
"""Work due later than this is found by the safety poll in time; announcing it would only cost."""
IDS_MAX = 1000
"""How many ids one statement names."""


class LedgerBase:
    """A mapped table of a database."""

    def __init__(
        self, database: Database, mapped: Mapped, *, name: str | None = None, beside: Beside | None = None
    ) -> None:
        self.table: LedgerTable = mapped.ledger_table
        self.name = name or self.table.name
        self.database = database
        self.beside = beside or Beside()
        self._mapped = mapped
        self._reader = RowReader(self.table, mapped.table.columns)
        self._flows: dict[str, Compiled] = {}
        self._adder = f"add:{uuid4()}"
        key = mapped.rows.column("key").type
        self._key_from_text: Callable[[str], Any] = (
            int if isinstance(key, Integer) else UUID if isinstance(key, Uuid) else str
        )

    @cached_property
    def _fences(self) -> Fences:
        return Fences(self._mapped)

    @cached_property
    def effects(self) -> SqlEffectMarks | None:
        """See `Ledger.effects`."""
        return SqlEffectMarks(self.database, self.name, self._fences)

    @cached_property
    def progress(self) -> SqlProgress:
        """See `Ledger.progress`."""
        return SqlProgress(self.database, self.name, self._fences)

    _gates_seen = False
    """Whether there is known to be a gate, or was."""

    @property
    def has_gates(self) -> bool:
        """See `Ledger.has_gates`."""
        return self._mapped.rows.has_gates

    @property
    def predicates(self) -> Predicates:
        """Which rows of the table are in which state."""
        return self._mapped.rows

    @property
    def sql_table(self) -> Table:
        """The table as SQLAlchemy knows it."""
        return self._mapped.table

    @property
    def kept_by(self) -> Sequence[ForeignKey]:
        """The foreign keys that forbid to delete rows."""
        keys: Sequence[ForeignKey] = self._mapped.table.info.get(KEPT_BY, ())
        return keys

    def present(self, connection: Connection) -> datetime:
        """The instant, as this ledger's statements see it."""
        return self.database.present(connection)

    def count_added(self, connection: Connection, amount: int, *, worker: str) -> None:
        """Write down that tasks were added, where `add` did not do it."""
        self._count_flow(connection, "added", amount, worker)

    def _now(self) -> datetime | None:
        """The instant, where the database does not take its own."""
        return None if self.database.server_clock else self.database.now()

    def _times(self, **spans: timedelta | None) -> Parameters:
        return self._mapped.dialect.times(self._now(), **spans)

    def _age(self, age: timedelta) -> Parameters:
        return self._mapped.dialect.age(self._now(), age)

    def _column(self, role: str) -> Any:
        if not self._mapped.has(role):
            raise UsageError(f"{self.name!r} has no column for {role}: name it in its LedgerTable to filter by it")
        return self._mapped.rows.column(role)

    def _count_flow(self, connection: Connection, name: str, amount: int, worker: str) -> None:
        parameters = {"ledger": self.name, "worker": worker, "amount": amount, **self._times()}
        if name not in self._flows:
            self._flows[name] = Compiled(count_flow(self._mapped.dialect, name))
        self._flows[name].rows(connection, parameters)

    def _forget(self, connection: Connection, ids: Sequence[str], *tables: Table) -> None:
        """Delete what some of our tables hold about tasks."""
        for start in range(0, len(ids), IDS_MAX):
            named = {"ledger": self.name, "task_ids": ids[start : start + IDS_MAX]}
            for table in tables:
                connection.execute(_forget(table), named)


def _forget(table: Table) -> Any:
    """Delete the history of pruned tasks from one of our tables."""
    named = table.c.task_id.in_(bindparam("task_ids", expanding=True))
    return delete(table).where(table.c.ledger == bindparam("ledger", type_=Text), named)
