"""Operations: acts on a frozen set of tasks, in steps."""

from dataclasses import fields

from sqlalchemy import JSON, BigInteger, Column, Float, Identity, Index, Integer, Table, Text

from redrive.core.operation import FateTally
from redrive.ledgers.sql.schema.base import ID, PAYLOAD, metadata, where
from redrive.ledgers.sql.times import Instant

FATES_COUNTED = tuple(field.name for field in fields(FateTally))
"""What an operation counts of its tasks."""

OPEN = "ended_at IS NULL OR released > done + failed + ended"
"""Whether an operation has anything to do, or to wait for."""

operation = Table(
    "redrive_operation",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("asked", JSON, nullable=False),
    Column("until", Instant, nullable=False),
    Column("steps", JSON, nullable=False),
    Column("rate", Integer),
    Column("rate_seconds", Float, nullable=False),
    Column("halt", Float, nullable=False),
    Column("edit", JSON(none_as_null=True)),
    Column("started_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("approval_over", Integer),
    Column("approved_by", Text),
    Column("approved_at", Instant),
    Column("cursor", Text),
    Column("frozen_at", Instant),
    *(Column(name, BigInteger, nullable=False) for name in FATES_COUNTED),
    Column("step", Integer, nullable=False),
    Column("in_step", Integer, nullable=False),
    Column("next_at", Instant),
    Column("braked_ended", BigInteger, nullable=False),
    Column("braked_failed", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("changed_by", Text, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("held_by", Text),
    Column("held_until", Instant),
    # What somebody must still carry on; few at any time.
    Index("redrive_operation_open_idx", "id", **where(OPEN)),
    Index("redrive_operation_started_idx", "started_at", "id"),
)
"""Redrive operations: what was asked, how far each has come, and who carries it on until when."""

operation_task = Table(
    "redrive_operation_task",
    metadata,
    Column("operation", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", Text, nullable=False),
    Column("fate", Text, nullable=False),
    Column("step", Integer),
    Column("released_at", Instant),
    Column("ended_at", Instant),
    Column("why", Text),
    Index("redrive_operation_task_fate_idx", "operation", "fate", "position"),
)
"""The frozen sets: each task of an operation, and what has become of it."""

edit = Table(
    "redrive_edit",
    metadata,
    Column("id", ID, Identity(), primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("operation", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("before", PAYLOAD, nullable=False),
    Column("after", PAYLOAD, nullable=False),
    Index("redrive_edit_task_idx", "ledger", "task_id"),
    Index("redrive_edit_operation_idx", "operation", "id"),
)
"""Payloads that operations have changed: as they were and as they are since, by whom and why."""
