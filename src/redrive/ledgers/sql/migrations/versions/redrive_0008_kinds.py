"""What is counted of each kind and cause in each minute; causes that tries fail of, with their versions; the leases of workers."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0008"
down_revision = "redrive_0007"
branch_labels = None
works_with = "redrive_0004"


def upgrade() -> None:
    op.create_table(
        "redrive_kind_minute",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("ledger", "kind", "cause")),
        sa.Column("minute", Instant(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("version", "worker")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("begun", "tries", "failures", "done", "dead")),
        *(sa.Column(name, Instant()) for name in ("first_failure", "last_failure", "first_success", "last_success")),
        *(sa.Column(f"ran_{position:02}", sa.BigInteger(), nullable=False) for position in range(14)),
        sa.PrimaryKeyConstraint(
            "ledger", "kind", "cause", "minute", "version", "worker", name="redrive_kind_minute_pkey"
        ),
    )
    op.create_index("redrive_kind_minute_cause_idx", "redrive_kind_minute", ["cause", "minute"])
    unfolded = sa.text("worker <> ''")
    op.create_index(
        "redrive_kind_minute_worker_idx",
        "redrive_kind_minute",
        ["minute"],
        sqlite_where=unfolded,
        postgresql_where=unfolded,
    )
    op.create_table(
        "redrive_failing",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("ledger", "id", "kind", "text", "sample")),
        sa.Column("at", sa.Text()),
        *(sa.Column(name, Instant(), nullable=False) for name in ("first_seen", "since", "since_hour", "last_seen")),
        *(sa.Column(name, sa.Text()) for name in ("first_version", "last_version")),
        sa.Column("tries_max", sa.Integer()),
        sa.Column("lasts_seconds", sa.Float()),
        sa.PrimaryKeyConstraint("ledger", "id", name="redrive_failing_pkey"),
    )
    op.create_index("redrive_failing_seen_idx", "redrive_failing", ["last_seen"])
    op.add_column("redrive_worker", sa.Column("lease_seconds", sa.Float()))
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_column("redrive_worker", "lease_seconds")
    op.drop_table("redrive_failing")
    op.drop_table("redrive_kind_minute")
    record(op, "engine", "redrive_0007", "redrive_0004")
