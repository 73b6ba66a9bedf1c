"""Tasks, their attempts and rollups, deeds and keys; the census, dead tasks by cause, alerts, turns and shared secrets."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import CREATE_INSTANT_FUNCTION, Instant

revision = "redrive_0001"
down_revision = None
branch_labels = ("engine",)

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATES = ("waiting", "claimed", "done", "dead", "cancelled")
_COUNTERS = (
    *("done", "retried", "dead", "cancelled", "snoozed", "released", "lease_expired", "added", "pruned"),
    *(f"tries_{tries}" for tries in (1, 2, 3, 4, 5, "more")),
    *(f"took_{at:02}" for at in range(17)),
)
_TABLES = ("key", "deed", "cause", "alert", "turn", "secret", "dead", "sample", "census", "minute", "attempt", "task")


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    if not sqlite:
        op.execute(CREATE_INSTANT_FUNCTION)
    _create_tasks(sqlite=sqlite)
    _create_attempts(sqlite=sqlite)
    _create_minutes()
    _create_what_operators_see()
    op.create_table(
        "redrive_deed",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="redrive_deed_pkey"),
    )
    op.create_index("redrive_deed_task_idx", "redrive_deed", ["ledger", "task_id"])
    op.create_table(
        "redrive_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("expires_at", Instant()),
        sa.Column("revoked_at", Instant()),
        sa.PrimaryKeyConstraint("id", name="redrive_key_pkey"),
        sa.UniqueConstraint("sha256", name="redrive_key_sha256_key"),
    )


def _create_tasks(*, sqlite: bool) -> None:
    op.create_table(
        "redrive_task",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text() if sqlite else sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default=sa.text("'waiting'")),
        sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("failures_max", sa.Integer()),
        sa.Column("redrives", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("due_at", Instant()),
        sa.Column("deadline_at", Instant()),
        sa.Column("lease_until", Instant()),
        sa.Column("claim_id", sa.Uuid()),
        sa.Column("claimed_at", Instant()),
        sa.Column("last_error", sa.Text()),
        sa.Column("trace", sa.Text()),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("updated_at", Instant(), nullable=False),
        sa.Column("ended_at", Instant()),
        sa.PrimaryKeyConstraint("id", name="redrive_task_pkey"),
        sa.UniqueConstraint("key", name="redrive_task_key_key"),
        sa.CheckConstraint(
            " OR ".join(f"state = '{state}'" for state in _STATES), name=op.f("redrive_task_state_check")
        ),
        sa.CheckConstraint("length(key) BETWEEN 1 AND 500", name=op.f("redrive_task_key_length_check")),
        sa.CheckConstraint("length(kind) BETWEEN 1 AND 200", name=op.f("redrive_task_kind_length_check")),
        sa.CheckConstraint(
            "failures >= 0 AND redrives >= 0 AND failures_max >= 1", name=op.f("redrive_task_counts_check")
        ),
        sa.CheckConstraint("(state = 'claimed') = (lease_until IS NOT NULL)", name=op.f("redrive_task_lease_check")),
        sa.CheckConstraint("(lease_until IS NULL) = (claim_id IS NULL)", name=op.f("redrive_task_fence_check")),
        sa.CheckConstraint("(state IN ('waiting', 'claimed')) OR due_at IS NULL", name=op.f("redrive_task_due_check")),
    )
    earliest = "0" if sqlite else "'-infinity'::timestamptz"
    due, ended = sa.text(f"coalesce(due_at, {earliest})"), "ended_at IS NOT NULL"
    indexes: tuple[tuple[str, list[str | sa.TextClause], str], ...] = (
        ("first", ["kind", due], "state = 'waiting' AND failures <= 0 AND lease_until IS NULL"),
        ("retry", ["kind", due], "state = 'waiting' AND failures > 0 AND lease_until IS NULL"),
        ("lease", [sa.text(f"coalesce(lease_until, {earliest})")], "state = 'claimed'"),
        ("dead", ["id"], "state = 'dead'"),
        ("ended", ["ended_at"], ended),
        ("kind", ["kind", "state", "ended_at", "id"], ended),
    )
    for name, columns, where in indexes:
        op.create_index(
            f"redrive_task_{name}_idx", "redrive_task", columns,
            postgresql_where=sa.text(where), sqlite_where=sa.text(where),
        )  # fmt: skip


def _create_attempts(*, sqlite: bool) -> None:
    fence = [] if sqlite else [sa.PrimaryKeyConstraint("ledger", "task_id", "claim_id", name="redrive_attempt_pkey")]
    op.create_table(
        "redrive_attempt",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", Instant()),
        sa.Column("ended_at", Instant(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("duration_seconds", sa.Float(), nullable=False),
        sa.Column("delay_seconds", sa.Float()),
        sa.Column("error_class", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("explanation", sa.JSON()),
        *fence,
    )
    if sqlite:
        op.create_index("redrive_attempt_task_idx", "redrive_attempt", ["task_id", "ledger"])


def _create_minutes() -> None:
    op.create_table(
        "redrive_minute",
        sa.Column("minute", Instant(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")) for name in _COUNTERS),
        sa.Column("run_seconds", sa.Float(), nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("minute", "ledger", "worker", name="redrive_minute_pkey"),
    )


def _create_what_operators_see() -> None:
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
    op.create_table(
        "redrive_secret",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="redrive_secret_pkey"),
    )


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(f"redrive_{table}")
