"""How long the retries of a schedule wait, where it says so itself."""

import sqlalchemy as sa
from alembic import op

revision = "flags_0003"
down_revision = "flags_0002"
branch_labels = None


def upgrade() -> None:
    op.add_column("feature_flag_schedules", sa.Column("backoff", sa.JSON()))


def downgrade() -> None:
    op.drop_column("feature_flag_schedules", "backoff")
