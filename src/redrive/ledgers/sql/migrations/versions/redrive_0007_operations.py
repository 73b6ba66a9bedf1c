"""Redrive operations, their frozen sets, and the payloads that they changed."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0007"
down_revision = "redrive_0006"
branch_labels = None
works_with = "redrive_0004"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PAYLOAD = sa.JSON().with_variant(JsonText(), "sqlite")
_OPEN = sa.text("ended_at IS NULL OR released > done + failed + ended")
_COUNTED = ("total", "released", "done", "failed", "ended", "skipped", "unfit")


def upgrade() -> None:
    op.create_table(
        "redrive_operation",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked", sa.JSON(), nullable=False),
        sa.Column("until", Instant(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.Column("rate", sa.Integer()),
        sa.Column("rate_seconds", sa.Float(), nullable=False),
        sa.Column("halt", sa.Float(), nullable=False),
        sa.Column("edit", sa.JSON(none_as_null=True)),
        sa.Column("started_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("approval_over", sa.Integer()),
        sa.Column("approved_by", sa.Text()),
        sa.Column("approved_at", Instant()),
        sa.Column("cursor", sa.Text()),
        sa.Column("frozen_at", Instant()),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _COUNTED),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("in_step", sa.Integer(), nullable=False),
        sa.Column("next_at", Instant()),
        sa.Column("braked_ended", sa.BigInteger(), nullable=False),
        sa.Column("braked_failed", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.Column("changed_at", Instant(), nullable=False),
        sa.Column("ended_at", Instant()),
        sa.Column("held_by", sa.Text()),
        sa.Column("held_until", Instant()),
        sa.PrimaryKeyConstraint("id", name="redrive_operation_pkey"),
    )
    op.create_index(
        "redrive_operation_open_idx", "redrive_operation", ["id"], sqlite_where=_OPEN, postgresql_where=_OPEN
    )
    op.create_index("redrive_operation_started_idx", "redrive_operation", ["started_at", "id"])
    op.create_table(
        "redrive_operation_task",
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("fate", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer()),
        sa.Column("released_at", Instant()),
        sa.Column("ended_at", Instant()),
        sa.Column("why", sa.Text()),
        sa.PrimaryKeyConstraint("operation", "position", name="redrive_operation_task_pkey"),
    )
    op.create_index("redrive_operation_task_fate_idx", "redrive_operation_task", ["operation", "fate", "position"])
    op.create_table(
        "redrive_edit",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("before", _PAYLOAD, nullable=False),
        sa.Column("after", _PAYLOAD, nullable=False),
        sa.PrimaryKeyConstraint("id", name="redrive_edit_pkey"),
    )
    op.create_index("redrive_edit_task_idx", "redrive_edit", ["ledger", "task_id"])
    op.create_index("redrive_edit_operation_idx", "redrive_edit", ["operation", "id"])
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    for name in ("redrive_edit", "redrive_operation_task", "redrive_operation"):
        op.drop_table(name)
    record(op, "engine", "redrive_0006", "redrive_0004")
