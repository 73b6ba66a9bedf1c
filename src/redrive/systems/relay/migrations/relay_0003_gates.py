"""Gates: which of the queues somebody has limited or paused a message is for."""

from redrive.systems.kit.gate_column import GateColumn

revision = "relay_0003"
down_revision = "relay_0002"
branch_labels = None

_GATE = GateColumn(
    table="retry_queue",
    first="status = 'pending' AND retry_count <= 0",
    retry="status = 'pending' AND retry_count > 0",
    waiting="status = 'pending'",
    tried="retry_count > 0",
    first_due=["next_retry_at"],
    retry_due=["next_retry_at"],
    due=["next_retry_at"],
)


def upgrade() -> None:
    _GATE.add()


def downgrade() -> None:
    _GATE.drop()
