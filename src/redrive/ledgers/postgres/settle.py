"""Settling on PostgreSQL: rows, history and rollup in one statement, which is one round trip and commits by itself.

It writes all of a batch or nothing: the rollup that travels with it is that of the whole batch. Where the fence refuses some, or
somebody has locked their rows, nothing is written, and the others are sent once more, as a batch of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    Integer,
    Select,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    extract,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from redrive.core.decide import Settlement, explanation_texts
from redrive.core.gates import answer_of, fence_of
from redrive.errors import UsageError
from redrive.ledgers.build import build
from redrive.ledgers.postgres.gates import GATE_COLUMNS, settle_gates
from redrive.ledgers.rollup import COUNTED, MEASURED, rolled_up
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch, Shapes
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.seam import Columns, Dialect, Parameters, Prepared, SettleRows
from redrive.ledgers.sql.settle import started_at
from redrive.ledgers.sql.times import Instant, comparable

ROUNDS_MAX = 3
"""How often a batch is sent before what is left is for the next time: each time somebody was quicker."""


class _Shape(NamedTuple):
    """The statements for batches in which some columns are the same in all rows."""

    batch: Batch
    write: Compiled
    """It writes all of them or nothing, and says how many there were."""
    find_free: Compiled


class PostgresSettle:
    """Writes settlements in one statement."""

    one_statement = True

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        self._dialect = dialect
        self._rows = rows
        history: Columns = {"number": Integer(), "duration": Float(), "error_class": Text(), "explanation": Text()}
        start: Columns = {} if rows.started_at is not None else {"started_at": Instant()}
        plain = {**rows.columns, **history, **start}
        self._columns: Mapping[bool, Columns] = {False: plain, True: {**plain, **GATE_COLUMNS}}
        self._shapes = {
            (wait, gated): Shapes(self._columns[gated], partial(self._build, wait=wait, gated=gated))
            for wait in (False, True)
            for gated in (False, True)
        }

    def prepare(self, settlements: Sequence[Settlement], now: datetime | None) -> None:
        """See `SettleWriter.prepare`: nothing waits while this process prepares."""

    def write(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        *,
        ledger: str,
        worker: str,
        now: datetime | None,
        wait: bool,
        prepared: Prepared | None = None,  # noqa: ARG002 - there is none
    ) -> Sequence[Settlement]:
        """See `SettleWriter.write`."""
        gated = self._rows.has_gates and any(one.claim.task.gate is not None for one in settlements)
        shapes = self._shapes[wait, gated]
        said = {"ledger": ledger, "worker": worker, "version": build(), **self._dialect.times(now)}
        rest, refused = settlements, list[Settlement]()
        for _ in range(ROUNDS_MAX):
            columns = self._by_columns(rest, now)
            if gated:
                columns += zip(*map(_on_gate, rest), strict=True)
            shape = shapes.of(columns)
            batch = {**shape.batch.of_columns(columns), "fence": rest[0].claim.claim_id}
            parameters = batch | _rollup(rest) | said | {"amount": len(rest)}
            written = shape.write.scalar(connection, parameters)
            if written == len(rest):
                return refused
            if written:
                raise _suppressed(ledger)
            free = {row[0] for row in shape.find_free.rows(connection, batch)}
            refused += [one for one in rest if one.claim.task.id not in free]
            rest = [one for one in rest if one.claim.task.id in free]
            if not rest:
                return refused
        if wait:  # these rows are locked by nobody but us
            raise _suppressed(ledger)
        return [*refused, *rest]

    def _by_columns(self, settlements: Sequence[Settlement], now: datetime | None) -> list[Sequence[Any]]:
        """The values of each column, as in `_columns` without gates."""
        return [
            *self._rows.by_columns(settlements, now),
            [one.claim.task.failures + 1 for one in settlements],
            [one.elapsed.total_seconds() for one in settlements],
            [one.error_class for one in settlements],
            explanation_texts(settlements),
            *([] if self._rows.started_at is not None else [[started_at(one.claim) for one in settlements]]),
        ]

    def _start(self, began: ColumnElement[Any]) -> ColumnElement[Any]:
        """When a run began. Who spoils that in a row of their own must not spoil the history of the task, which is read as a whole."""
        start = comparable(began)
        return (
            start
            if self._rows.started_at is None
            else case((or_(*self._dialect.unreadable(start)), null()), else_=start)
        )

    def _build(self, same: Collection[str], *, wait: bool, gated: bool) -> "_Shape":
        """End the claims, write the history and add up the minute, if all of them are ours; and which of them are."""
        of_batch = Batch(self._dialect, self._columns[gated], same)
        rows, batch = self._rows, of_batch.rows
        if "claim_id" in same:  # without a join: a plan that takes the fence for rare would compare each with each
            by_id = self._dialect.batch_match(rows.columns, "id", rows.id)
            assert by_id is not None
            ours = [by_id, rows.fence == bindparam("fence", type_=rows.fence.type)]
        else:
            # A batch of two columns, under the same names: to unnest all of them twice would take 1 ms for a thousand rows.
            asked = Batch(self._dialect, {name: rows.columns[name] for name in ("id", "claim_id")})
            ours = [asked.match("id", rows.id), rows.fence == asked.rows.c.claim_id]
        free = for_an_update(select(rows.id).where(*ours), wait=wait).cte("free")
        amount: Any = select(func.count()).select_from(free).scalar_subquery()
        all_free = amount == bindparam("amount", type_=Integer)
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
            *(GATE_COLUMNS if gated else ()),
        )
        among = self._dialect.among(rows.id, select(free))
        updated = rows.update(batch, of_batch.match("id", rows.id, among)).where(all_free)
        settled = updated.returning(*(batch.c[name] for name in names), began.label("began")).cte("settled")
        c = settled.c
        fence = c.claim_id if isinstance(c.claim_id.type, Uuid) else cast(c.claim_id, Uuid)
        history = (
            insert(schema.attempt)
            .from_select(
                ["ledger", "task_id", "claim_id", "number", "started_at", "ended_at", "outcome", "state", "worker",
                 "duration_seconds", "delay_seconds", "error_class", "error", "explanation", "version"],
                select(
                    bindparam("ledger", type_=Text), cast(c.id, Text), fence, c.number,
                    self._start(c.began), self._dialect.now(), c.outcome, c.state,
                    bindparam("worker", type_=Text), c.duration, extract("epoch", c.delay),
                    c.error_class, c.error, cast(c.explanation, schema.attempt.c.explanation.type),
                    bindparam("version", type_=Text),
                ),
            )
            .cte("history")
        )  # fmt: skip
        counted = select(func.count().label("amount")).select_from(settled).cte("counted")
        written: Any = select(counted.c.amount).scalar_subquery()
        all_written = written == bindparam("amount", type_=Integer)
        parts = [history, self._build_rollup(all_written).cte("rollup")]
        if gated:
            parts += settle_gates(self._dialect, settled)
        return _Shape(of_batch, Compiled(select(counted.c.amount).add_cte(*parts)), Compiled(select(free)))

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


def _on_gate(settlement: Settlement) -> tuple[Any, ...]:
    """In the order of `GATE_COLUMNS`."""
    gate = settlement.claim.task.gate
    if gate is None:
        return (None,) * len(GATE_COLUMNS)
    return (gate, fence_of(settlement.claim), *answer_of(settlement))


def _suppressed(ledger: str) -> UsageError:
    return UsageError(
        f"rows of {ledger} were not changed, though nobody else has locked them: a trigger, a rule or a row policy of the table"
        " keeps updates from being made; let them through for the role of the worker"
    )


def for_an_update(rows: Select[Any], *, wait: bool) -> Select[Any]:
    """Lock these rows as an update does, which references to them do not mind: those that nobody else has locked, or all."""
    found = rows.order_by(*rows.selected_columns) if wait else rows
    table = next(iter(rows.selected_columns)).table
    return found.with_for_update(of=table, key_share=True, skip_locked=not wait)


def _rollup(settled: Sequence[Settlement]) -> Parameters:
    amounts = rolled_up(settled)
    return {"amounts": [amounts[name] for name in COUNTED], "run_seconds": amounts["run_seconds"]}
