"""The queue of messages that wait for their retry."""

import sqlalchemy as sa
from alembic import op

from redrive.extend import When

revision = "relay_0001"
down_revision = None
branch_labels = ("relay",)

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the table and its indexes."""
    dialect = op.get_context().dialect.name
    op.create_table(
        "retry_queue",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("original_payload", sa.LargeBinary(), nullable=False),
        sa.Column("original_queue", sa.Text(), nullable=False),
        sa.Column("error_reason", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("retry_count", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_retries", sa.Integer(), nullable=False, server_default=sa.text("3")),
        sa.Column("next_retry_at", When()),
        sa.Column("created_at", When(), nullable=False),
        sa.Column("updated_at", When(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("content_type", sa.Text()),
        sa.Column("last_error", sa.Text()),
        sa.Column("lease_until", When()),
        sa.Column("claim_id", sa.Uuid()),
        sa.PrimaryKeyConstraint("id", name="retry_queue_pkey"),
        sa.UniqueConstraint("message_id", name="retry_queue_message_id_key"),
        sa.CheckConstraint(
            "status IN ('pending', 'retried', 'failed', 'resolved')", name=op.f("retry_queue_status_check")
        ),
        sa.CheckConstraint("length(message_id) BETWEEN 1 AND 500", name=op.f("retry_queue_message_id_length_check")),
        sa.CheckConstraint("retry_count >= 0 AND max_retries >= 0", name=op.f("retry_queue_counts_check")),
        sa.CheckConstraint("status = 'pending' OR lease_until IS NULL", name=op.f("retry_queue_lease_check")),
        sa.CheckConstraint("(lease_until IS NULL) = (claim_id IS NULL)", name=op.f("retry_queue_fence_check")),
        sa.CheckConstraint("status = 'pending' OR next_retry_at IS NULL", name=op.f("retry_queue_due_check")),
    )
    sqlite = dialect == "sqlite"
    due = sa.text(
        "coalesce(julianday(next_retry_at), 0)" if sqlite else "coalesce(next_retry_at, '-infinity'::timestamptz)"
    )
    lease = sa.text("julianday(lease_until)" if sqlite else "lease_until")
    free = "status = 'pending' AND {} AND lease_until IS NULL"
    indexes: tuple[tuple[str, list[str | sa.TextClause], str], ...] = (
        ("retry_queue_first_idx", [due], free.format("retry_count <= 0")),
        ("retry_queue_retry_idx", [due], free.format("retry_count > 0")),
        ("retry_queue_lease_idx", [lease], "lease_until IS NOT NULL"),
        ("idx_retry_next_retry", ["next_retry_at"], "status = 'pending'"),
        ("retry_queue_ended_idx", ["updated_at"], "status IN ('retried', 'resolved')"),
        ("retry_queue_failed_idx", ["id"], "status = 'failed'"),
        ("retry_queue_review_idx", ["original_queue", "id"], "status = 'failed'"),
    )
    for name, columns, where in indexes:
        op.create_index(name, "retry_queue", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
