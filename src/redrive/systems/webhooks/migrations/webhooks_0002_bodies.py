"""Signed bodies that came before, by which replays under another identity are recognised."""

import sqlalchemy as sa
from alembic import op

from redrive.sql import Instant

revision = "webhooks_0002"
down_revision = "webhooks_0001"
branch_labels = None


def upgrade() -> None:
    op.create_table(
        "webhook_bodies",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("forget_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("source", "sha256", name="webhook_bodies_pkey"),
    )
    op.create_index("webhook_bodies_forget_at_idx", "webhook_bodies", ["forget_at"])


def downgrade() -> None:
    op.drop_table("webhook_bodies")
