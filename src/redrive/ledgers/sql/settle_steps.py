"""Settling in several statements of one transaction: the rows, then the history and the rollup of those that were written."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_

from redrive.core.decide import Settlement
from redrive.core.task import TaskId
from redrive.ledgers.build import build
from redrive.ledgers.rollup import MEASURED, rolled_up
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch, Shapes
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_reading import settle_gates
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.seam import Dialect, Parameters, Prepared, SettleRows


class Ending(NamedTuple):
    """How the claims of a batch are ended, where some of its columns are the same in all rows."""

    batch: Batch
    written: Compiled
    """The update, which returns the ids of what it wrote."""


class SettleInSteps(ABC):
    """Writes settlements in three statements or four, and in more where tasks have gates."""

    one_statement = False

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        self._dialect = dialect
        self._rows = rows
        self._endings = Shapes(rows.columns, self._ending)
        self._roll_up = Compiled(add_up(dialect.insert(schema.minute), MEASURED))

    def _ending(self, same: Collection[str]) -> Ending:
        rows = self._rows
        batch = Batch(self._dialect, rows.columns, same)
        ours = and_(batch.match("id", rows.id), rows.fence == batch.rows.c.claim_id)
        return Ending(batch, Compiled(rows.update(batch.rows, ours).returning(rows.id)))

    def prepare(self, settlements: Sequence[Settlement], now: datetime | None) -> Prepared | None:  # noqa: ARG002
        """See `SettleWriter.prepare`."""
        return None

    def write(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        *,
        ledger: str,
        worker: str,
        now: datetime | None,
        wait: bool,
        prepared: Prepared | None = None,
    ) -> Sequence[Settlement]:
        """See `SettleWriter.write`."""
        present = self._begin(connection, now, wait=wait)
        said = {"ledger": ledger, "worker": worker, "version": build(), "ended_at": present}
        left = self._end(connection, settlements, now, said, None if prepared is None else prepared.parts)
        settled = without(settlements, left)
        if settled:
            minute = {"minute": present.replace(second=0, microsecond=0), "ledger": ledger, "worker": worker}
            amounts = rolled_up(settled) if prepared is None or left else prepared.rolled_up
            self._roll_up.rows(connection, {**amounts, **minute})
            if self._rows.has_gates:
                settle_gates(connection, self._dialect, ledger, settled, present)
        return [] if not left else [one for one in settlements if one.claim.task.id in left]

    def _update(self, connection: Connection, settlements: Sequence[Settlement], now: datetime | None) -> set[TaskId]:
        """End the claims whose fence is still there; the ids of the others."""
        columns = self._rows.by_columns(settlements, now)
        ending = self._endings.of(columns)
        batch = ending.batch.of_columns(columns) | self._dialect.times(now)
        written = {row[0] for row in ending.written.rows(connection, batch)}
        ids = columns[0]
        return set() if len(written) == len(ids) else set(ids) - written

    @abstractmethod
    def _begin(self, connection: Connection, now: datetime | None, *, wait: bool) -> datetime:
        """Whatever must be said first; the instant at which these settlements end."""

    @abstractmethod
    def _end(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        now: datetime | None,
        said: Parameters,
        parts: Any,
    ) -> set[TaskId]:
        """End the claims whose fence is still there, and write an attempt for each; the ids of the others.

        `said` is what the attempts have in common, `parts` what was prepared of them.
        """


def without(settlements: Sequence[Settlement], left: Collection[TaskId]) -> Sequence[Settlement]:
    """The settlements of all other tasks."""
    return settlements if not left else [one for one in settlements if one.claim.task.id not in left]
