"""Gates: which destination a task is for, whose it is and what goes first; the gates themselves and their limits."""

import sqlalchemy as sa
from alembic import op

from redrive.ledgers.sql.times import Instant

revision = "redrive_0003"
down_revision = "redrive_0002"
branch_labels = None

_WAITS = "state = 'waiting' AND failures {} 0 AND lease_until IS NULL"
_GATED = "gate IS NOT NULL AND state = 'waiting' AND lease_until IS NULL"
_HOLDS = "state <> 'flowing' OR paused_at IS NOT NULL OR coalesce(waits_for, '') = 'retry-after'"
_BAND = "coalesce(priority, 1) * 2 + CASE WHEN (failures > 0) THEN 0 ELSE 1 END"


def upgrade() -> None:
    for name, type_ in (("gate", sa.Text()), ("tenant", sa.Text()), ("priority", sa.SmallInteger())):
        op.add_column("redrive_task", sa.Column(name, type_))
    _index_waiting("gate IS NULL AND ")
    band = sa.text(_BAND if op.get_context().dialect.name == "sqlite" else f"({_BAND})")
    _create_index("gate", ["gate", "kind", band, _due()], _GATED)
    turn = sa.text("coalesce(tenant, '')")
    _create_index("turn", ["gate", turn, "kind", band, _due()], _GATED)
    _create_index("parked", ["kind", _due()], f"{_GATED} AND {_due()} >= {_earliest()}")
    _create_index("deadline", ["deadline_at"], f"{_GATED} AND deadline_at IS NOT NULL")
    _create_rules()
    _create_gates()
    _create_spans()


def _create_rules() -> None:
    op.create_table(
        "redrive_gate_rule",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("rate", sa.Integer()),
        sa.Column("rate_seconds", sa.Float(), nullable=False),
        sa.Column("burst", sa.Integer()),
        sa.Column("failures", sa.Integer()),
        sa.Column("share", sa.Float()),
        sa.Column("within_seconds", sa.Float(), nullable=False),
        sa.Column("probe_seconds", sa.Float(), nullable=False),
        sa.Column("budget", sa.Float()),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("set_at", Instant(), nullable=False),
        sa.PrimaryKeyConstraint("ledger", "pattern", name="redrive_gate_rule_pkey"),
    )


def _create_gates() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    op.create_table(
        "redrive_gate",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text()),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("kinds", sa.JSON() if sqlite else sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("waits_for", sa.Text()),
        sa.Column("wake_at", Instant()),
        sa.Column("turn_at", Instant(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Float()),
        sa.Column("tokens_at", Instant(), nullable=False),
        sa.Column("retry_tokens", sa.Float()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since", Instant(), nullable=False),
        sa.Column("probe_at", Instant()),
        sa.Column("probe_claim", sa.Uuid()),
        sa.Column("ramp_at", Instant()),
        sa.Column("ramp_started", sa.Integer(), nullable=False),
        sa.Column("trips", sa.Integer(), nullable=False),
        sa.Column("window_at", Instant(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("tries", "fails", "tries_before", "fails_before")),
        sa.Column("opens_at", Instant()),
        sa.Column("refused", sa.Integer(), nullable=False),
        sa.Column("paused_at", Instant()),
        sa.Column("paused_until", Instant()),
        sa.Column("paused_by", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("ledger", "name", name="redrive_gate_pkey"),
        sa.CheckConstraint("held >= 0", name=op.f("redrive_gate_held_check")),
        postgresql_with={"fillfactor": 50},
    )
    for name, columns, where in (
        ("ready", ["ledger", "tenant", "turn_at"], "ready"),
        ("wake", ["ledger", "wake_at"], "NOT ready"),
        ("asleep", ["ledger", "turn_at"], "waits_for = 'due'"),
        ("holds", ["ledger", "name"], _HOLDS),
    ):
        op.create_index(
            f"redrive_gate_{name}_idx", "redrive_gate", columns,
            postgresql_where=sa.text(where), sqlite_where=sa.text(where),
        )  # fmt: skip


def _create_spans() -> None:
    op.create_table(
        "redrive_gate_span",
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("began_at", Instant(), nullable=False),
        sa.Column("does", sa.Text(), nullable=False),
        sa.Column("ended_at", Instant()),
        sa.PrimaryKeyConstraint("ledger", "name", "began_at", name="redrive_gate_span_pkey"),
    )
    op.create_index(
        "redrive_gate_span_open_idx", "redrive_gate_span", ["ledger", "name"],
        postgresql_where=sa.text("ended_at IS NULL"), sqlite_where=sa.text("ended_at IS NULL"),
    )  # fmt: skip


def _due() -> sa.TextClause:
    return sa.text(f"coalesce(due_at, {_earliest()})")


def _earliest() -> str:
    return "0" if op.get_context().dialect.name == "sqlite" else "'-infinity'::timestamptz"


def _index_waiting(which: str) -> None:
    for name, compared in (("first", "<="), ("retry", ">")):
        op.drop_index(f"redrive_task_{name}_idx", "redrive_task")
        _create_index(name, ["kind", _due()], which + _WAITS.format(compared))


def _create_index(name: str, columns: list[str | sa.TextClause], where: str) -> None:
    op.create_index(
        f"redrive_task_{name}_idx", "redrive_task", columns,
        postgresql_where=sa.text(where), sqlite_where=sa.text(where),
    )  # fmt: skip


def downgrade() -> None:
    for table in ("redrive_gate_span", "redrive_gate", "redrive_gate_rule"):
        op.drop_table(table)
    for name in ("gate", "turn", "parked", "deadline"):
        op.drop_index(f"redrive_task_{name}_idx", "redrive_task")
    _index_waiting("")
    for name in ("priority", "tenant", "gate"):
        op.drop_column("redrive_task", name)
