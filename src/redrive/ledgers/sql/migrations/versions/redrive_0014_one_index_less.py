"""What has ended is found by its kind and state: an index by the instant alone made each task dearer. Room in those that are left."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.works_with import record

revision = "redrive_0014"
down_revision = "redrive_0013"
branch_labels = None
works_with = "redrive_0004"

_HAS_ENDED = sa.text("ended_at IS NOT NULL")
_WRITTEN_OFTEN = ("redrive_task_pkey", "redrive_task_key_key")


def upgrade() -> None:
    op.drop_index("redrive_task_ended_idx", "redrive_task")
    if op.get_context().dialect.name != "sqlite":
        for name in _WRITTEN_OFTEN:
            op.execute(f"ALTER INDEX {name} SET (fillfactor = 50)")
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    if op.get_context().dialect.name != "sqlite":
        for name in _WRITTEN_OFTEN:
            op.execute(f"ALTER INDEX {name} RESET (fillfactor)")
    op.create_index(
        "redrive_task_ended_idx", "redrive_task", ["ended_at"], sqlite_where=_HAS_ENDED, postgresql_where=_HAS_ENDED
    )
    record(op, "engine", "redrive_0013", works_with)
