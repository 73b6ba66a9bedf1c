"""redrive's own tables. Migrations create them; a test holds the two equal on both databases."""

from dataclasses import fields

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)

from redrive.core.histograms import RAN, TOOK, TRIES
from redrive.core.operation import FateTally
from redrive.core.states import State
from redrive.core.task import KEY_CHARS_MAX, KIND_CHARS_MAX
from redrive.ledgers.rollup import FLOWS, STATES_AND_OUTCOMES
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.times import Instant

NAMES = {
    "ix": "%(table_name)s_%(column_0_name)s_idx",
    "uq": "%(table_name)s_%(column_0_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}
"""How constraints and indexes are called, as PostgreSQL itself would."""

metadata = MetaData(naming_convention=NAMES)

# SQLite counts rows by itself only in a column that is INTEGER to the letter.

_ID = BigInteger().with_variant(Integer(), "sqlite")
_IS_A_STATE = " OR ".join(f"state = '{state}'" for state in State)
"""Not as a list: SQLite makes a list of more than two a table, anew for each row that is written. A claim and its settlement took 1.29 µs, and take 0.33."""
_PAYLOAD = JSON().with_variant(JsonText(), "sqlite")
FATES_COUNTED = tuple(field.name for field in fields(FateTally))
"""What an operation counts of its tasks."""
OPEN = "ended_at IS NULL OR released > done + failed + ended"
"""Whether an operation has anything to do, or to wait for."""

EFFECT_ASKED = "state IN ('unknown', 'person')"
"""Marks of effects of which nobody knows whether they happened."""

task = Table(
    "redrive_task",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("payload", JSON().with_variant(JsonText(), "sqlite"), nullable=False),
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
    Index("redrive_task_dead_idx", "id", sqlite_where=text("state = 'dead'"), postgresql_where=text("state = 'dead'")),
    Index(
        "redrive_task_ended_idx",
        "ended_at",
        sqlite_where=text("ended_at IS NOT NULL"),
        postgresql_where=text("ended_at IS NOT NULL"),
    ),
    # The one index that only people need: pages by state and kind. Written once, when a task ends. With the id it gives
    # pages their whole order; without, PostgreSQL at times preferred the index above and filtered.
    Index(
        "redrive_task_kind_idx",
        "kind",
        "state",
        "ended_at",
        "id",
        sqlite_where=text("ended_at IS NOT NULL"),
        postgresql_where=text("ended_at IS NOT NULL"),
    ),
    # Most of a large table is history that nobody changes: a fifth of it is too much for a vacuum to wait for.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0.02, "autovacuum_analyze_scale_factor": 0.05},
)
"""What is to be done. The indexes that claims need are added by `predicates.ledger_indexes`, as for any table."""

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

minute = Table(
    "redrive_minute",
    metadata,
    Column("minute", Instant, primary_key=True),
    Column("ledger", Text, primary_key=True),
    Column("worker", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False, server_default=text("0")) for name in STATES_AND_OUTCOMES),
    Column("run_seconds", Float, nullable=False, server_default=text("0")),
    *(
        Column(name, BigInteger, nullable=False, server_default=text("0"))
        for name in ("added", "pruned", *TRIES, *TOOK)
    ),
)
"""What each worker settled, and what was added and pruned, in each minute, so that charts do not count the tasks."""

census = Table(
    "redrive_census",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("seconds", Float, nullable=False),
    *(Column(state.value, BigInteger, nullable=False) for state in State),
    *(Column(f"base_{name}", BigInteger, nullable=False) for name in FLOWS),
    Column("oldest_due_seconds", Float),
)
"""How many tasks were in each state when they were last counted, and what the minute had counted by then."""

sample = Table(
    "redrive_sample",
    metadata,
    Column("minute", Instant, primary_key=True),
    Column("ledger", Text, primary_key=True),
    *(Column(state.value, BigInteger, nullable=False) for state in State),
    Column("oldest_due_seconds", Float),
)
"""A census for each minute, so that depths can be drawn over time."""

