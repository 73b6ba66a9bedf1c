"""Effects of which nobody knows whether they happened, tasks that are to stop while they run, and how far tries have come."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0010"
down_revision = "redrive_0009"
branch_labels = None
works_with = "redrive_0004"

_ASKED = sa.text("state IN ('unknown', 'person')")


def upgrade() -> None:
    op.create_table(
        "redrive_effect",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Uuid(), nullable=False),
        sa.Column("first_at", Instant(), nullable=False),
        sa.Column("entered_at", Instant(), nullable=False),
        sa.Column("changed_at", Instant(), nullable=False),
        sa.Column("probes", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("why", sa.Text()),
        sa.Column("came_to", sa.JSON(none_as_null=True)),
        sa.Column("answer", sa.Text()),
        sa.Column("answered_by", sa.Text()),
        sa.PrimaryKeyConstraint("ledger", "task_id", name="redrive_effect_pkey"),
    )
    op.create_index(
        "redrive_effect_open_idx", "redrive_effect", ["ledger", "state", "task_id"],
        sqlite_where=_ASKED, postgresql_where=_ASKED,
    )  # fmt: skip
    op.create_table(
        "redrive_stop",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Uuid(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "task_id", name="redrive_stop_pkey"),
    )
    op.create_table(
        "redrive_progress",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Uuid(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("share", sa.Float()),
        sa.Column("words", sa.Text()),
        sa.Column("checkpoint", sa.Text()),
        sa.PrimaryKeyConstraint("ledger", "task_id", name="redrive_progress_pkey"),
    )
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    for name in ("redrive_progress", "redrive_stop", "redrive_effect"):
        op.drop_table(name)
    record(op, "engine", "redrive_0009", "redrive_0004")
