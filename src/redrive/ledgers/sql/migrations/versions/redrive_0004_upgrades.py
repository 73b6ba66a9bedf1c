"""Upgrades one process after the other: which code may work with newer tables. How the history is partitioned."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.works_with import record

revision = "redrive_0004"
down_revision = "redrive_0003"
branch_labels = None
works_with = "redrive_0003"

_VACUUM = ("autovacuum_vacuum_scale_factor", "autovacuum_analyze_scale_factor")


def upgrade() -> None:
    op.create_table(
        "redrive_works_with",
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("branch", name="redrive_works_with_pkey"),
    )
    op.create_table(
        "redrive_partition",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("every", sa.Text(), nullable=False),
        sa.Column("keep_seconds", sa.Float()),
        sa.PrimaryKeyConstraint("name", name="redrive_partition_pkey"),
    )
    if op.get_context().dialect.name != "sqlite":
        # Most of a large table is history that nobody changes: a fifth of it is too much to wait for.
        op.execute(f"ALTER TABLE redrive_task SET ({_VACUUM[0]} = 0.02, {_VACUUM[1]} = 0.05)")
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    if op.get_context().dialect.name != "sqlite":
        op.execute(f"ALTER TABLE redrive_task RESET ({', '.join(_VACUUM)})")
    op.drop_table("redrive_partition")
    op.drop_table("redrive_works_with")
