"""Tracebacks: each distinct one is kept once."""

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


def downgrade() -> None:
    op.drop_table("redrive_stack")
