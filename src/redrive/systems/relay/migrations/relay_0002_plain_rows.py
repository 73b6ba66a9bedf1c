"""Rows that others insert with the columns they know: the rest has defaults. And the trace that a message belongs to."""

import sqlalchemy as sa
from alembic import op

from redrive.extend import When
from redrive.systems.kit.remake import remake

revision = "relay_0002"
down_revision = "relay_0001"
branch_labels = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COLUMNS = (
    "id", "message_id", "original_payload", "original_queue", "error_reason", "retry_count", "max_retries", "next_retry_at",
    "created_at", "updated_at", "status", "headers", "content_type", "last_error", "lease_until", "claim_id",
)  # fmt: skip
_CHECKS = {
    "status": "status IN ('pending', 'retried', 'failed', 'resolved')",
    "message_id_length": "length(message_id) BETWEEN 1 AND 500",
    "counts": "retry_count >= 0 AND max_retries >= 0",
    "lease": "status = 'pending' OR lease_until IS NULL",
    "fence": "(lease_until IS NULL) = (claim_id IS NULL)",
    "due": "status = 'pending' OR next_retry_at IS NULL",
}


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        remake("retry_queue", _create, {name: name for name in _COLUMNS}, _create_indexes)
        return
    alter = "ALTER TABLE retry_queue"
    op.execute(f"{alter} ADD COLUMN trace text")
    op.execute(f"{alter} ALTER COLUMN error_reason DROP NOT NULL")
    for name, default in (
        ("created_at", "CURRENT_TIMESTAMP"), ("updated_at", "CURRENT_TIMESTAMP"), ("headers", "'{}'")
    ):  # fmt: skip
        op.execute(f"{alter} ALTER COLUMN {name} SET DEFAULT {default}")


def _create(name: str) -> None:
    op.create_table(
        name,
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("original_payload", sa.LargeBinary(), nullable=False),
        sa.Column("original_queue", sa.Text(), nullable=False),
        sa.Column("error_reason", sa.Text(), server_default=sa.text("''")),
        sa.Column("retry_count", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_retries", sa.Integer(), nullable=False, server_default=sa.text("3")),
        sa.Column("next_retry_at", When()),
        sa.Column("created_at", When(), nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        sa.Column("updated_at", When(), nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
        sa.Column("headers", sa.JSON(), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("content_type", sa.Text()),
        sa.Column("last_error", sa.Text()),
        sa.Column("lease_until", When()),
        sa.Column("claim_id", sa.Uuid()),
        sa.Column("trace", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="retry_queue_pkey"),
        sa.UniqueConstraint("message_id", name="retry_queue_message_id_key"),
        *(sa.CheckConstraint(rule, name=op.f(f"retry_queue_{name}_check")) for name, rule in _CHECKS.items()),
    )


def _create_indexes() -> None:
    due = sa.text("coalesce(julianday(next_retry_at), 0)")
    free = "status = 'pending' AND {} AND lease_until IS NULL"
    indexes: tuple[tuple[str, list[str | sa.TextClause], str], ...] = (
        ("retry_queue_first_idx", [due], free.format("retry_count <= 0")),
        ("retry_queue_retry_idx", [due], free.format("retry_count > 0")),
        ("retry_queue_lease_idx", [sa.text("julianday(lease_until)")], "lease_until IS NOT NULL"),
        ("idx_retry_next_retry", ["next_retry_at"], "status = 'pending'"),
        ("retry_queue_ended_idx", ["updated_at"], "status IN ('retried', 'resolved')"),
        ("retry_queue_failed_idx", ["id"], "status = 'failed'"),
        ("retry_queue_review_idx", ["original_queue", "id"], "status = 'failed'"),
    )
    for name, columns, where in indexes:
        op.create_index(name, "retry_queue", columns, sqlite_where=sa.text(where))