dead = Table(
    "redrive_dead",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("cause", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("listed_at", Instant, nullable=False),
    Index("redrive_dead_cause_idx", "ledger", "cause", "since", "task_id"),
    Index("redrive_dead_since_idx", "ledger", "since", "task_id"),
)
"""The dead tasks of all ledgers with their causes, as of the last census."""

turn = Table(
    "redrive_turn",
    metadata,
    Column("name", Text, primary_key=True),
    Column("until", Instant, nullable=False),
)
"""Chores that one of many services does for all: whose turn it is until when."""

worker = Table(
    "redrive_worker",
    metadata,
    Column("name", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text),
    Column("slots", Integer, nullable=False),
    Column("holds", JSON, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("stopped_at", Instant),
    Column("lease_seconds", Float),
    Column("tries_a_minute", Integer),
    Column("held_since", Instant),
    Column("drift_ms", Float),
    Index("redrive_worker_seen_idx", "seen_at", "name"),
)
"""Who works, and when each last gave a sign of life; those who are gone stay for a week."""

kind_minute = Table(
    "redrive_kind_minute",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("cause", Text, primary_key=True),
    Column("minute", Instant, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("worker", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in ("begun", "tries", "failures", "done", "dead")),
    *(Column(name, Instant) for name in ("first_failure", "last_failure", "first_success", "last_success")),
    *(Column(name, BigInteger, nullable=False) for name in RAN),
    # A look asks for the last minutes of all kinds, or of some causes. Without the cause in front SQLite went through the whole table.
    Index("redrive_kind_minute_cause_idx", "cause", "minute"),
    # What is not folded yet.
    Index(
        "redrive_kind_minute_worker_idx",
        "minute",
        sqlite_where=text("worker <> ''"),
        postgresql_where=text("worker <> ''"),
    ),
)
"""What each worker counted of each kind in each minute, and with a cause what failed of it. Written every few seconds, not with each task."""

failing = Table(
    "redrive_failing",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("sample", Text, nullable=False),
    Column("at", Text),
    Column("first_seen", Instant, nullable=False),
    Column("since", Instant, nullable=False),
    Column("since_hour", Instant, nullable=False),
    Column("last_seen", Instant, nullable=False),
    Column("first_version", Text),
    Column("last_version", Text),
    Column("tries_max", Integer),
    Column("lasts_seconds", Float),
    Index("redrive_failing_seen_idx", "last_seen"),
)
"""Causes that tries have failed of, whether anybody is dead of them or not: since when this time, and in which versions."""

alert = Table(
    "redrive_alert",
    metadata,
    Column("name", Text, primary_key=True),
    Column("rule", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("told_at", Instant),
    Column("ended_at", Instant),
)
"""What is wrong now and has been told, so that it is told once, however many services look and however often they start."""

cause = Table(
    "redrive_cause",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("sample", Text, nullable=False),
    Column("kind", Text),
    Column("at", Text),
    Column("first_seen", Instant, nullable=False),
    Column("last_seen", Instant, nullable=False),
    Column("amount", BigInteger, nullable=False),
)
"""The groups of dead tasks, as of the last census; those that nobody belongs to any more are kept with an amount of zero."""

audit = Table(
    "redrive_audit",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("act", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("things", Text, nullable=False),
    Column("asked", Text),
    Column("whole", Text),
    Column("leads", Boolean, nullable=False),
    Column("folded", Boolean, nullable=False),
    Column("number", BigInteger, unique=True),
    Column("previous", Text),
    Column("hash", Text),
    # People see one row for one act: the first of its lines. With thousands of others in between a page must not cost more.
    Index("redrive_audit_at_idx", "at", "id", sqlite_where=text("leads"), postgresql_where=text("leads")),
    Index("redrive_audit_ledger_idx", "ledger", "at", "id", sqlite_where=text("leads"), postgresql_where=text("leads")),
    Index(
        "redrive_audit_whole_idx",
        "whole",
        "id",
        sqlite_where=text("whole IS NOT NULL"),
        postgresql_where=text("whole IS NOT NULL"),
    ),
    Index(
        "redrive_audit_unlinked_idx",
        "id",
        sqlite_where=text("number IS NULL"),
        postgresql_where=text("number IS NULL"),
    ),
)
"""Lines of the audit: each is written in the commit of what it tells, and never changed but for its place in the chain, which it gets later.

An act over several commits has a line for each, with the same `whole`; the first of them `leads`. `things` are the ids of what was changed there.
"""

deed = Table(
    "redrive_deed",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("act", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("line", BigInteger),
    Index("redrive_deed_task_idx", "ledger", "task_id"),
    Index("redrive_deed_alone_idx", "id", sqlite_where=text("line IS NULL"), postgresql_where=text("line IS NULL")),
)
"""Who redrove, cancelled, resolved or returned which task, and why: the history of each task, which goes with it.

`line` is the line of the audit that tells of it. It is NULL where older code wrote the deed, or a stranger's system: those lines are made later.
"""

result = Table(
    "redrive_result",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("result", Text, nullable=False),
    Column("at", Instant, nullable=False),
)
"""What handlers returned, as JSON. A task whose handler returned nothing has no row."""

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
    Index(
        "redrive_effect_open_idx",
        "ledger",
        "state",
        "task_id",
        sqlite_where=text(EFFECT_ASKED),
        postgresql_where=text(EFFECT_ASKED),
    ),
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

key = Table(
    "redrive_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant),
    Column("revoked_at", Instant),
)
"""API keys: only the hash of a key is kept."""

session = Table(
    "redrive_session",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("expires_at", Instant, nullable=False),
)
"""People who are logged in: only the hash of a session's token is kept."""

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

GATE_HOLDS = "state <> 'flowing' OR paused_at IS NOT NULL OR coalesce(waits_for, '') = 'retry-after'"
"""Gates that people want to see first: they hold, return or are paused, or did so until just now."""

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
    Index(
        "redrive_gate_ready_idx",
        "ledger",
        "tenant",
        "turn_at",
        sqlite_where=text("ready"),
        postgresql_where=text("ready"),
    ),
    Index(
        "redrive_gate_wake_idx", "ledger", "wake_at", sqlite_where=text("NOT ready"), postgresql_where=text("NOT ready")
    ),
    # What fell asleep just now: a task may have come meanwhile.
    Index(
        "redrive_gate_asleep_idx",
        "ledger",
        "turn_at",
        sqlite_where=text("waits_for = 'due'"),
        postgresql_where=text("waits_for = 'due'"),
    ),
    # For people, and for workers that ask which kinds are paused.
    Index("redrive_gate_holds_idx", "ledger", "name", sqlite_where=text(GATE_HOLDS), postgresql_where=text(GATE_HOLDS)),
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
    Index(
        "redrive_gate_span_open_idx",
        "ledger",
        "name",
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
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

operation = Table(
    "redrive_operation",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("asked", JSON, nullable=False),
    Column("until", Instant, nullable=False),
    Column("steps", JSON, nullable=False),
    Column("rate", Integer),
    Column("rate_seconds", Float, nullable=False),
    Column("halt", Float, nullable=False),
    Column("edit", JSON(none_as_null=True)),
    Column("started_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("approval_over", Integer),
    Column("approved_by", Text),
    Column("approved_at", Instant),
    Column("cursor", Text),
    Column("frozen_at", Instant),
    *(Column(name, BigInteger, nullable=False) for name in FATES_COUNTED),
    Column("step", Integer, nullable=False),
    Column("in_step", Integer, nullable=False),
    Column("next_at", Instant),
    Column("braked_ended", BigInteger, nullable=False),
    Column("braked_failed", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("changed_by", Text, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("held_by", Text),
    Column("held_until", Instant),
    # What somebody must still carry on; few at any time.
    Index("redrive_operation_open_idx", "id", sqlite_where=text(OPEN), postgresql_where=text(OPEN)),
    Index("redrive_operation_started_idx", "started_at", "id"),
)
"""Redrive operations: what was asked, how far each has come, and who carries it on until when."""

operation_task = Table(
    "redrive_operation_task",
    metadata,
    Column("operation", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", Text, nullable=False),
    Column("fate", Text, nullable=False),
    Column("step", Integer),
    Column("released_at", Instant),
    Column("ended_at", Instant),
    Column("why", Text),
    Index("redrive_operation_task_fate_idx", "operation", "fate", "position"),
)
"""The frozen sets: each task of an operation, and what has become of it."""

edit = Table(
    "redrive_edit",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("operation", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("before", _PAYLOAD, nullable=False),
    Column("after", _PAYLOAD, nullable=False),
    Index("redrive_edit_task_idx", "ledger", "task_id"),
    Index("redrive_edit_operation_idx", "operation", "id"),
)
"""Payloads that operations have changed: as they were and as they are since, by whom and why."""

works_with = Table(
    "redrive_works_with",
    metadata,
    Column("branch", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("oldest", Text, nullable=False),
)
"""The version of each branch, and the oldest one whose code may work with these tables: for code that does not know the newest."""

partition = Table(
    "redrive_partition",
    metadata,
    Column("name", Text, primary_key=True),
    Column("every", Text, nullable=False),
    Column("keep_seconds", Float),
)
"""Tables that are partitioned by time, and for how long their rows are kept: NULL for as long as their tasks are."""
