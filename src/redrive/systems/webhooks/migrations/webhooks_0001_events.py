"""The inbox."""

import sqlalchemy as sa
from alembic import op

from redrive.extend import When

revision = "webhooks_0001"
down_revision = None
branch_labels = ("webhooks",)


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    op.create_table(
        "events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("last_error", sa.Text()),
        sa.Column("retry_after", When()),
        sa.Column("created_at", When(), nullable=False),
        sa.Column("updated_at", When(), nullable=False),
        sa.Column("lease_until", When()),
        sa.Column("claim_id", sa.Text() if sqlite else sa.Uuid()),
        sa.PrimaryKeyConstraint("id", name="events_pkey"),
        sa.UniqueConstraint("idempotency_key", name="events_idempotency_key_key"),
        sa.CheckConstraint(
            "status IN ('pending', 'processing', 'completed', 'failed')", name=op.f("events_status_check")
        ),
        sa.CheckConstraint("length(idempotency_key) BETWEEN 1 AND 500", name=op.f("events_key_length_check")),
        sa.CheckConstraint("length(event_type) BETWEEN 1 AND 200", name=op.f("events_type_length_check")),
        sa.CheckConstraint("attempts >= 0", name=op.f("events_attempts_check")),
        sa.CheckConstraint(
            "status IN ('pending', 'processing') OR retry_after IS NULL", name=op.f("events_retry_after_check")
        ),
    )
    retry, lease, created, updated, earliest = (
        ("julianday(retry_after)", "julianday(lease_until)", "julianday(created_at)", "julianday(updated_at)", "0")
        if sqlite
        else ("retry_after", "lease_until", "created_at", "updated_at", "'-infinity'::timestamptz")
    )
    free = "lease_until IS NULL"
    ended = sa.text(updated) if sqlite else updated
    indexes: tuple[tuple[str, list[str | sa.TextClause], str], ...] = (
        ("first", ["event_type", sa.text(f"coalesce({retry}, {earliest})")], f"status = 'pending' AND attempts <= 0 AND {free}"),
        ("retry", ["event_type", sa.text(f"coalesce({retry}, {earliest})")], f"status = 'pending' AND attempts > 0 AND {free}"),
        ("lease", [sa.text(f"coalesce({lease}, {earliest})")], "status = 'processing'"),
        ("due", [sa.text(f"coalesce({retry}, {created})")], "status = 'pending'"),
        ("failed", ["id"], "status = 'failed'"),
        ("completed_at", [ended], "status = 'completed'"),
        ("failed_at", [ended], "status = 'failed'"),
    )  # fmt: skip
    for name, columns, where in indexes:
        op.create_index(
            f"events_{name}_idx", "events", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )


def downgrade() -> None:
    op.drop_table("events")
