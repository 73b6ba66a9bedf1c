"""What retries need: their columns and checks on `feature_flag_schedules`, indexes, what was set last, and the audit.

Indexes for people hold schedules that are to come by when they are due, and those that are over by their end, each by environment
and by flag: a page costs the same however many schedules there are.

Columns are added with their checks, which both databases take in one statement: no table is written anew, and rows of every
status stay as they are. A schedule that had failed has no time for a next try, so it stays failed for good.
"""

import sqlalchemy as sa
from alembic import context, op

from redrive.extend import When

revision = "flags_0002"
down_revision = "flags_0001"
branch_labels = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SCHEDULES = "feature_flag_schedules"


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    time, uuid, earliest = ("TEXT", "TEXT", "0") if sqlite else ("timestamptz", "uuid", "'-infinity'::timestamptz")
    check = f"CONSTRAINT {_SCHEDULES}_{{}}_check CHECK ({{}})".format
    _add(
        _SCHEDULES,
        {
            "retry_count": f"INTEGER DEFAULT 0 NOT NULL {check('retry_count', 'retry_count >= 0')}",
            "max_retries": f"INTEGER DEFAULT 3 NOT NULL {check('max_retries', 'max_retries BETWEEN 0 AND 10')}",
            "next_retry_at": f"{time} "
            + check("next_retry_at", "next_retry_at IS NULL OR status IN ('pending', 'failed')"),
            "last_error": "TEXT",
            "expires_at": time,
            "lease_until": time,
            "claim_id": f"{uuid} {check('fence', '(lease_until IS NULL) = (claim_id IS NULL)')}",
        },
    )
    _add("feature_flags", {"last_set": "JSON DEFAULT '{}' NOT NULL"})
    # Whoever asks why an old schedule failed finds it where new ones say so.
    op.execute(
        f"UPDATE {_SCHEDULES} SET last_error = error_message "  # noqa: S608 - our own name
        "WHERE status = 'failed' AND last_error IS NULL"
    )
    due = "julianday({})".format if sqlite else str
    indexes: tuple[tuple[str, str, str], ...] = (
        (f"{_SCHEDULES}_first_idx", f"coalesce({due('scheduled_at')}, {earliest})",
         "status = 'pending' AND next_retry_at IS NULL AND lease_until IS NULL"),
        (f"{_SCHEDULES}_retry_idx", f"coalesce({due('next_retry_at')}, {earliest})",
         "status IN ('pending', 'failed') AND (next_retry_at IS NOT NULL OR status = 'pending')"
         " AND (next_retry_at IS NOT NULL OR status = 'failed') AND lease_until IS NULL"),
        (f"{_SCHEDULES}_lease_idx", due("lease_until"), "lease_until IS NOT NULL"),
        ("idx_schedules_next_retry_at", "next_retry_at", "next_retry_at IS NOT NULL"),
    )  # fmt: skip
    for name, column, where in indexes:
        # Whoever has added the columns by hand may have added the index with this well-known name, too.
        there = "IF NOT EXISTS " if name == "idx_schedules_next_retry_at" else ""
        op.execute(f"CREATE INDEX {there}{name} ON {_SCHEDULES} ({column}) WHERE {where}")
    begin = due("'1970-01-01 00:00:00+00:00'")
    ahead = f"coalesce({due('next_retry_at')}, {due('scheduled_at')}, {begin})"
    over = f"coalesce({due('updated_at')}, {begin})"
    for listing, place, where in (
        ("ahead", ahead, "status = 'pending' OR next_retry_at IS NOT NULL"),
        ("over", over, "status <> 'pending' AND next_retry_at IS NULL"),
    ):
        for index, columns in ((listing, "environment"), (f"{listing}_flag", "environment, flag_key")):
            op.execute(
                f"CREATE INDEX {_SCHEDULES}_{index}_idx ON {_SCHEDULES} ({columns}, status, {place}, id) WHERE {where}"
            )
    op.create_index(f"{_SCHEDULES}_flag_idx", _SCHEDULES, ["flag_key", "environment"])
    op.create_index(f"{_SCHEDULES}_flag_id_idx", _SCHEDULES, ["flag_id"])
    op.create_index("feature_flag_user_overrides_user_idx", "feature_flag_user_overrides", ["user_id"])
    op.create_table(
        "feature_flag_audit",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        sa.Column("at", When(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("flag_key", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("schedule_id", _ID, nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="feature_flag_audit_pkey"),
    )
    op.create_index("feature_flag_audit_schedule_idx", "feature_flag_audit", ["schedule_id"])
    _append_only(sqlite=sqlite)


def _add(table: str, columns: dict[str, str]) -> None:
    """Add the columns that are not there yet."""
    there: set[str] = set()
    if not context.is_offline_mode():
        there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for name, definition in columns.items():
        if name not in there:
            op.execute(f"ALTER TABLE {table} ADD COLUMN {name} {definition}")


def _append_only(*, sqlite: bool) -> None:
    """Refuse to change or delete what the audit says."""
    if not sqlite:
        op.execute(
            "CREATE FUNCTION feature_flag_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'feature_flag_audit is append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER feature_flag_audit_no_truncate BEFORE TRUNCATE ON feature_flag_audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION feature_flag_audit_is_append_only()"
        )
    for act in ("UPDATE", "DELETE"):
        then = (
            "BEGIN SELECT RAISE(ABORT, 'feature_flag_audit is append-only'); END"
            if sqlite
            else "FOR EACH ROW EXECUTE FUNCTION feature_flag_audit_is_append_only()"
        )
        op.execute(f"CREATE TRIGGER feature_flag_audit_no_{act.lower()} BEFORE {act} ON feature_flag_audit {then}")


def downgrade() -> None:
    op.drop_table("feature_flag_audit")
    if op.get_context().dialect.name != "sqlite":
        op.execute("DROP FUNCTION feature_flag_audit_is_append_only()")
    indexes = ("first", "retry", "lease", "flag", "flag_id", "ahead", "ahead_flag", "over", "over_flag")
    for name in ("idx_schedules_next_retry_at", *(f"{_SCHEDULES}_{index}_idx" for index in indexes)):
        op.drop_index(name, _SCHEDULES)
    op.drop_index("feature_flag_user_overrides_user_idx", "feature_flag_user_overrides")
    op.drop_column("feature_flags", "last_set")
    columns = ("claim_id", "lease_until", "expires_at", "last_error", "next_retry_at", "max_retries", "retry_count")
    for column in columns:
        op.drop_column(_SCHEDULES, column)
