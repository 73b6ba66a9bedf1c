"""Settling on PostgreSQL: rows, history and rollup in one statement, which is one round trip and commits by itself.

The rollup that travels with it is that of the whole batch, and is written if every row was. Only where the fence refused some
do the counters of the others follow in a second statement.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    Integer,
    Text,
    Uuid,
    bindparam,
    cast,
    extract,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY

from redrive.core.decide import Settlement
from redrive.core.task import TaskId
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.rollup import COUNTED, MEASURED, rolled_up
from redrive.ledgers.sql.seam import Columns, Dialect, Parameters, SettleRows
from redrive.ledgers.sql.settle import started_at
from redrive.ledgers.sql.times import Instant, comparable


class PostgresSettle:
    """Writes settlements in one statement."""

    one_statement = True

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        self._dialect = dialect
        self._rows = rows
        history: Columns = {"number": Integer(), "duration": Float(), "error_class": Text(), "explanation": Text()}
        start: Columns = {} if rows.started_at is not None else {"started_at": Instant()}
        self._batch = Batch(dialect, {**rows.columns, **history, **start})
        self._statement = self._build()
        self._roll_up = self._build_rollup(true())

    def write(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        *,
        ledger: str,
        worker: str,
        now: datetime | None,
    ) -> set[TaskId]:
        """See `SettleWriter.write`."""
        said = {"ledger": ledger, "worker": worker, **self._dialect.times(now)}
        batch = self._batch.parameters([self._values(one, now) for one in settlements])
        parameters = batch | _rollup(settlements) | said | {"amount": len(settlements)}
        written = set(connection.execute(self._statement, parameters).scalars())
        if 0 < len(written) < len(settlements):
            settled = [one for one in settlements if one.claim.task.id in written]
            connection.execute(self._roll_up, _rollup(settled) | said)
        return written

    def _values(self, settlement: Settlement, now: datetime | None) -> tuple[Any, ...]:
        explained, claim = settlement.explanation, settlement.claim
        error_class = explanation = None
        if explained is not None:
            error_class, explanation = explained.error_class, explained.json_text()
        history = claim.task.failures + 1, settlement.elapsed.total_seconds(), error_class, explanation
        values = self._rows.values(settlement, now) + history
        return values if self._rows.started_at is not None else (*values, started_at(claim))

    def _build(self) -> Any:
        """End the claims, write the history, and add up the minute if all of them were ours."""
        batch, rows = self._batch.rows, self._rows
        began = batch.c.started_at if rows.started_at is None else rows.started_at
        names = (
            "id",
            "claim_id",
            "number",
            "outcome",
            "state",
            "duration",
            "delay",
            "error_class",
            "error",
            "explanation",
        )
        updated = rows.update(batch, self._batch.match("id", rows.id))
        settled = updated.returning(*(batch.c[name] for name in names), began.label("began")).cte("settled")
        c = settled.c
        fence = c.claim_id if isinstance(c.claim_id.type, Uuid) else cast(c.claim_id, Uuid)
        history = (
            insert(schema.attempt)
            .from_select(
                ["ledger", "task_id", "claim_id", "number", "started_at", "ended_at", "outcome", "state", "worker",
                 "duration_seconds", "delay_seconds", "error_class", "error", "explanation"],
                select(
                    bindparam("ledger", type_=Text), cast(c.id, Text), fence, c.number,
                    comparable(c.began), self._dialect.now(), c.outcome, c.state,
                    bindparam("worker", type_=Text), c.duration, extract("epoch", c.delay),
                    c.error_class, c.error, cast(c.explanation, schema.attempt.c.explanation.type),
                ),
            )
            .cte("history")
        )  # fmt: skip
        written: Any = select(func.count()).select_from(settled).scalar_subquery()
        all_written = written == bindparam("amount", type_=Integer)
        return select(c.id).add_cte(history, self._build_rollup(all_written).cte("rollup"))

    def _build_rollup(self, condition: ColumnElement[bool]) -> Any:
        # As one array: three dozen parameters take as long to bind as a small batch.
        amounts: Any = bindparam("amounts", type_=ARRAY(BigInteger)).label("amounts")
        said = select(amounts).subquery("said")
        row = select(
            self._dialect.minute(),
            bindparam("ledger", type_=Text),
            bindparam("worker", type_=Text),
            *(said.c.amounts[literal_column(str(position))] for position in range(1, len(COUNTED) + 1)),
            bindparam("run_seconds", type_=Float),
        ).where(condition)
        made = self._dialect.insert(schema.minute).from_select(["minute", "ledger", "worker", *MEASURED], row)
        return add_up(made, MEASURED)


def _rollup(settled: Sequence[Settlement]) -> Parameters:
    amounts = rolled_up(settled)
    return {"amounts": [amounts[name] for name in COUNTED], "run_seconds": amounts["run_seconds"]}
