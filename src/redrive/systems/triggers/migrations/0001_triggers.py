"""Events, their deliveries and endpoints, and the triggers that keep an event's status equal to its deliveries."""

# ruff: noqa: S608 - the statements are put together from the constants of this file

import sqlalchemy as sa
from alembic import op

from redrive.extend import Instant, IsoText

revision = "triggers_0001"
down_revision = None
branch_labels = ("triggers",)

_WHEN = Instant().with_variant(IsoText(), "sqlite")
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    _create_events()
    _create_deliveries(dialect)
    _create_endpoints()
    _create_books()
    for statement in _SQLITE if dialect == "sqlite" else _POSTGRES:
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    for table in (
        "trigger_secrets", "trigger_limits", "trigger_counts", "trigger_changes", "trigger_notices",
        "trigger_endpoints", "trigger_deliveries", "trigger_events",
    ):  # fmt: skip
        op.drop_table(table)
    if op.get_context().dialect.name == "postgresql":
        for function in ("guard_status", "count_added", "count_moved", "count_deleted", "follow_deliveries"):
            op.execute(f"DROP FUNCTION trigger_{function}()")


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
        sa.Column("last_retry_at", _WHEN),
        sa.Column("next_retry_at", _WHEN),
        sa.Column("failed_at", _WHEN),
        sa.Column("delivered_at", _WHEN),
        sa.Column("acknowledged_at", _WHEN),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("updated_at", _WHEN, nullable=False),
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
    delivered = sa.text("status = 'delivered'")
    op.create_index(
        "trigger_events_delivered_idx", "trigger_events", ["delivered_at"],
        postgresql_where=delivered, sqlite_where=delivered,
    )  # fmt: skip


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
        sa.Column("due_at", _WHEN),
        sa.Column("lease_until", _WHEN),
        sa.Column("claim_id", sa.Uuid().with_variant(sa.Text(), "sqlite")),
        sa.Column("claimed_at", _WHEN),
        sa.Column("ended_at", _WHEN),
        sa.Column("last_error", sa.Text()),
        sa.Column("redrives", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("updated_at", _WHEN, nullable=False),
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
    due, lease, earliest = "due_at", "lease_until", "'-infinity'::timestamptz"
    if dialect == "sqlite":
        due, lease, earliest = "julianday(due_at)", "julianday(lease_until)", "0"
    due = f"coalesce({due}, {earliest})"
    for name, column, where in (
        ("first", due, "status = 'waiting' AND retry_attempts <= 0 AND lease_until IS NULL"),
        ("retry", due, "status = 'waiting' AND retry_attempts > 0 AND lease_until IS NULL"),
        ("lease", f"coalesce({lease}, {earliest})", "status = 'claimed'"),
    ):
        op.create_index(
            f"trigger_deliveries_{name}_idx", "trigger_deliveries", [sa.text(column)],
            postgresql_where=sa.text(where), sqlite_where=sa.text(where),
        )  # fmt: skip


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
        sa.Column("old_secret_until", _WHEN),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_at", _WHEN),
        sa.Column("disabled_reason", sa.Text()),
        sa.Column("failing_since", _WHEN),
        sa.Column("created_at", _WHEN, nullable=False),
        sa.Column("updated_at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="trigger_endpoints_pkey"),
    )
    op.create_index("trigger_endpoints_user_idx", "trigger_endpoints", ["user_id", "id"])
    op.create_table(
        "trigger_notices",
        sa.Column("id", _SERIAL, sa.Identity(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("at", _WHEN, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="trigger_notices_pkey"),
    )
    op.create_index("trigger_notices_user_idx", "trigger_notices", ["user_id", "id"])


def _create_books() -> None:
    op.create_table(
        "trigger_changes",
        sa.Column("id", _SERIAL, sa.Identity(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("old_status", sa.Text()),
        sa.Column("new_status", sa.Text()),
        sa.Column("retry_attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("next_retry_at", _WHEN),
        sa.Column("failed_at", _WHEN),
        sa.Column("created_at", _WHEN),
        sa.Column("at", _WHEN, nullable=False),
        sa.PrimaryKeyConstraint("id", name="trigger_changes_pkey"),
    )
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


# --- triggers ---------------------------------------------------------------------------------------------------------
#
# Four rules, the same on both databases:
#
#   guard    an event moves only along the ways of its life
#   count    every insert, move and delete of an event changes the counters and is written down for the log
#   follow   a delivery that changed is written into its event: the status by its deliveries, the largest count, the
#            latest failure, the earliest next try. What is delivered stays as it is.
#
# PostgreSQL's run once per statement. `follow` locks the events in the order of their ids before it looks at their
# deliveries: two workers that settle two deliveries of one event at once then see each other, and never wait in a circle.

_ALLOWED = """
    (OLD.status = 'received' AND NEW.status IN ('queued', 'delivered'))
    OR (OLD.status = 'queued' AND NEW.status IN ('delivered', 'failed'))
    OR (OLD.status = 'failed' AND NEW.status = 'queued')
"""

# Of the deliveries of an event. A delivery that was never picked up leaves its event as received as it was.
_SUMMED = """
    count(*) FILTER (WHERE status IN ('waiting', 'claimed')) AS open,
    count(*) FILTER (WHERE status = 'dead') AS dead,
    count(*) FILTER (WHERE status = 'done') AS done,
    count(*) FILTER (WHERE claimed_at IS NOT NULL) AS picked,
    max(retry_attempts) FILTER (WHERE status <> 'cancelled') AS attempts,
    min(due_at) FILTER (WHERE status = 'waiting' AND claimed_at IS NOT NULL) AS due,
    max(ended_at) AS ended
"""
_STATUS = """
    CASE
        WHEN d.open > 0 AND (d.picked > 0 OR e.status <> 'received') THEN 'queued'
        WHEN d.open > 0 OR e.status = 'failed' THEN e.status
        WHEN d.dead > 0 THEN 'failed'
        WHEN d.done > 0 THEN 'delivered'
        WHEN e.status = 'queued' THEN 'failed'
        ELSE e.status
    END
"""

_SQLITE_FAILED = """
    (OLD.status = 'claimed'
     AND (NEW.status = 'dead' OR (NEW.status = 'waiting' AND NEW.retry_attempts > OLD.retry_attempts)))
"""
_SQLITE_COUNT = """
    INSERT INTO trigger_counts (user_id, status, shard, amount) VALUES ({row}.user_id, {row}.status, 0, {delta})
    ON CONFLICT (user_id, status, shard) DO UPDATE SET amount = amount + excluded.amount;
"""
_SQLITE_NOTE = """
    INSERT INTO trigger_changes
        (kind, event_id, user_id, correlation_id, old_status, new_status, retry_attempts, error, failed_at, created_at, at)
    VALUES
        ('status', NEW.id, NEW.user_id, NEW.correlation_id, {old}, NEW.status, NEW.retry_attempts, NEW.last_error,
         NEW.failed_at, NEW.created_at, NEW.updated_at);
"""
_SQLITE = (
    f"""
    CREATE TRIGGER trigger_events_guard BEFORE UPDATE OF status ON trigger_events
    WHEN OLD.status <> NEW.status AND NOT ({_ALLOWED})
    BEGIN
        SELECT raise(ABORT, 'an event cannot change its status so');
    END
    """,
    f"""
    CREATE TRIGGER trigger_events_added AFTER INSERT ON trigger_events
    BEGIN
        {_SQLITE_COUNT.format(row="NEW", delta=1)}
        {_SQLITE_NOTE.format(old="NULL")}
    END
    """,
    f"""
    CREATE TRIGGER trigger_events_moved AFTER UPDATE OF status ON trigger_events WHEN OLD.status <> NEW.status
    BEGIN
        {_SQLITE_COUNT.format(row="OLD", delta=-1)}
        {_SQLITE_COUNT.format(row="NEW", delta=1)}
        {_SQLITE_NOTE.format(old="OLD.status")}
    END
    """,
    f"""
    CREATE TRIGGER trigger_events_deleted AFTER DELETE ON trigger_events
    BEGIN
        {_SQLITE_COUNT.format(row="OLD", delta=-1)}
    END
    """,
    f"""
    CREATE TRIGGER trigger_deliveries_followed AFTER UPDATE ON trigger_deliveries
    WHEN OLD.status <> NEW.status OR OLD.retry_attempts <> NEW.retry_attempts OR OLD.due_at IS NOT NEW.due_at
    BEGIN
        INSERT INTO trigger_changes
            (kind, event_id, user_id, correlation_id, retry_attempts, error, next_retry_at, at)
        SELECT 'failure', NEW.event_id, NEW.user_id, NEW.correlation_id, NEW.retry_attempts, NEW.last_error,
               NEW.due_at, NEW.updated_at
        WHERE {_SQLITE_FAILED};
        UPDATE trigger_events SET
            (status, retry_attempts, next_retry_at, failed_at, delivered_at) = (
                SELECT s.status, coalesce(s.attempts, s.attempts_before), CASE s.status WHEN 'queued' THEN s.due END,
                       CASE s.status WHEN 'failed' THEN coalesce(s.failed_before, s.ended, NEW.updated_at) END,
                       CASE s.status WHEN 'delivered' THEN s.ended END
                FROM (
                    SELECT {_STATUS} AS status, d.attempts, e.retry_attempts AS attempts_before, d.due, d.ended,
                           e.failed_at AS failed_before
                    FROM (SELECT {_SUMMED} FROM trigger_deliveries WHERE event_id = NEW.event_id) AS d,
                         (SELECT * FROM trigger_events WHERE id = NEW.event_id) AS e
                ) AS s
            ),
            last_retry_at = CASE WHEN {_SQLITE_FAILED} THEN NEW.updated_at ELSE last_retry_at END,
            last_error = CASE WHEN {_SQLITE_FAILED} THEN NEW.last_error ELSE last_error END,
            updated_at = NEW.updated_at
        WHERE id = NEW.event_id AND status <> 'delivered';
    END
    """,
)

_POSTGRES_COUNT = """
    INSERT INTO trigger_counts (user_id, status, shard, amount)
    SELECT user_id, status, pg_backend_pid() % 64, sum(delta) FROM ({rows}) AS changed
    GROUP BY user_id, status HAVING sum(delta) <> 0 ORDER BY user_id, status
    ON CONFLICT (user_id, status, shard) DO UPDATE SET amount = trigger_counts.amount + excluded.amount;
"""
_POSTGRES_NOTE = """
    INSERT INTO trigger_changes
        (kind, event_id, user_id, correlation_id, old_status, new_status, retry_attempts, error, failed_at, created_at, at)
    SELECT 'status', n.id, n.user_id, n.correlation_id, {old}, n.status, n.retry_attempts, n.last_error, n.failed_at,
           n.created_at, n.updated_at
    FROM {rows} ORDER BY n.id;
"""
_POSTGRES = (
    f"""
    CREATE FUNCTION trigger_guard_status() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NOT ({_ALLOWED}) THEN
            RAISE EXCEPTION 'an event cannot change its status from % to %', OLD.status, NEW.status
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER trigger_events_guard BEFORE UPDATE OF status ON trigger_events
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION trigger_guard_status()
    """,
    f"""
    CREATE FUNCTION trigger_count_added() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        {_POSTGRES_COUNT.format(rows="SELECT user_id, status, 1 AS delta FROM new_rows")}
        {_POSTGRES_NOTE.format(old="NULL", rows="new_rows AS n")}
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER trigger_events_added AFTER INSERT ON trigger_events
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION trigger_count_added()
    """,
    f"""
    CREATE FUNCTION trigger_count_moved() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM new_rows AS n JOIN old_rows AS o USING (id) WHERE o.status <> n.status) THEN
            RETURN NULL;
        END IF;
        {
        _POSTGRES_COUNT.format(
            rows="SELECT user_id, status, 1 AS delta FROM new_rows UNION ALL SELECT user_id, status, -1 FROM old_rows"
        )
    }
        {
        _POSTGRES_NOTE.format(
            old="o.status", rows="new_rows AS n JOIN old_rows AS o ON o.id = n.id AND o.status <> n.status"
        )
    }
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER trigger_events_moved AFTER UPDATE ON trigger_events
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION trigger_count_moved()
    """,
    f"""
    CREATE FUNCTION trigger_count_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        {_POSTGRES_COUNT.format(rows="SELECT user_id, status, -1 AS delta FROM old_rows")}
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER trigger_events_deleted AFTER DELETE ON trigger_events
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION trigger_count_deleted()
    """,
    f"""
    CREATE FUNCTION trigger_follow_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        changed text[];
    BEGIN
        SELECT array_agg(DISTINCT n.event_id) INTO changed
        FROM new_rows AS n JOIN old_rows AS o USING (id)
        WHERE (n.status, n.retry_attempts, n.due_at) IS DISTINCT FROM (o.status, o.retry_attempts, o.due_at);
        IF changed IS NULL THEN
            RETURN NULL;
        END IF;
        PERFORM FROM trigger_events WHERE id = ANY (changed) ORDER BY id FOR UPDATE;
        INSERT INTO trigger_changes
            (kind, event_id, user_id, correlation_id, retry_attempts, error, next_retry_at, at)
        SELECT 'failure', n.event_id, n.user_id, n.correlation_id, n.retry_attempts, n.last_error, n.due_at, n.updated_at
        FROM new_rows AS n JOIN old_rows AS o USING (id)
        WHERE o.status = 'claimed'
          AND (n.status = 'dead' OR (n.status = 'waiting' AND n.retry_attempts > o.retry_attempts))
        ORDER BY n.id;
        UPDATE trigger_events AS t SET
            status = s.status,
            retry_attempts = coalesce(s.attempts, t.retry_attempts),
            next_retry_at = CASE s.status WHEN 'queued' THEN s.due END,
            failed_at = CASE s.status WHEN 'failed' THEN coalesce(t.failed_at, s.ended, s.updated) END,
            delivered_at = CASE s.status WHEN 'delivered' THEN s.ended END,
            last_retry_at = coalesce(s.failure, t.last_retry_at),
            last_error = coalesce(s.error, t.last_error),
            updated_at = s.updated
        FROM (
            SELECT e.id, {_STATUS} AS status, d.attempts, d.due, d.ended, f.failure, f.error, f.updated
            FROM trigger_events AS e
            JOIN (
                SELECT event_id, {_SUMMED} FROM trigger_deliveries WHERE event_id = ANY (changed) GROUP BY event_id
            ) AS d ON d.event_id = e.id
            JOIN (
                SELECT n.event_id, max(n.updated_at) AS updated,
                       max(n.updated_at) FILTER (WHERE o.status = 'claimed' AND (n.status = 'dead'
                           OR (n.status = 'waiting' AND n.retry_attempts > o.retry_attempts))) AS failure,
                       max(n.last_error) FILTER (WHERE o.status = 'claimed' AND (n.status = 'dead'
                           OR (n.status = 'waiting' AND n.retry_attempts > o.retry_attempts))) AS error
                FROM new_rows AS n JOIN old_rows AS o USING (id) GROUP BY n.event_id
            ) AS f ON f.event_id = e.id
            WHERE e.id = ANY (changed) AND e.status <> 'delivered'
        ) AS s
        WHERE t.id = s.id;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER trigger_deliveries_followed AFTER UPDATE ON trigger_deliveries
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION trigger_follow_deliveries()
    """,
)
