"""What operators see: histograms and flows, the census, dead tasks by cause, pages by kind; alerts, turns, shared secrets."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant

revision = "0002"
down_revision = "0001"

_STATES = ("waiting", "claimed", "done", "dead", "cancelled")


_COUNTED = [
    "added",
    "pruned",
    *(f"tries_{tries}" for tries in (1, 2, 3, 4, 5, "more")),
    *(f"took_{at:02}" for at in range(17)),
]


def upgrade() -> None:
    for name in _COUNTED:
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
        sa.Column("listed_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "task_id", name="redrive_dead_pkey"),
    )
    op.create_index("redrive_dead_cause_idx", "redrive_dead", ["ledger", "cause", "since", "task_id"])
    op.create_index("redrive_dead_since_idx", "redrive_dead", ["ledger", "since", "task_id"])
    op.create_table(
        "redrive_turn",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("until", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="redrive_turn_pkey"),
    )
    op.create_table(
        "redrive_alert",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("started_at", Instant(), nullable=False),
        sa.Column("told_at", Instant()),
        sa.Column("ended_at", Instant()),
        sa.PrimaryKeyConstraint("name", name="redrive_alert_pkey"),
    )
    ended = sa.text("ended_at IS NOT NULL")
    op.create_index(
        "redrive_task_kind_idx", "redrive_task", ["kind", "state", "ended_at", "id"],
        postgresql_where=ended, sqlite_where=ended,
    )  # fmt: skip
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
    op.drop_index("redrive_task_kind_idx", "redrive_task")
    tables = ("alert", "turn", "secret", "cause", "dead", "sample", "census")
    for table in tables:
        op.drop_table(f"redrive_{table}")
    for name in _COUNTED:
        op.drop_column("redrive_minute", name)
