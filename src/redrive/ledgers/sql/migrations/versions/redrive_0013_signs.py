"""What a worker says of itself besides: how much it does, how long it has held its oldest task, and how far its clock is off."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0013"
down_revision = "redrive_0012"
branch_labels = None
works_with = "redrive_0004"


def upgrade() -> None:
    op.add_column("redrive_worker", sa.Column("tries_a_minute", sa.Integer()))
    op.add_column("redrive_worker", sa.Column("held_since", Instant()))
    op.add_column("redrive_worker", sa.Column("drift_ms", sa.Float()))
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_column("redrive_worker", "drift_ms")
    op.drop_column("redrive_worker", "held_since")
    op.drop_column("redrive_worker", "tries_a_minute")
    record(op, "engine", "redrive_0012", works_with)
