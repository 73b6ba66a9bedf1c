"""Gates: which of the types somebody has limited or paused a webhook is of."""

from redrive.systems.kit.gate_column import GateColumn

revision = "webhooks_0004"
down_revision = "webhooks_0003"
branch_labels = None

_GATE = GateColumn(
    table="events",
    kind="event_type",
    first="status = 'pending' AND attempts <= 0",
    retry="status = 'pending' AND attempts > 0",
    waiting="status = 'pending'",
    tried="attempts > 0",
    first_due=["retry_after"],
    retry_due=["retry_after"],
    due=["retry_after"],
)


def upgrade() -> None:
    _GATE.add()


def downgrade() -> None:
    _GATE.drop()
