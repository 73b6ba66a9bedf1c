"""The audit by act: a line for each commit of an act, and its place in a chain of hashes. Deeds name their line."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant
from redrive.ledgers.sql.works_with import record

revision = "redrive_0006"
down_revision = "redrive_0005"
branch_labels = None
works_with = "redrive_0004"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXTS = ("ledger", "act", "actor", "origin", "reason")
_PARTIAL = (
    ("redrive_audit_at_idx", ["at", "id"], "leads"),
    ("redrive_audit_ledger_idx", ["ledger", "at", "id"], "leads"),
    ("redrive_audit_whole_idx", ["whole", "id"], "whole IS NOT NULL"),
    ("redrive_audit_unlinked_idx", ["id"], "number IS NULL"),
)


def upgrade() -> None:
    op.create_table(
        "redrive_audit",
        sa.Column("id", _ID, sa.Identity(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in _TEXTS),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("things", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text()),
        sa.Column("whole", sa.Text()),
        sa.Column("leads", sa.Boolean(), nullable=False),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.Column("number", sa.BigInteger()),
        sa.Column("previous", sa.Text()),
        sa.Column("hash", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="redrive_audit_pkey"),
        sa.UniqueConstraint("number", name="redrive_audit_number_key"),
    )
    for name, columns, rows in _PARTIAL:
        where = sa.text(rows)
        op.create_index(name, "redrive_audit", columns, sqlite_where=where, postgresql_where=where)
    op.add_column("redrive_deed", sa.Column("line", sa.BigInteger()))
    alone = sa.text("line IS NULL")
    op.create_index("redrive_deed_alone_idx", "redrive_deed", ["id"], sqlite_where=alone, postgresql_where=alone)
    record(op, "engine", revision, works_with)


def downgrade() -> None:
    op.drop_index("redrive_deed_alone_idx", "redrive_deed")
    op.drop_column("redrive_deed", "line")
    op.drop_table("redrive_audit")
    record(op, "engine", "redrive_0005", "redrive_0004")
