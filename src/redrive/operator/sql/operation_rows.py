"""Rows of operations and of their sets: read into values, written from them, and recorded."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, select, update

from redrive.core.edit import read_edit
from redrive.core.operation import Course, Fate, FateTally, OperationState, Ramp
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.audit_lines import record as record_act
from redrive.operator.operations import Operation, SetTask
from redrive.ports import Actor

_o = schema.operation


def locked(connection: Connection, id: str) -> Operation:
    """The operation, locked until the commit; `UsageError` where there is none."""
    return _one(connection, select(_o).where(_o.c.id == id).with_for_update(), id)


def get_row(connection: Connection, id: str) -> Operation:
    """The operation as it stands."""
    return _one(connection, select(_o).where(_o.c.id == id), id)


def _one(connection: Connection, found: Select[Any], id: str) -> Operation:
    row = connection.execute(found).one_or_none()
    if row is None:
        raise UsageError(f"there is no operation {id!r:.80}")
    return read_row(row)


def write_row(connection: Connection, operation: Operation, course: Course, tally: FateTally, **changes: Any) -> None:
    """Write how far an operation has come."""
    ended, failed = course.braked_at
    values = {
        "state": course.state.value, "step": course.step, "in_step": course.in_step, "next_at": course.next_at,
        "braked_ended": ended, "braked_failed": failed, **asdict(tally), **changes,
    }  # fmt: skip
    connection.execute(update(_o).where(_o.c.id == operation.id).values(**values))


def record(connection: Connection, operation: Operation, act: str, actor: Actor, now: datetime) -> None:
    """Write down who did what to an operation."""
    things = [f"operation:{operation.id}"]
    record_act(connection, ledger=operation.ledger, act=f"operation {act}", things=things, actor=actor, at=now)


def read_row(row: Row[Any]) -> Operation:
    """The operation that a row stands for."""
    ramp = Ramp(steps=tuple(row.steps), rate=row.rate, per=timedelta(seconds=row.rate_seconds), halt=row.halt)
    course = Course(
        state=OperationState(row.state), ramp=ramp, step=row.step, in_step=row.in_step, next_at=row.next_at,
        braked_at=(row.braked_ended, row.braked_failed),
    )  # fmt: skip
    stored = row._asdict()
    return Operation(
        course=course, tally=FateTally(**{name: stored[name] for name in schema.FATES_COUNTED}), edit=read_edit(row.edit),
        **{name: stored[name] for name in _AS_STORED},
    )  # fmt: skip


_AS_STORED = (
    "id", "ledger", "asked", "until", "started_by", "reason", "started_at", "approval_over", "approved_by", "approved_at",
    "frozen_at", "why", "changed_by", "changed_at", "ended_at", "cursor",
)  # fmt: skip


def read_task(row: Row[Any]) -> SetTask:
    """The task of a set that a row stands for."""
    return SetTask(
        position=row.position, task_id=row.task_id, fate=Fate(row.fate), step=None if row.step is None else row.step + 1,
        released_at=row.released_at, ended_at=row.ended_at, why=row.why,
    )  # fmt: skip
