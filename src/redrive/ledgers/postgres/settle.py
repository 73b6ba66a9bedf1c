"""Settling on PostgreSQL: rows, history and rollup in one statement, which is one round trip and commits by itself.

Most tasks of a batch come to a few ends, all of which say the same: one outcome, one count, one error, one explanation. So each end
travels once, and a task only says which of them is its own. An explanation is long, and a driver looks at each value of an array: where
half of a thousand tasks had failed that took 2.5 µs for each of them, and takes 0.5.

It writes all of a batch or nothing: the rollup that travels with it is that of the whole batch. Where the fence refuses some, or
somebody has locked their rows, nothing is written, and the others are sent once more, as a batch of their own.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
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

from redrive.core.decide import Settlement
from redrive.core.gates import answer_of, fence_of
from redrive.errors import UsageError
from redrive.ledgers.build import build
from redrive.ledgers.postgres.gates import GATE_COLUMNS, settle_gates
from redrive.ledgers.rollup import COUNTED, MEASURED, rolled_up
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.batches import Batch, is_one
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.minute import add_up
from redrive.ledgers.sql.seam import Columns, Dialect, Parameters, Prepared, SettleRows
from redrive.ledgers.sql.settle import started_at
from redrive.ledgers.sql.times import Instant, comparable

ROUNDS_MAX = 3
"""How often a batch is sent before what is left is for the next time: each time somebody was quicker."""


class _Shape(NamedTuple):
    """The statements, and what is given to them."""

    batch: Batch
    """What each task has of its own."""
    ends: Batch | None
    """What tasks have in common; None where one end is that of all of them."""
    write: Compiled
    """It writes all of them or nothing, and says how many there were."""
    find_free: Compiled


class PostgresSettle:
    """Writes settlements in one statement."""

    one_statement = True

    def __init__(self, dialect: Dialect, rows: SettleRows) -> None:
        self._dialect = dialect
        self._rows = rows
        self._shapes: dict[tuple[bool, bool, bool, bool], _Shape] = {}

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
        said = {"ledger": ledger, "worker": worker, "version": build(), **self._dialect.times(now)}
        rest, refused = settlements, list[Settlement]()
        for _ in range(ROUNDS_MAX):
            shape, batch = self._shaped(rest, now, wait=wait, gated=gated)
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

    def _shaped(
        self, settlements: Sequence[Settlement], now: datetime | None, *, wait: bool, gated: bool
    ) -> tuple["_Shape", Parameters]:
        """The statements for these settlements, and their parameters."""
        rows = self._rows
        fences = [one.claim.claim_id for one in settlements]
        one_fence = is_one(fences)
        ends, which = _ends(settlements, gated=gated)
        one_end = len(ends) == 1 and ends[0].explanation is None and not gated
        form = wait, gated, one_fence, one_end
        if form not in self._shapes:
            self._shapes[form] = self._build(wait=wait, gated=gated, one_fence=one_fence, one_end=one_end)
        shape = self._shapes[form]
        own: list[Sequence[Any]] = [
            [one.claim.task.id for one in settlements],
            *([] if one_end else [which]),
            [one.elapsed.total_seconds() for one in settlements],
            *([] if one_fence else [fences]),
            *([] if rows.started_at is not None else [[started_at(one.claim) for one in settlements]]),
            *rows.extra_by_columns(settlements),
        ]
        shared: list[Sequence[Any]] = [
            *([] if one_end else [range(len(ends))]),
            *rows.ends_by_columns(ends, now),
            [one.claim.task.failures + 1 for one in ends],
            [one.error_class for one in ends],
            [None if one.explanation is None else one.explanation.json_text() for one in ends],
            *(zip(*map(_on_gate, ends), strict=True) if gated else ()),
        ]
        fence = {"fence": fences[0]} if one_fence else {}
        if shape.ends is None:
            return shape, {**shape.batch.of_columns([*own, *shared]), **fence}
        return shape, {**shape.batch.of_columns(own), **shape.ends.of_columns(shared), **fence}

    def _start(self, began: ColumnElement[Any]) -> ColumnElement[Any]:
        """When a run began. Who spoils that in a row of their own must not spoil the history of the task, which is read as a whole."""
        start = comparable(began)
        return (
            start
            if self._rows.started_at is None
            else case((or_(*self._dialect.unreadable(start)), null()), else_=start)
        )

    def _build(self, *, wait: bool, gated: bool, one_fence: bool, one_end: bool) -> "_Shape":
        """End the claims, write the history and add up the minute, if all of them are ours; and which of them are."""
        rows, dialect = self._rows, self._dialect
        id_and_fence: Columns = {"id": rows.id.type, "claim_id": rows.fence.type}
        fences: Columns = {} if one_fence else {"claim_id": rows.fence.type}
        starts: Columns = {"started_at": Instant()} if rows.started_at is None else {}
        which: Columns = {} if one_end else {"which": Integer()}
        own: Columns = {"id": rows.id.type, **which, "duration": Float(), **fences, **starts, **rows.extra}
        history: Columns = {"number": Integer(), "error_class": Text(), "explanation": Text()}
        gates: Columns = GATE_COLUMNS if gated else {}
        ends: Columns = {**rows.ends, **history, **gates}
        if one_end:
            of_batch, of_ends = Batch(dialect, {**own, **ends}, ends), None
        else:
            of_batch, of_ends = Batch(dialect, own), Batch(dialect, {"place": Integer(), **ends})
        batch = self._joined(of_batch.rows, None if of_ends is None else of_ends.rows, one_fence=one_fence)
        if one_fence:  # without a join: a plan that takes the fence for rare would compare each with each
            by_id = dialect.batch_match(id_and_fence, "id", rows.id)
            assert by_id is not None
            ours = [by_id, rows.fence == bindparam("fence", type_=rows.fence.type)]
        else:
            # A batch of two columns, under the same names: to unnest all of them twice would take 1 ms for a thousand rows.
            asked = Batch(dialect, id_and_fence)
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
        mine = and_(rows.id == batch.c.id, dialect.among(rows.id, select(free)))
        updated = rows.update(batch, mine).where(all_free)
        settled = updated.returning(*(batch.c[name] for name in names), began.label("began")).cte("settled")
        c = settled.c
        fence = c.claim_id if isinstance(c.claim_id.type, Uuid) else cast(c.claim_id, Uuid)
        attempts = (
            insert(schema.attempt)
            .from_select(
                ["ledger", "task_id", "claim_id", "number", "started_at", "ended_at", "outcome", "state", "worker",
                 "duration_seconds", "delay_seconds", "error_class", "error", "explanation", "version"],
                select(
                    bindparam("ledger", type_=Text), cast(c.id, Text), fence, c.number,
                    self._start(c.began), self._dialect.now(), c.outcome, c.state,
                    bindparam("worker", type_=Text), c.duration, extract("epoch", c.delay),
                    c.error_class, c.error, c.explanation,
                    bindparam("version", type_=Text),
                ),
            )
            .cte("history")
        )  # fmt: skip
        counted = select(func.count().label("amount")).select_from(settled).cte("counted")
        written: Any = select(counted.c.amount).scalar_subquery()
        all_written = written == bindparam("amount", type_=Integer)
        parts = [attempts, self._build_rollup(all_written).cte("rollup")]
        if gated:
            parts += settle_gates(self._dialect, settled)
        return _Shape(of_batch, of_ends, Compiled(select(counted.c.amount).add_cte(*parts)), Compiled(select(free)))

    def _joined(self, own: FromClause, ends: FromClause | None, *, one_fence: bool) -> FromClause:
        """The batch with the end of each task. An explanation becomes JSON once, for all tasks that have it.

        Where all have the same, as when all are done, it stands beside each of them and nothing is joined.

        Each task has an end. PostgreSQL does not know that, and of an inner join it expects a two hundredth of the tasks, and then looks each of
        them up by itself among all ids.
        """
        fence = cast(bindparam("fence", type_=self._rows.fence.type), self._rows.fence.type).label("claim_id")
        fences = [fence] if one_fence else []
        if ends is None:
            return select(*_with_json(own), *fences).subquery("batch_with_ends")
        shared = select(*_with_json(ends)).cte("ends").prefix_with("MATERIALIZED")
        told = [one for one in shared.c if one.name != "place"]
        joined = select(*own.c, *told, *fences).outerjoin(shared, shared.c.place == own.c.which)
        return joined.subquery("batch_with_ends")

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


def _with_json(ends: FromClause) -> list[ColumnElement[Any]]:
    """What is said of ends, with the explanation as JSON."""
    as_json = cast(ends.c.explanation, schema.attempt.c.explanation.type).label("explanation")
    return [*(one for one in ends.c if one.name != "explanation"), as_json]


def _on_gate(settlement: Settlement) -> tuple[Any, ...]:
    """In the order of `GATE_COLUMNS`."""
    gate = settlement.claim.task.gate
    if gate is None:
        return (None,) * len(GATE_COLUMNS)
    return (gate, fence_of(settlement.claim), *answer_of(settlement))


def _ends(settlements: Sequence[Settlement], *, gated: bool) -> tuple[list[Settlement], list[int]]:
    """Settlements no two of which came to the same, and for each of all which of them stands for it."""
    places: dict[tuple[Any, ...], int] = {}
    ends, which = list[Settlement](), list[int]()
    for one in settlements:
        claim, outcome, state, failures, delay, error, explanation, _, _ = one
        # What tasks share is one object: that tells explanations and fences apart as well as what they say, and quicker.
        end: tuple[Any, ...] = outcome, state, failures, delay, error, id(explanation), claim.task.failures
        if gated:
            end = *end, claim.task.gate, id(fence_of(claim))
        place = places.setdefault(end, len(ends))
        if place == len(ends):
            ends.append(one)
        which.append(place)
    return ends, which


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
