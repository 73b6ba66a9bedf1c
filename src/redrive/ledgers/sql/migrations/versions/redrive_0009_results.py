"""What handlers returned: the results of tasks that are done."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0009"
down_revision = "redrive_0008"
branch_labels = None
works_with = "redrive_0004"


def upgrade() -> None:
    op.create_table(
        "redrive_result",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "task_id", name="redrive_result_pkey"),
    )
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_table("redrive_result")
    record(op, "engine", "redrive_0008", "redrive_0004")
