"""Settling in several statements of one transaction: the rows, then the history and the rollup of those that were written."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, and_

from redrive.core.decide import Settlement
from redrive.core.task import TaskId
from redrive.ledgers.rollup import MEASURED, rolled_up
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.gate_reading import settle_gates
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.seam import Dialect, SettleRows


class SettleInSteps(ABC):
    """Writes settlements in three statements, and in more where tasks have gates."""

    one_statement = False

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        self._dialect = dialect
        self._rows = rows
        self._batch = Batch(dialect, rows.columns)
        ours = and_(self._batch.match("id", rows.id), rows.fence == self._batch.rows.c.claim_id)
        self._update = rows.update(self._batch.rows, ours).returning(rows.id)
        self._roll_up = add_up(dialect.insert(schema.minute), MEASURED)

    def write(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        *,
        ledger: str,
        worker: str,
        now: datetime | None,
        wait: bool,
    ) -> Sequence[Settlement]:
        """See `SettleWriter.write`."""
        present = self._begin(connection, now, wait=wait)
        batch = self._batch.parameters([self._rows.values(one, now) for one in settlements])
        written = set(connection.execute(self._update, batch | self._dialect.times(now)).scalars())
        settled = settlements if len(written) == len(settlements) else _of(settlements, written)
        if settled:
            self._write_history(connection, settled, ledger, worker, present)
            minute = {"minute": present.replace(second=0, microsecond=0), "ledger": ledger, "worker": worker}
            connection.execute(self._roll_up, {**rolled_up(settled), **minute})
            if self._rows.has_gates:
                settle_gates(connection, ledger, settled, present)
        return [] if settled is settlements else [one for one in settlements if one.claim.task.id not in written]

    @abstractmethod
    def _begin(self, connection: Connection, now: datetime | None, *, wait: bool) -> datetime:
        """Whatever must be said first; the instant at which these settlements end."""

    @abstractmethod
    def _write_history(
        self, connection: Connection, settled: Sequence[Settlement], ledger: str, worker: str, ended_at: datetime
    ) -> None:
        """Write an attempt for each of them."""


def _of(settlements: Sequence[Settlement], ids: set[TaskId]) -> list[Settlement]:
    return [one for one in settlements if one.claim.task.id in ids]
