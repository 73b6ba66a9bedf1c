"""Gates: which of the types somebody has limited or paused a command is of. With PGMQ there are none."""

from alembic import op

from redrive.systems.kit.gate_column import GateColumn

revision = "commands_0003"
down_revision = "commands_0002"
branch_labels = None

_GATE = GateColumn(
    table="commandbus_command",
    kind="kind",
    first="status = 'PENDING' AND attempts <= 0",
    retry="status = 'PENDING' AND attempts > 0",
    waiting="status = 'PENDING'",
    tried="attempts > 0",
    first_due=["due_at"],
    retry_due=["due_at"],
    due=["due_at"],
    times_are_text=False,
)


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        _GATE.add()


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        _GATE.drop()
