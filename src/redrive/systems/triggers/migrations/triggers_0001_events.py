"""Events, their deliveries and endpoints."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from redrive.extend import When

revision = "triggers_0001"
down_revision = None
branch_labels = ("triggers",)

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    _create_events()
    _create_deliveries(dialect)
    _create_endpoints()
    _create_books(dialect)


def downgrade() -> None:
    for table in (
        "trigger_secrets", "trigger_limits", "trigger_counts", "trigger_notices",
        "trigger_endpoints", "trigger_deliveries", "trigger_events",
    ):  # fmt: skip
        op.drop_table(table)


def _create_events() -> None:
    op.create_table(
        "trigger_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'received'")),
        sa.Column("retry_attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("last_retry_at", When()),
        sa.Column("next_retry_at", When()),
        sa.Column("failed_at", When()),
        sa.Column("delivered_at", When()),
        sa.Column("acknowledged_at", When()),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", When(), nullable=False),
        sa.Column("updated_at", When(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="trigger_events_pkey"),
        sa.CheckConstraint(
            "status IN ('received', 'queued', 'delivered', 'failed')", name=op.f("trigger_events_status_check")
        ),
        sa.CheckConstraint("retry_attempts BETWEEN 0 AND 3", name=op.f("trigger_events_retry_attempts_check")),
        sa.CheckConstraint(
            "(status = 'failed') = (failed_at IS NOT NULL)", name=op.f("trigger_events_failed_at_check")
        ),
        sa.CheckConstraint(
            "status = 'queued' OR next_retry_at IS NULL", name=op.f("trigger_events_next_retry_at_check")
        ),
    )
    op.create_index("trigger_events_inbox_idx", "trigger_events", ["user_id", "status", "id"])
    op.create_index("trigger_events_type_idx", "trigger_events", ["user_id", "status", "event_type", "id"])
    named = sa.text("idempotency_key IS NOT NULL")
    op.create_index(
        "trigger_events_idempotency_idx", "trigger_events", ["user_id", "idempotency_key"], unique=True,
        postgresql_where=named, sqlite_where=named,
    )  # fmt: skip
    _create_index("trigger_events", "delivered", ["delivered_at"], "status = 'delivered'")


def _create_deliveries(dialect: str) -> None:
    op.create_table(
        "trigger_deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'waiting'")),
        sa.Column("retry_attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("retries_max", sa.Integer(), nullable=False, server_default=sa.text("3")),
        sa.Column("due_at", When()),
        sa.Column("lease_until", When()),
        sa.Column("claim_id", sa.Uuid().with_variant(sa.Text(), "sqlite")),
        sa.Column("claimed_at", When()),
        sa.Column("ended_at", When()),
        sa.Column("last_error", sa.Text()),
        sa.Column("redrives", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", When(), nullable=False),
        sa.Column("updated_at", When(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="trigger_deliveries_pkey"),
        sa.ForeignKeyConstraint(
            ["event_id"], ["trigger_events.id"], name="trigger_deliveries_event_id_fkey", ondelete="CASCADE"
        ),
        sa.CheckConstraint(
            "status IN ('waiting', 'claimed', 'done', 'dead', 'cancelled')",
            name=op.f("trigger_deliveries_status_check"),
        ),
        sa.CheckConstraint("retry_attempts BETWEEN 0 AND 3", name=op.f("trigger_deliveries_retry_attempts_check")),
        sa.CheckConstraint("retries_max BETWEEN 0 AND 3", name=op.f("trigger_deliveries_retries_max_check")),
    )
    op.create_index("trigger_deliveries_event_idx", "trigger_deliveries", ["event_id"])
    op.create_index("trigger_deliveries_endpoint_idx", "trigger_deliveries", ["endpoint_id", "id"])
    _create_index("trigger_deliveries", "failures", ["endpoint_id", "status", "id"], "last_error IS NOT NULL")
    due, lease, earliest = "due_at", "lease_until", "'-infinity'::timestamptz"
    if dialect == "sqlite":
        due, lease, earliest = "julianday(due_at)", "julianday(lease_until)", "0"
    due = f"coalesce({due}, {earliest})"
    for name, column, where in (
        ("first", due, "status = 'waiting' AND retry_attempts <= 0 AND lease_until IS NULL"),
        ("retry", due, "status = 'waiting' AND retry_attempts > 0 AND lease_until IS NULL"),
        ("lease", f"coalesce({lease}, {earliest})", "status = 'claimed'"),
    ):
        _create_index("trigger_deliveries", name, [sa.text(column)], where)


def _create_index(table: str, name: str, columns: list[Any], where: str) -> None:
    condition = sa.text(where)
    op.create_index(f"{table}_{name}_idx", table, columns, postgresql_where=condition, sqlite_where=condition)


def _create_endpoints() -> None:
    op.create_table(
        "trigger_endpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", sa.JSON(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("old_secret", sa.Text()),
        sa.Column("old_secret_until", When()),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_at", When()),
        sa.Column("disabled_reason", sa.Text()),
        sa.Column("failing_since", When()),
        sa.Column("created_at", When(), nullable=False),
        sa.Column("updated_at", When(), nullable=False),
        sa.Column("disabled_by", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="trigger_endpoints_pkey"),
    )
    op.create_index("trigger_endpoints_user_idx", "trigger_endpoints", ["user_id", "id"])
    for name, columns, where in (
        ("disabled", ["disabled_at", "id"], "disabled_at IS NOT NULL"),
        ("given_up", ["disabled_at", "id"], "disabled_at IS NOT NULL AND disabled_by IS NULL"),
        ("failing", ["failing_since", "id"], "failing_since IS NOT NULL AND disabled_at IS NULL"),
    ):
        _create_index("trigger_endpoints", name, columns, where)
    op.create_table(
        "trigger_notices",
        sa.Column("id", _SERIAL, sa.Identity(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("at", When(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="trigger_notices_pkey"),
    )
    op.create_index("trigger_notices_user_idx", "trigger_notices", ["user_id", "id"])


def _create_books(dialect: str) -> None:
    op.create_table(
        "trigger_counts",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user_id", "status", "shard", name="trigger_counts_pkey"),
    )
    op.create_table(
        "trigger_limits",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("minute", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "minute", name="trigger_limits_pkey"),
    )
    op.create_index("trigger_limits_minute_idx", "trigger_limits", ["minute"])
    op.create_table(
        "trigger_secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="trigger_secrets_pkey"),
    )
    # Made here, so that nobody who looks for a page has to write it down first; by the database, so that no printed SQL has it.
    random = "lower(hex(randomblob(32)))"
    if dialect == "postgresql":
        random = "replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')"
    op.execute(f"INSERT INTO trigger_secrets (name, value) VALUES ('cursor', {random})")  # noqa: S608 - both are ours
