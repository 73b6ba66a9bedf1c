"""What people must look at, by the queue that it failed in."""

import sqlalchemy as sa
from alembic import op

revision = "relay_0002"
down_revision = "relay_0001"


def upgrade() -> None:
    """Make the index."""
    where = sa.text("status = 'failed'")
    op.create_index(
        "retry_queue_review_idx", "retry_queue", ["original_queue", "id"], postgresql_where=where, sqlite_where=where
    )
