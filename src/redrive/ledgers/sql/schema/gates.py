"""Gates and their limits."""

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
)

from redrive.ledgers.sql.schema.base import metadata, where
from redrive.ledgers.sql.times import Instant

GATE_HOLDS = "state <> 'flowing' OR paused_at IS NOT NULL OR coalesce(waits_for, '') = 'retry-after'"
"""Gates that people want to see first: they hold, return or are paused, or did so until just now."""

gate_rule = Table(
    "redrive_gate_rule",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("pattern", Text, primary_key=True),
    Column("concurrency", Integer),
    Column("rate", Integer),
    Column("rate_seconds", Float, nullable=False),
    Column("burst", Integer),
    Column("failures", Integer),
    Column("share", Float),
    Column("within_seconds", Float, nullable=False),
    Column("probe_seconds", Float, nullable=False),
    Column("budget", Float),
    Column("set_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("set_at", Instant, nullable=False),
)
"""The limits of gates, by patterns of their names. Claims read them each time, so a change holds from the next one on."""

gate = Table(
    "redrive_gate",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("rule", Text),
    Column("tenant", Text, nullable=False),
    Column("kinds", ARRAY(Text).with_variant(JSON(), "sqlite"), nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("waits_for", Text),
    Column("wake_at", Instant),
    Column("turn_at", Instant, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("held", Integer, nullable=False),
    Column("tokens", Float),
    Column("tokens_at", Instant, nullable=False),
    Column("retry_tokens", Float),
    Column("state", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("probe_at", Instant),
    Column("probe_claim", Uuid),
    Column("ramp_at", Instant),
    Column("ramp_started", Integer, nullable=False),
    Column("trips", Integer, nullable=False),
    Column("probes", Integer, nullable=False, server_default="0"),
    Column("window_at", Instant, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("fails", Integer, nullable=False),
    Column("tries_before", Integer, nullable=False),
    Column("fails_before", Integer, nullable=False),
    Column("opens_at", Instant),
    Column("refused", Integer, nullable=False),
    Column("paused_at", Instant),
    Column("paused_until", Instant),
    Column("paused_by", Text),
    Column("reason", Text),
    CheckConstraint("held >= 0", name="held"),
    # A shut, full or idle gate is in neither where a claim looks, so it costs nothing.
    Index("redrive_gate_ready_idx", "ledger", "tenant", "turn_at", **where("ready")),
    Index("redrive_gate_wake_idx", "ledger", "wake_at", **where("NOT ready")),
    # What fell asleep just now: a task may have come meanwhile.
    Index("redrive_gate_asleep_idx", "ledger", "turn_at", **where("waits_for = 'due'")),
    # For people, and for workers that ask which kinds are paused.
    Index("redrive_gate_holds_idx", "ledger", "name", **where(GATE_HOLDS)),
    postgresql_with={"fillfactor": 50},
)
"""Gates: what each lets through is computed from its row (`core.gates`). Every claim and settlement of its tasks writes it."""

gate_span = Table(
    "redrive_gate_span",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("began_at", Instant, primary_key=True),
    Column("does", Text, nullable=False),
    Column("ended_at", Instant),
    Index("redrive_gate_span_open_idx", "ledger", "name", **where("ended_at IS NULL")),
)
"""When gates held, returned or were paused, so that it can be drawn over time; at all other times they let tasks through."""

gate_parked = Table(
    "redrive_gate_parked",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("minute", Instant, primary_key=True),
    Column("parked", Integer, nullable=False),
)
"""How many tasks a gate kept back, minute by minute, while it held, returned or was paused."""
