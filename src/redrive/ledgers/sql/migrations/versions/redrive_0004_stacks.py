"""Tracebacks, each distinct one kept once; and what a cause is of: a kind, and a line of the user's code."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant

revision = "redrive_0004"
down_revision = "redrive_0003"
branch_labels = None


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


def downgrade() -> None:
    for name in ("kind", "at"):
        op.drop_column("redrive_cause", name)
    op.drop_table("redrive_stack")
