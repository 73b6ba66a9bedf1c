"""Tasks, their history, and what is kept with them: results, effects, progress, and who asked them to stop."""

from sqlalchemy import (
    DDL,
    JSON,
    CheckConstraint,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    event,
    text,
)

from redrive.core.states import State
from redrive.core.task import KEY_CHARS_MAX, KIND_CHARS_MAX
from redrive.ledgers.sql.schema.base import ID, PAYLOAD, metadata, where
from redrive.ledgers.sql.times import Instant

_IS_A_STATE = " OR ".join(f"state = '{state}'" for state in State)
"""Not as a list: SQLite makes a list of more than two a table, anew for each row that is written. A claim and its settlement took 1.29 µs, and take 0.33."""

task = Table(
    "redrive_task",
    metadata,
    Column("id", ID, Identity(), primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("payload", PAYLOAD, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'waiting'")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("failures_max", Integer),
    Column("redrives", Integer, nullable=False, server_default=text("0")),
    Column("due_at", Instant),
    Column("deadline_at", Instant),
    Column("lease_until", Instant),
    Column("claim_id", Uuid),
    Column("claimed_at", Instant),
    Column("last_error", Text),
    Column("trace", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("gate", Text),
    Column("tenant", Text),
    Column("priority", SmallInteger),
    CheckConstraint(_IS_A_STATE, name="state"),
    CheckConstraint(f"length(key) BETWEEN 1 AND {KEY_CHARS_MAX}", name="key_length"),
    CheckConstraint(f"length(kind) BETWEEN 1 AND {KIND_CHARS_MAX}", name="kind_length"),
    CheckConstraint("failures >= 0 AND redrives >= 0 AND failures_max >= 1", name="counts"),
    CheckConstraint("(state = 'claimed') = (lease_until IS NOT NULL)", name="lease"),
    CheckConstraint("(lease_until IS NULL) = (claim_id IS NULL)", name="fence"),
    CheckConstraint("(state IN ('waiting', 'claimed')) OR due_at IS NULL", name="due"),
    Index("redrive_task_dead_idx", "id", **where("state = 'dead'")),
    # For pages by state and kind, and for what is old enough to go, which is looked for kind by kind: without an index by the instant alone
    # PostgreSQL does a fifteenth more tasks. Written once, when a task ends. With the id it gives pages their whole order.
    Index("redrive_task_kind_idx", "kind", "state", "ended_at", "id", **where("ended_at IS NOT NULL")),
    # Most of a large table is history that nobody changes: a fifth of it is too much for a vacuum to wait for.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0.02, "autovacuum_analyze_scale_factor": 0.05},
)
"""What is to be done. The indexes that claims need are added by `predicates.ledger_indexes`, as for any table."""
for _name in ("redrive_task_pkey", "redrive_task_key_key"):
    # Each claim and each settlement writes them anew. In pages that are half full PostgreSQL need not look for dead entries, nor split:
    # at tasks that fail once it does a twenty-fifth more.
    event.listen(
        task,
        "after_create",
        DDL(f"ALTER INDEX {_name} SET (fillfactor = 50)").execute_if(dialect="postgresql"),  # type: ignore[no-untyped-call]
    )

attempt = Table(
    "redrive_attempt",
    metadata,
    Column("ledger", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("claim_id", Uuid, nullable=False),
    Column("number", Integer, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("duration_seconds", Float, nullable=False),
    Column("delay_seconds", Float),
    Column("error_class", Text),
    Column("error", Text),
    Column("explanation", JSON(none_as_null=True)),
    Column("version", Text),
    PrimaryKeyConstraint("ledger", "task_id", "claim_id").ddl_if(dialect="postgresql"),
    Index("redrive_attempt_task_idx", "task_id", "ledger").ddl_if(dialect="sqlite"),
)
"""The append-only history: each claim ends in exactly one attempt.

The fence sees to that. PostgreSQL has it as the primary key as well, because it needs an index of the tasks anyway: an integer key
beside it made an insert twice as slow (4.4 and 10.4 µs). SQLite has an integer key in any case, its row id. There a narrow index
beside it is quicker to write than the wide key (3.9 and 4.2 µs) and takes a fifth less room.
"""

stack = Table(
    "redrive_stack",
    metadata,
    Column("id", Text, primary_key=True),
    Column("frames", Text, nullable=False),
    Column("seen_at", Instant, nullable=False),
)
"""Where exceptions came from: each distinct traceback once, however many tries of whatever ledger ended there."""

result = Table(
    "redrive_result",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("result", Text, nullable=False),
    Column("at", Instant, nullable=False),
)
"""What handlers returned, as JSON. A task whose handler returned nothing has no row."""

EFFECT_ASKED = "state IN ('unknown', 'person')"
"""Marks of effects of which nobody knows whether they happened."""

effect = Table(
    "redrive_effect",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("claim_id", Uuid, nullable=False),
    Column("first_at", Instant, nullable=False),
    Column("entered_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("probes", Integer, nullable=False),
    Column("error", Text),
    Column("why", Text),
    Column("came_to", JSON(none_as_null=True)),
    Column("answer", Text),
    Column("answered_by", Text),
    Index("redrive_effect_open_idx", "ledger", "state", "task_id", **where(EFFECT_ASKED)),
)
"""The marks of effects: written before anything is done outside, so that whoever comes next knows that it may have happened."""

stop = Table(
    "redrive_stop",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("claim_id", Uuid, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Instant, nullable=False),
)
"""Tasks that run and that a person wants to be cancelled: the worker that holds the claim looks here."""

progress = Table(
    "redrive_progress",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("claim_id", Uuid, nullable=False),
    Column("at", Instant, nullable=False),
    Column("share", Float),
    Column("words", Text),
    Column("checkpoint", Text),
)
"""How far the tries of tasks have come, and what each leaves for the next one."""
