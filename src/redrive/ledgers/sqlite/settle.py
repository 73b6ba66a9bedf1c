"""Settling on SQLite, in few steps.

SQLite's driver gives the interpreter away at each step of a statement, and has to wait for it again while handlers run: for each
row of an `executemany`, and for each row that is returned. So each statement here writes all rows of a batch in one step and
returns nothing. See `sql/settle_steps.py`.

The history goes first, of those whose fence is still there: how many attempts were written says how many claims are ours. Nobody
else writes in the transaction, so they are ours when they are ended, too.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Integer,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    func,
    insert,
    select,
)

from redrive.core.decide import Settlement, explanation_texts
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.ledgers.rollup import rolled_up
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch, Shapes
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.seam import Columns, Dialect, Parameters, Prepared, SettleRows
from redrive.ledgers.sql.settle import started_at
from redrive.ledgers.sql.settle_steps import SettleInSteps
from redrive.ledgers.sql.times import Instant

_ATTEMPT: Columns = {
    "claim_id": Uuid(), "number": Integer(), "started_at": Instant(), "outcome": Text(), "state": Text(),
    "duration_seconds": Float(), "delay_seconds": Float(), "error_class": Text(), "error": Text(), "explanation": Text(),
}  # fmt: skip
PARTS_MAX = 8
"""More statements than so many would take longer than what they spare."""
_SAID: Columns = {"ledger": Text(), "worker": Text(), "version": Text(), "ended_at": Instant()}


class _Write(NamedTuple):
    """Of a batch, where some of its columns are the same in all rows."""

    batch: Batch
    statement: Compiled


class _Part(NamedTuple):
    """Settlements that are alike, and what is written of them: their history, and how their rows end."""

    settlements: Sequence[Settlement]
    record: Compiled
    recorded: Parameters
    end: Compiled
    ended: Parameters


class SqliteSettle(SettleInSteps):
    """Writes settlements in three statements: the history, the rows, the rollup. The first two for each part that is alike."""

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        super().__init__(dialect, rows)
        self._ends = Shapes(rows.columns, self._end_of)
        self._task_id = _as_text(rows.id)
        of_row: Columns = {"id": rows.id.type, "fence": rows.fence.type}
        self._recorded: Columns = {**of_row, **({} if self._task_id is not None else {"task_id": Text()}), **_ATTEMPT}
        self._records = Shapes(self._recorded, self._record)

    def _begin(self, connection: Connection, now: datetime | None, *, wait: bool) -> datetime:  # noqa: ARG002 - no rows are locked here
        assert now is not None
        return now

    def _end(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        now: datetime | None,
        said: Parameters,
        parts: Sequence[_Part] | None,
    ) -> set[TaskId]:
        left = set[TaskId]()
        for part in self._prepare(settlements, now) if parts is None else parts:
            # How many attempts are written is how many of them are ours.
            if part.record.changed(connection, part.recorded | said) == len(part.settlements):
                part.end.changed(connection, part.ended)
            else:
                left |= self._update(connection, part.settlements, now)
        return left

    def prepare(self, settlements: Sequence[Settlement], now: datetime | None) -> Prepared | None:
        """See `SettleWriter.prepare`: nobody else can write while the transaction lasts, so it should only write.

        What passes a gate is settled at the instant of its transaction, which may come much later.
        """
        if self._rows.has_gates and any(one.claim.task.gate is not None for one in settlements):
            return None
        assert now is not None
        return Prepared(now, self._prepare(settlements, now), rolled_up(settlements))

    def _prepare(self, settlements: Sequence[Settlement], now: datetime | None) -> list[_Part]:
        parts, times = [], self._dialect.times(now)
        for part in _parts(settlements):
            attempts, columns = _attempts(part, named=self._task_id is None), self._rows.by_columns(part, now)
            record, end = self._records.of(attempts), self._ends.of(columns)
            recorded, ended = record.batch.of_columns(attempts), end.batch.of_columns(columns) | times
            parts.append(_Part(part, record.statement, recorded, end.statement, ended))
        return parts

    def _end_of(self, same: Collection[str]) -> _Write:
        """The update of those that are ours."""
        rows, batch = self._rows, Batch(self._dialect, self._rows.columns, same)
        if len(rows.columns) > len(same) + 1:
            ours = and_(batch.match("id", rows.id), rows.fence == batch.rows.c.claim_id)
            return _Write(batch, Compiled(rows.update(batch.rows, ours)))
        # Only the ids are told apart: there is nothing to join.
        alike: Any = SimpleNamespace(**{name: batch.alike(name) for name in same})
        ids = func.json_each(bindparam("batch", type_=Text)).table_valued("value", name="each")
        ours = and_(rows.id.in_(select(ids.c.value)), rows.fence == alike.claim_id)
        updated: Any = rows.update(SimpleNamespace(c=alike), ours)  # type: ignore[arg-type]  # columns are all that it asks for
        return _Write(batch, Compiled(updated))

    def _record(self, same: Collection[str]) -> _Write:
        batch, rows = Batch(self._dialect, self._recorded, same), self._rows
        told = batch.rows.c
        task_id = told.task_id if self._task_id is None else self._task_id
        said = [bindparam(name, type_=type_) for name, type_ in _SAID.items()]
        ours = and_(batch.match("id", rows.id), rows.fence == told.fence)
        attempts = select(task_id, *(told[name] for name in _ATTEMPT), *said).where(ours)
        names = ["task_id", *_ATTEMPT, *_SAID]
        return _Write(batch, Compiled(insert(schema.attempt).from_select(names, attempts, include_defaults=False)))


def _parts(settlements: Sequence[Settlement]) -> Collection[Sequence[Settlement]]:
    """The settlements in parts that are alike but for how long they took and, mostly, for nothing else.

    What differs travels as JSON, and SQLite reads a row of it anew for each column: a group of which half is done and half has failed takes
    four times as long as its two halves.
    """
    parts: dict[tuple[int, str, State, int], list[Settlement]] = {}
    for one in settlements:
        # The fence of a claim is one object for all of its tasks: that tells parts apart as well as its value, and quicker.
        alike = id(one.claim.claim_id), one.outcome, one.state, one.failures
        parts.setdefault(alike, []).append(one)
    return parts.values() if len(parts) <= PARTS_MAX else [settlements]


def _as_text(id_: ColumnElement[Any]) -> ColumnElement[str] | None:
    """The id of a row as Python would write it; None where SQLite would write it in another way."""
    if isinstance(id_.type, Integer):
        return cast(id_, Text)
    return id_ if isinstance(id_.type, Text) else None


def _attempts(settled: Sequence[Settlement], *, named: bool) -> list[Sequence[Any]]:
    """The history of settlements by columns: rows and fences, the text of their ids if they have to be `named`, and then as in `_ATTEMPT`."""
    claims, outcomes, states, _, delays, errors, explained, elapsed, _ = zip(*settled, strict=True)
    ids, fences = [claim.task.id for claim in claims], [claim.claim_id for claim in claims]
    return [
        ids,
        fences,
        *([[str(id_) for id_ in ids]] if named else []),
        fences,
        [claim.task.failures + 1 for claim in claims],
        [started_at(claim) for claim in claims],
        outcomes,
        states,
        [one.total_seconds() for one in elapsed],
        [None if delay is None else delay.total_seconds() for delay in delays],
        [None if one is None else one.error_class for one in explained],
        errors,
        explanation_texts(settled),
    ]
