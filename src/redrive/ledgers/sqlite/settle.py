"""Settling on SQLite, in few steps.

SQLite's driver gives the interpreter away at each step of a statement, and has to wait for it again while handlers run: for each
row of an `executemany`, and for each row that is returned. So each statement here writes all rows of a batch in one step and
returns nothing. See `sql/settle_steps.py`.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Float, Integer, Text, Uuid, bindparam, func, insert, select

from redrive.core.decide import Settlement
from redrive.core.task import TaskId
from redrive.ledgers.build import build
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch, Shapes
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.seam import Columns, Dialect, SettleRows
from redrive.ledgers.sql.settle import started_at
from redrive.ledgers.sql.settle_steps import Ending, SettleInSteps
from redrive.ledgers.sql.times import Instant

_ATTEMPT: Columns = {
    "task_id": Text(), "claim_id": Uuid(), "number": Integer(), "started_at": Instant(), "outcome": Text(), "state": Text(),
    "duration_seconds": Float(), "delay_seconds": Float(), "error_class": Text(), "error": Text(), "explanation": Text(),
}  # fmt: skip


class _Write(NamedTuple):
    """Of a batch, where some of its columns are the same in all rows."""

    batch: Batch
    statement: Compiled


class SqliteSettle(SettleInSteps):
    """Writes settlements in four statements: how many of them are ours, the rows, the history, the rollup."""

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        super().__init__(dialect, rows)
        self._updates = Shapes(rows.columns, self._update)
        self._fenced = {name: rows.columns[name] for name in ("id", "claim_id")}
        self._counts = Shapes(self._fenced, self._count)
        self._records = Shapes(_ATTEMPT, self._record, apart=("task_id",))

    def _begin(self, connection: Connection, now: datetime | None, *, wait: bool) -> datetime:  # noqa: ARG002 - no rows are locked here
        assert now is not None
        return now

    def _end(self, connection: Connection, values: Sequence[Sequence[Any]], now: datetime | None) -> set[TaskId]:
        # Nobody else writes in this transaction: what is ours now is ours when it is updated.
        fences = [row[:2] for row in values]
        count = self._counts.of(fences)
        if count.statement.scalar(connection, count.batch.parameters(fences)) != len(values):
            return super()._end(connection, values, now)
        update = self._updates.of(values)
        update.statement.rows(connection, update.batch.parameters(values) | self._dialect.times(now))
        return set()

    def _write_history(
        self, connection: Connection, settled: Sequence[Settlement], ledger: str, worker: str, ended_at: datetime
    ) -> None:
        attempts = [_attempt(one) for one in settled]
        record = self._records.of(attempts)
        said = {"ledger": ledger, "worker": worker, "version": build(), "ended_at": ended_at}
        record.statement.rows(connection, record.batch.parameters(attempts) | said)

    def _update(self, same: Collection[str]) -> _Write:
        ending: Ending = self._ending(same)
        return _Write(ending.batch, Compiled(ending.update))

    def _count(self, same: Collection[str]) -> _Write:
        batch, rows = Batch(self._dialect, self._fenced, same), self._rows
        ours = select(func.count()).where(batch.match("id", rows.id), rows.fence == batch.rows.c.claim_id)
        return _Write(batch, Compiled(ours))

    def _record(self, same: Collection[str]) -> _Write:
        batch = Batch(self._dialect, _ATTEMPT, same)
        said = {
            "ledger": bindparam("ledger", type_=Text),
            "worker": bindparam("worker", type_=Text),
            "version": bindparam("version", type_=Text),
            "ended_at": bindparam("ended_at", type_=Instant),
        }
        values = [*batch.rows.c, *said.values()]
        made = insert(schema.attempt).from_select([*_ATTEMPT, *said], select(*values), include_defaults=False)
        return _Write(batch, Compiled(made))


def _attempt(settlement: Settlement) -> tuple[Any, ...]:
    """The history of a settlement in the order of `_ATTEMPT`."""
    claim, outcome, state, _, delay, error, explained, elapsed, _ = settlement
    return (
        str(claim.task.id),
        claim.claim_id,
        claim.task.failures + 1,
        started_at(claim),
        outcome,
        state.value,
        elapsed.total_seconds(),
        None if delay is None else delay.total_seconds(),
        None if explained is None else explained.error_class.value,
        error,
        None if explained is None else explained.json_text(),
    )
