"""Tracebacks, each distinct one kept once; what a cause is of: a kind, and a line of the user's code; signs of life of workers."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0005"
down_revision = "redrive_0004"
branch_labels = None
works_with = "redrive_0004"


def upgrade() -> None:
    op.create_table(
        "redrive_stack",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("frames", sa.Text(), nullable=False),
        sa.Column("seen_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="redrive_stack_pkey"),
    )
    for name in ("kind", "at"):
        op.add_column("redrive_cause", sa.Column(name, sa.Text()))
    op.create_table(
        "redrive_worker",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text()),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("holds", sa.JSON(), nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("seen_at", Instant(), nullable=False),
        sa.Column("stopped_at", Instant()),
        sa.PrimaryKeyConstraint("name", name="redrive_worker_pkey"),
    )
    op.create_index("redrive_worker_seen_idx", "redrive_worker", ["seen_at", "name"])
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_table("redrive_worker")
    for name in ("kind", "at"):
        op.drop_column("redrive_cause", name)
    op.drop_table("redrive_stack")
    record(op, "engine", "redrive_0004", "redrive_0003")
