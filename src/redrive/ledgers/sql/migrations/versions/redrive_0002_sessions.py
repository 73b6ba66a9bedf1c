"""Sessions of people, by the hash of their token. The secret that signed them until now goes: whoever read it could log in as anybody."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant

revision = "redrive_0002"
down_revision = "redrive_0001"
branch_labels = None


def upgrade() -> None:
    op.create_table(
        "redrive_session",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("expires_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="redrive_session_pkey"),
    )
    op.drop_table("redrive_secret")


def downgrade() -> None:
    op.create_table(
        "redrive_secret",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="redrive_secret_pkey"),
    )
    op.drop_table("redrive_session")
