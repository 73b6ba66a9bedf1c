"""Gates: limits and a pause for the runner of schedules, and which schedules go first."""

from redrive.systems.kit.gate_column import GateColumn

revision = "flags_0004"
down_revision = "flags_0003"
branch_labels = None

_GATE = GateColumn(
    table="feature_flag_schedules",
    first="status = 'pending' AND next_retry_at IS NULL",
    retry="status IN ('pending', 'failed') AND (next_retry_at IS NOT NULL OR status = 'pending')"
    " AND (next_retry_at IS NOT NULL OR status = 'failed')",
    waiting="(status = 'pending' OR status = 'failed' AND next_retry_at IS NOT NULL)",
    tried="next_retry_at IS NOT NULL OR status = 'failed'",
    first_due=["scheduled_at"],
    retry_due=["next_retry_at"],
    due=["next_retry_at", "scheduled_at"],
    priority=True,
)


def upgrade() -> None:
    _GATE.add()


def downgrade() -> None:
    _GATE.drop()
