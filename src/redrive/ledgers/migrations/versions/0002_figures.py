"""Histograms and flows in the minutes; the census, its samples, dead tasks by cause; shared secrets."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.times import Instant

revision = "0002"
down_revision = "0001"

_STATES = ("waiting", "claimed", "done", "dead", "cancelled")


def upgrade() -> None:
    added = [
        "added",
        "pruned",
        *(f"tries_{tries}" for tries in (1, 2, 3, 4, 5, "more")),
        *(f"took_{at:02}" for at in range(17)),
    ]
    for name in added:
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column("redrive_minute", column)
    op.create_table(
        "redrive_census",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        *(sa.Column(state, sa.BigInteger(), nullable=False) for state in _STATES),
        *(
            sa.Column(f"base_{name}", sa.BigInteger(), nullable=False)
            for name in ("added", "pruned", "done", "dead", "cancelled")
        ),
        sa.Column("oldest_due_seconds", sa.Float()),
        sa.PrimaryKeyConstraint("ledger", name="redrive_census_pkey"),
    )
    op.create_table(
        "redrive_sample",
        sa.Column("minute", Instant(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        *(sa.Column(state, sa.BigInteger(), nullable=False) for state in _STATES),
        sa.Column("oldest_due_seconds", sa.Float()),
        sa.PrimaryKeyConstraint("minute", "ledger", name="redrive_sample_pkey"),
    )
    op.create_table(
        "redrive_dead",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("since", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "task_id", name="redrive_dead_pkey"),
    )
    op.create_index("redrive_dead_cause_idx", "redrive_dead", ["ledger", "cause"])
    op.create_table(
        "redrive_secret",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="redrive_secret_pkey"),
    )
    op.create_table(
        "redrive_cause",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("sample", sa.Text(), nullable=False),
        sa.Column("first_seen", Instant(), nullable=False),
        sa.Column("last_seen", Instant(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "id", name="redrive_cause_pkey"),
    )


def downgrade() -> None:
    for table in ("redrive_secret", "redrive_cause", "redrive_dead", "redrive_sample", "redrive_census"):
        op.drop_table(table)
