"""What webhooks need that nobody handles: a status for those that are cancelled, and which types workers handle."""

import sqlalchemy as sa
from alembic import op

from redrive.extend import When
from redrive.systems.kit.remake import remake

revision = "webhooks_0003"
down_revision = "webhooks_0002"
branch_labels = None

_COLUMNS = (
    "id", "idempotency_key", "event_type", "payload", "status", "attempts", "last_error", "retry_after", "created_at",
    "updated_at", "lease_until", "claim_id",
)  # fmt: skip
_STATUS = "status IN ('pending', 'processing', 'completed', 'failed', 'cancelled')"


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    if sqlite:
        remake("events", _create, {name: name for name in _COLUMNS}, _create_indexes)
    else:
        op.drop_constraint(op.f("events_status_check"), "events", type_="check")
        op.create_check_constraint(op.f("events_status_check"), "events", _STATUS)
    ended = sa.text("julianday(updated_at)" if sqlite else "updated_at")
    cancelled = sa.text("status = 'cancelled'")
    op.create_index("events_cancelled_at_idx", "events", [ended], postgresql_where=cancelled, sqlite_where=cancelled)
    op.create_table(
        "webhook_handlers",
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("seen_at", When(), nullable=False),
        sa.PrimaryKeyConstraint("event_type", name="webhook_handlers_pkey"),
    )


def _create(name: str) -> None:
    """The table on SQLite, which cannot change a check."""
    op.create_table(
        name,
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
        sa.Column("claim_id", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="events_pkey"),
        sa.UniqueConstraint("idempotency_key", name="events_idempotency_key_key"),
        sa.CheckConstraint(_STATUS, name=op.f("events_status_check")),
        sa.CheckConstraint("length(idempotency_key) BETWEEN 1 AND 500", name=op.f("events_key_length_check")),
        sa.CheckConstraint("length(event_type) BETWEEN 1 AND 200", name=op.f("events_type_length_check")),
        sa.CheckConstraint("attempts >= 0", name=op.f("events_attempts_check")),
        sa.CheckConstraint(
            "status IN ('pending', 'processing') OR retry_after IS NULL", name=op.f("events_retry_after_check")
        ),
    )


def _create_indexes() -> None:
    free, ended = "lease_until IS NULL", sa.text("julianday(updated_at)")
    due = sa.text("coalesce(julianday(retry_after), 0)")
    indexes: tuple[tuple[str, list[str | sa.TextClause], str], ...] = (
        ("first", ["event_type", due], f"status = 'pending' AND attempts <= 0 AND {free}"),
        ("retry", ["event_type", due], f"status = 'pending' AND attempts > 0 AND {free}"),
        ("lease", [sa.text("coalesce(julianday(lease_until), 0)")], "status = 'processing'"),
        ("due", [sa.text("coalesce(julianday(retry_after), julianday(created_at))")], "status = 'pending'"),
        ("failed", ["id"], "status = 'failed'"),
        ("completed_at", [ended], "status = 'completed'"),
        ("failed_at", [ended], "status = 'failed'"),
    )
    for name, columns, where in indexes:
        op.create_index(f"events_{name}_idx", "events", columns, sqlite_where=sa.text(where))
