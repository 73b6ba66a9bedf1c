"""Workers give signs of life."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant

revision = "redrive_0005"
down_revision = "redrive_0004"
branch_labels = None


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("redrive_worker")
