"""The version of the code that made a try, with the try."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.works_with import record

revision = "redrive_0011"
down_revision = "redrive_0010"
branch_labels = None
works_with = "redrive_0004"


def upgrade() -> None:
    op.add_column("redrive_attempt", sa.Column("version", sa.Text()))
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_column("redrive_attempt", "version")
    record(op, "engine", "redrive_0010", "redrive_0004")
