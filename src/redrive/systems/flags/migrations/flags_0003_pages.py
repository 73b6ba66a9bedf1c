"""Indexes for people who look through schedules: those that are to come by when they are due, those that are over by their end.

Each by environment and by flag, so that a page costs the same however many schedules there are.
"""

from alembic import op

revision = "flags_0003"
down_revision = "flags_0002"
branch_labels = None

_SCHEDULES = "feature_flag_schedules"


def upgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    time = "julianday({})".format if sqlite else str
    earliest = "0" if sqlite else "'1970-01-01 00:00:00+00'::timestamptz"
    ahead = f"coalesce({time('next_retry_at')}, {time('scheduled_at')}, {earliest})"
    over = f"coalesce({time('updated_at')}, {earliest})"
    for name, place, where in (
        ("ahead", ahead, "status = 'pending' OR next_retry_at IS NOT NULL"),
        ("over", over, "status <> 'pending' AND next_retry_at IS NULL"),
    ):
        for index, columns in ((name, "environment"), (f"{name}_flag", "environment, flag_key")):
            op.execute(
                f"CREATE INDEX {_SCHEDULES}_{index}_idx ON {_SCHEDULES} ({columns}, status, {place}, id) WHERE {where}"
            )


def downgrade() -> None:
    for index in ("ahead", "ahead_flag", "over", "over_flag"):
        op.drop_index(f"{_SCHEDULES}_{index}_idx", _SCHEDULES)
