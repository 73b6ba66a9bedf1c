"""How many probes of a gate did not get through, and how many tasks it kept back in each minute."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0012"
down_revision = "redrive_0011"
branch_labels = None
works_with = "redrive_0004"


def upgrade() -> None:
    op.add_column("redrive_gate", sa.Column("probes", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "redrive_gate_parked",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("minute", Instant(), nullable=False),
        sa.Column("parked", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "name", "minute", name=op.f("redrive_gate_parked_pkey")),
    )
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_table("redrive_gate_parked")
    op.drop_column("redrive_gate", "probes")
    record(op, "engine", "redrive_0011", "redrive_0004")
