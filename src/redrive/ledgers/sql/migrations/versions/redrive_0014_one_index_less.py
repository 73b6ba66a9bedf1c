"""What has ended is found by its kind and state: an index by the instant alone made each task dearer."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.works_with import record

revision = "redrive_0014"
down_revision = "redrive_0013"
branch_labels = None
works_with = "redrive_0004"

_HAS_ENDED = sa.text("ended_at IS NOT NULL")


def upgrade() -> None:
    op.drop_index("redrive_task_ended_idx", "redrive_task")
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.create_index(
        "redrive_task_ended_idx", "redrive_task", ["ended_at"], sqlite_where=_HAS_ENDED, postgresql_where=_HAS_ENDED
    )
    record(op, "engine", "redrive_0013", works_with)
