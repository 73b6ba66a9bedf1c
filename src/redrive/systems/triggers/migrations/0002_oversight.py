"""What operators ask of endpoints: who switched one off, and indexes for those that are off, failing or owe deliveries."""

import sqlalchemy as sa
from alembic import op

revision = "triggers_0002"
down_revision = "triggers_0001"
branch_labels = None

_OF_DELIVERIES = ("trigger_deliveries", "failures", ["endpoint_id", "status", "id"], "last_error IS NOT NULL")
_OF_ENDPOINTS = (
    ("trigger_endpoints", "disabled", ["disabled_at", "id"], "disabled_at IS NOT NULL"),
    ("trigger_endpoints", "given_up", ["disabled_at", "id"], "disabled_at IS NOT NULL AND disabled_by IS NULL"),
    ("trigger_endpoints", "failing", ["failing_since", "id"], "failing_since IS NOT NULL AND disabled_at IS NULL"),
)


def upgrade() -> None:
    # The large table first: a new column shuts everybody out of its table until the commit.
    _create_index(*_OF_DELIVERIES)
    op.add_column("trigger_endpoints", sa.Column("disabled_by", sa.Text()))
    # Until now one that was made disabled had no time of that, and who had switched one off was said in its reason only.
    op.execute(
        "UPDATE trigger_endpoints SET disabled_by = user_id, disabled_at = coalesce(disabled_at, created_at), "
        "disabled_reason = coalesce(disabled_reason, 'switched off by its owner') "
        "WHERE NOT enabled AND (disabled_at IS NULL OR disabled_reason = 'switched off by its owner')"
    )
    for index in _OF_ENDPOINTS:
        _create_index(*index)


def _create_index(table: str, name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(f"{table}_{name}_idx", table, columns, postgresql_where=condition, sqlite_where=condition)


def downgrade() -> None:
    for table, name, _, _ in (_OF_DELIVERIES, *_OF_ENDPOINTS):
        op.drop_index(f"{table}_{name}_idx")
    op.drop_column("trigger_endpoints", "disabled_by")
