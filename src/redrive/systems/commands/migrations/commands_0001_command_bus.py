"""The tables of the command bus, and PGMQ where it is not there yet."""

import re

import sqlalchemy as sa
from alembic import op

from redrive.queues import pgmq_sql
from redrive.sql import Instant

revision = "commands_0001"
down_revision = None
branch_labels = ("commands",)

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATUS = "'PENDING', 'IN_PROGRESS', 'COMPLETED', 'IN_TROUBLESHOOTING_QUEUE', 'CANCELED', 'FAILED'"


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    schema, prefix = (None, "commandbus_") if sqlite else ("commandbus", "")
    if not sqlite:
        _install_pgmq()
        op.execute("CREATE SCHEMA commandbus")
    _create_command(schema, prefix, sqlite=sqlite)
    op.create_table(
        f"{prefix}audit",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("command_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("details", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name=f"{prefix}audit_pkey"),
        schema=schema,
    )
    op.create_index(f"{prefix}audit_command_idx", f"{prefix}audit", ["command_id"], schema=schema)
    counted = ("total", "completed", "failed", "canceled", "in_troubleshooting")
    op.create_table(
        f"{prefix}batch",
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("custom_data", sa.JSON()),
        sa.Column("status", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0")) for name in counted),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("completed_at", Instant()),
        sa.PrimaryKeyConstraint("domain", "batch_id", name=f"{prefix}batch_pkey"),
        sa.CheckConstraint(
            "status IN ('OPEN', 'COMPLETED', 'COMPLETED_WITH_FAILURES')", name=op.f(f"{prefix}batch_status_check")
        ),
        schema=schema,
    )
    op.create_table(
        f"{prefix}handler",
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("command_type", sa.Text(), nullable=False),
        sa.Column("seen_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("domain", "command_type", name=f"{prefix}handler_pkey"),
        schema=schema,
    )
    if sqlite:
        op.create_table(
            "commandbus_reply",
            sa.Column("msg_id", _ID, sa.Identity(), nullable=False),
            sa.Column("queue_name", sa.Text(), nullable=False),
            sa.Column("message", sa.JSON(), nullable=False),
            sa.Column("enqueued_at", Instant(), nullable=False),
            sa.PrimaryKeyConstraint("msg_id", name="commandbus_reply_pkey"),
        )
        op.create_index("commandbus_reply_queue_idx", "commandbus_reply", ["queue_name", "msg_id"])


def _create_command(schema: str | None, prefix: str, *, sqlite: bool) -> None:
    op.create_table(
        f"{prefix}command",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("command_id", sa.Text(), nullable=False),
        sa.Column("command_type", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), sa.Computed("domain || '/' || command_type", persisted=True)),
        sa.Column("queue_name", sa.Text(), nullable=False),
        sa.Column("msg_id", sa.BigInteger()),
        sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'PENDING'")),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("due_at", Instant()),
        sa.Column("lease_until", Instant()),
        sa.Column("claim_id", sa.Uuid()),
        sa.Column("claimed_at", Instant()),
        sa.Column("last_error_type", sa.Text()),
        sa.Column("last_error_code", sa.Text()),
        sa.Column("last_error_msg", sa.Text()),
        sa.Column("reply_queue", sa.Text()),
        sa.Column("correlation_id", sa.Text()),
        sa.Column("batch_id", sa.Text()),
        *([sa.Column("data", sa.Text())] if sqlite else []),
        sa.Column("redrives", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("trace", sa.Text()),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("ended_at", Instant()),
        sa.Column("troubled_at", Instant()),
        sa.PrimaryKeyConstraint("id", name=f"{prefix}command_pkey"),
        sa.UniqueConstraint("domain", "command_id", name=f"{prefix}command_domain_key"),
        sa.CheckConstraint(f"status IN ({_STATUS})", name=op.f(f"{prefix}command_status_check")),
        sa.CheckConstraint("attempts >= 0 AND max_attempts >= 1", name=op.f(f"{prefix}command_attempts_check")),
        schema=schema,
        postgresql_with={"fillfactor": 50},
    )
    indexes: list[tuple[str, list[str | sa.TextClause], str]] = [
        ("troubled", ["id"], "troubled_at IS NOT NULL"),
        ("batch", ["batch_id"], "batch_id IS NOT NULL"),
    ]
    if sqlite:
        free = "lease_until IS NULL"
        indexes += [
            ("first", ["kind", sa.text("coalesce(due_at, 0)")], f"status = 'PENDING' AND attempts <= 0 AND {free}"),
            ("retry", ["kind", sa.text("coalesce(due_at, 0)")], f"status = 'PENDING' AND attempts > 0 AND {free}"),
            ("lease", [sa.text("coalesce(lease_until, 0)")], "status = 'IN_PROGRESS'"),
        ]
    for name, columns, where in indexes:
        op.create_index(
            f"{prefix}command_{name}_idx",
            f"{prefix}command",
            columns,
            schema=schema,
            postgresql_where=sa.text(where),
            sqlite_where=sa.text(where),
        )


def _install_pgmq() -> None:
    """The extension where the server has it, else PGMQ's own SQL from its package; nothing where it is there already."""
    # Colons of the SQL itself must not look like parameters.
    op.execute(sa.text(re.sub(r"(?<!:):(?=\w)", r"\\:", pgmq_sql(None if op.get_context().as_sql else op.get_bind()))))


def downgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    schema, prefix = (None, "commandbus_") if sqlite else ("commandbus", "")
    for name in ("handler", "batch", "audit", "command", *(["reply"] if sqlite else [])):
        op.drop_table(f"{prefix}{name}", schema=schema)
    if not sqlite:
        op.execute("DROP SCHEMA commandbus")
