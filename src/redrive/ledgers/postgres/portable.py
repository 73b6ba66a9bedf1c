"""The portable form: what any engine with PostgreSQL's protocol and serializable transactions can run (`?claim=portable`).

It locks no rows, skips none, sends no `NOTIFY`, takes no advisory lock, and writes one table in a statement. Of two transactions that
want the same task the engine takes one back (SQLSTATE 40001), and that one is tried again: the row that was read is compared by the engine, and
set only if nobody was quicker. Workers find new work by their poll.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy
from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    FromClause,
    Table,
    Text,
    bindparam,
    delete,
    event,
    insert,
    select,
)
from sqlalchemy.dialects.postgresql.asyncpg import PGCompiler_asyncpg, PGDialect_asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine

from redrive.core.decide import Settlement
from redrive.core.task import TaskId
from redrive.ledgers.postgres.address import PostgresAddress
from redrive.ledgers.postgres.database import PostgresDatabase
from redrive.ledgers.postgres.dialect import LOCK_PATIENCE, PostgresDialect, limit_locks
from redrive.ledgers.postgres.portable_gates import PortableGateClaim
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.gate_rows import GateRows
from redrive.ledgers.sql.seam import Dialect, Parameters, SettleRows
from redrive.ledgers.sql.settle import started_at
from redrive.ledgers.sql.settle_steps import SettleInSteps, without

P = ParamSpec("P")
R = TypeVar("R")


class _WithoutLocks(PGCompiler_asyncpg):
    """Statements as PostgreSQL has them, but for what locks rows: as on SQLite, nothing is said of it."""

    def for_update_clause(self, select: Any, **kw: Any) -> str:  # noqa: ARG002
        """Nothing."""
        return ""


class PortableSettle(SettleInSteps):
    """Writes settlements in three statements."""

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        super().__init__(dialect, rows)
        explained = dialect.json(bindparam("explained", type_=Text), schema.attempt.c.explanation.type)
        self._record = insert(schema.attempt).values(explanation=explained)
        self._ask_now = select(dialect.now())

    def _begin(self, connection: Connection, now: datetime | None, *, wait: bool) -> datetime:  # noqa: ARG002 - see `make_engine`
        present: datetime = now or connection.execute(self._ask_now).scalar_one()
        return present

    def _end(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        now: datetime | None,
        said: Parameters,
        parts: None,  # noqa: ARG002 - nothing is prepared here
    ) -> set[TaskId]:
        left = self._update(connection, settlements, now)
        if settled := without(settlements, left):
            connection.execute(self._record, [_attempt(one) | said for one in settled])
        return left


def _attempt(settlement: Settlement) -> dict[str, Any]:
    claim, outcome, state, _, delay, error, explained, elapsed, _ = settlement
    return {
        "task_id": str(claim.task.id),
        "claim_id": claim.claim_id,
        "number": claim.task.failures + 1,
        "started_at": started_at(claim),
        "outcome": outcome,
        "state": state.value,
        "duration_seconds": elapsed.total_seconds(),
        "delay_seconds": None if delay is None else delay.total_seconds(),
        "error_class": None if explained is None else explained.error_class.value,
        "error": error,
        "explained": None if explained is None else explained.json_text(),
    }


class PortableDialect(PostgresDialect):
    """See `Dialect`."""

    has_partitions = False
    writes_together = False

    def move(
        self, table: Table, where: ColumnElement[bool]
    ) -> tuple[FromClause, list[ColumnElement[bool]], list[Delete]]:
        """See `Dialect.move`: read, then deleted. Whoever writes in between takes this back."""
        return table, [where], [delete(table).where(where)]

    def together(self, first: sqlalchemy.Insert, then: sqlalchemy.Insert) -> Sequence[sqlalchemy.Insert]:
        """See `Dialect.together`: one after the other."""
        return [first, then]

    def settle(self, rows: SettleRows) -> PortableSettle:  # type: ignore[override]
        """See `Dialect.settle`."""
        return PortableSettle(self, rows)

    def gate_claim(self, rows: GateRows) -> PortableGateClaim:  # type: ignore[override]
        """See `Dialect.gate_claim`."""
        return PortableGateClaim(self, rows)

    def lock_migrations(self, connection: Connection) -> None:
        """Two migrations at once write the same versions, and one of them is taken back."""
        self.make_schema(connection)

    def wait_briefly(self, connection: Connection, span: timedelta) -> None:
        """See `Dialect.wait_briefly`: not every such engine tells who is in the way."""
        limit_locks(connection, span)


class PortableDatabase(PostgresDatabase):
    """An engine that speaks as PostgreSQL does, as a `Database`."""

    isolation = "SERIALIZABLE"
    user_isolation = "SERIALIZABLE"
    tries_max = 40
    dialect_class = PortableDialect
    lifts_limits = False

    async def statement(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.statement`: in a transaction that says how it is isolated."""
        return await self.write(run, *args, **kwargs)

    async def read(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.read`."""
        return await self._in_autocommit(run, *args, **kwargs)

    async def scan(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Database.scan`: there is no setting for it that every engine knows."""
        return await self._in_autocommit(run, *args, **kwargs)

    async def describe(self) -> str:
        """See `Database.describe`."""
        return f"{await super().describe()}, portable claims"

    async def find_listen(self) -> PostgresAddress | None:
        """Nowhere."""
        return None

    async def advice(self) -> Sequence[tuple[str, str]]:
        """See `Database.advice`: that nobody is woken is what was chosen."""
        return self._url_advice()

    def announce(self, connection: Connection, ledger: str, *, soon: bool) -> None:
        """See `Database.announce`: nobody hears of it."""

    def make_engine(self, role: str = "", **options: Any) -> AsyncEngine:
        """See `PostgresDatabase.make_engine`."""
        engine = super().make_engine(role, **options)
        dialect = engine.sync_engine.dialect
        assert isinstance(dialect, PGDialect_asyncpg)
        dialect.statement_compiler = _WithoutLocks  # of this engine alone
        if not role:  # what is locked cannot be skipped: our own statements wait for it only briefly, and are then sent for each row
            event.listen(engine.sync_engine, "connect", self._be_impatient)
        return engine

    def _be_impatient(self, connection: Any, _record: Any) -> None:
        if not self._pooled:  # a pooler would hand the setting on to others
            connection.run_async(lambda driver: driver.execute(f"SET lock_timeout = '{LOCK_PATIENCE}'"))
