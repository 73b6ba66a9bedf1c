"""Flags, their users' overrides and schedules, as they were before schedules were retried.

A table that is there already from such a time is taken as it is, if it has these columns and whole numbers as ids. All three are
looked at before anything is changed.
"""

import sqlalchemy as sa
from alembic import context, op

from redrive.errors import NotMigratedError
from redrive.extend import When

revision = "flags_0001"
down_revision = None
branch_labels = ("flags",)

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


_COLUMNS = {
    "feature_flags": "id flag_key environment enabled rollout_percentage description created_at updated_at",
    "feature_flag_user_overrides": "flag_id user_id override_type reason created_by created_at",
    "feature_flag_schedules": "id flag_id flag_key environment scheduled_at status updates applied_at error_message created_by"
    " cancelled_by cancelled_at created_at updated_at",
}


def upgrade() -> None:
    new = [table for table, columns in _COLUMNS.items() if _is_new(table, columns)]
    if "feature_flags" in new:
        op.create_table(
            "feature_flags",
            sa.Column("id", _ID, sa.Identity(), nullable=False),
            sa.Column("flag_key", sa.Text(), nullable=False),
            sa.Column("environment", sa.Text(), nullable=False, server_default=sa.text("'production'")),
            sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("rollout_percentage", sa.Integer(), nullable=False, server_default=sa.text("0")),
            sa.Column("description", sa.Text()),
            sa.Column("created_at", When(), nullable=False),
            sa.Column("updated_at", When(), nullable=False),
            sa.PrimaryKeyConstraint("id", name="feature_flags_pkey"),
            sa.UniqueConstraint("flag_key", "environment", name="feature_flags_flag_key_key"),
            sa.CheckConstraint("length(flag_key) BETWEEN 1 AND 100", name=op.f("feature_flags_flag_key_check")),
            sa.CheckConstraint("length(environment) BETWEEN 1 AND 100", name=op.f("feature_flags_environment_check")),
            sa.CheckConstraint(
                "rollout_percentage BETWEEN 0 AND 100", name=op.f("feature_flags_rollout_percentage_check")
            ),
            sqlite_autoincrement=True,
        )
    if "feature_flag_user_overrides" in new:
        op.create_table(
            "feature_flag_user_overrides",
            sa.Column("flag_id", _ID, nullable=False),
            sa.Column("user_id", sa.Text(), nullable=False),
            sa.Column("override_type", sa.Text(), nullable=False),
            sa.Column("reason", sa.Text()),
            sa.Column("created_by", sa.Text()),
            sa.Column("created_at", When(), nullable=False),
            sa.PrimaryKeyConstraint("flag_id", "user_id", name="feature_flag_user_overrides_pkey"),
            sa.ForeignKeyConstraint(
                ["flag_id"], ["feature_flags.id"], ondelete="CASCADE", name="feature_flag_user_overrides_flag_id_fkey"
            ),
            sa.CheckConstraint(
                "override_type IN ('include', 'exclude')", name=op.f("feature_flag_user_overrides_override_type_check")
            ),
        )
    if "feature_flag_schedules" in new:
        op.create_table(
            "feature_flag_schedules",
            sa.Column("id", _ID, sa.Identity(), nullable=False),
            sa.Column("flag_id", _ID),
            sa.Column("flag_key", sa.Text(), nullable=False),
            sa.Column("environment", sa.Text(), nullable=False, server_default=sa.text("'production'")),
            sa.Column("scheduled_at", When(), nullable=False),
            sa.Column("status", sa.Text(), nullable=False, server_default=sa.text("'pending'")),
            sa.Column("updates", sa.JSON(), nullable=False),
            sa.Column("applied_at", When()),
            sa.Column("error_message", sa.Text()),
            sa.Column("created_by", sa.Text()),
            sa.Column("cancelled_by", sa.Text()),
            sa.Column("cancelled_at", When()),
            sa.Column("created_at", When(), nullable=False),
            sa.Column("updated_at", When(), nullable=False),
            sa.PrimaryKeyConstraint("id", name="feature_flag_schedules_pkey"),
            sa.ForeignKeyConstraint(
                ["flag_id"], ["feature_flags.id"], ondelete="SET NULL", name="feature_flag_schedules_flag_id_fkey"
            ),
            sa.CheckConstraint(
                "status IN ('pending', 'applied', 'failed', 'cancelled')",
                name=op.f("feature_flag_schedules_status_check"),
            ),
            sqlite_autoincrement=True,
        )


def _is_new(table: str, columns: str) -> bool:
    """Whether the table must be made. One of that name with other columns is in the way."""
    if context.is_offline_mode():
        return True
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table):
        return True
    there = {column["name"]: column["type"] for column in inspector.get_columns(table)}
    missing = set(columns.split()) - set(there)
    if missing:
        raise NotMigratedError(
            f"there is a table {table} without {', '.join(sorted(missing))}, which cannot be the flags': rename it, add "
            "what is missing, or leave flags out of REDRIVE_SYSTEMS"
        )
    for name in {"id", "flag_id"}.intersection(there):
        if not isinstance(there[name], sa.Integer):
            raise NotMigratedError(
                f"{table}.{name} is {there[name]!r}, and the flags need whole numbers as ids. Nothing was changed: give the tables "
                "integer ids, rename them and let redrive make its own, or leave flags out of REDRIVE_SYSTEMS"
            )
    return False


def downgrade() -> None:
    for table in ("feature_flag_schedules", "feature_flag_user_overrides", "feature_flags"):
        op.drop_table(table)
