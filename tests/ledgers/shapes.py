"""The tables that every promise of a ledger is checked on: our own, and four as other people make them.

Each is created by hand, without what only redrive needs; the migration that `TableError` prints adds that. Between them they
have every kind of column, count and word that a `LedgerTable` can name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import NAMESPACE_URL, uuid5

from redrive.core.table import TASKS, LedgerTable, Words
from redrive.systems.commands.tables import ledger_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table, how it is created on each database, and what the tests must know about it."""

    table: LedgerTable
    create: Mapping[str, Sequence[str]]
    uuid_keys: bool = False
    postgres_schema: str | None = None
    postgres_table: LedgerTable | None = None
    """The mapping on PostgreSQL, where it is quite another."""
    extra: Mapping[str, object] | None = None
    """Columns without a default that a row inserted by hand must have."""
    shown_error: Callable[[str | None], str | None] = lambda error: error
    """What the row keeps of an error."""

    @property
    def name(self) -> str:
        return self.table.name

    def on(self, store: str) -> LedgerTable:
        """The mapping on this database."""
        if store == "postgres" and self.postgres_table is not None:
            return self.postgres_table
        return replace(self.table, schema=self.postgres_schema) if store == "postgres" else self.table

    def key(self, serial: int) -> str:
        """A key that the table can hold."""
        return str(uuid5(NAMESPACE_URL, str(serial))) if self.uuid_keys else f"key-{serial:05}"


OWN = Shape(table=TASKS, create={"sqlite": (), "postgres": ()})

# Two due columns, one word for retrying and dead, no word for claimed, no payload column: rows are the owner's to insert.
FLAGS = Shape(
    table=LedgerTable(
        "feature_flag_schedules",
        key="id",
        words=Words(waiting="pending", retrying="failed", done="applied", dead="failed", cancelled="cancelled"),
        first_due="scheduled_at",
        due="next_retry_at",
        count="retry_count",
        counts="retries",
        count_max="max_retries",
        last_error="last_error",
        done_at="applied_at",
        updated_at="updated_at",
    ),
    extra={"flag_name": "dark-mode", "enabled": True, "max_retries": 3},
    create={
        "sqlite": (
            "CREATE TABLE feature_flag_schedules (id INTEGER PRIMARY KEY, flag_name TEXT NOT NULL, enabled BOOLEAN NOT NULL,"
            " scheduled_at DATETIME NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'pending',"
            " retry_count INTEGER NOT NULL DEFAULT 0, max_retries INTEGER NOT NULL DEFAULT 3, next_retry_at DATETIME,"
            " last_error TEXT, applied_at DATETIME, updated_at DATETIME)",
            "CREATE INDEX idx_schedules_status ON feature_flag_schedules (status)",
        ),
        "postgres": (
            "CREATE TABLE feature_flag_schedules (id bigserial PRIMARY KEY, flag_name text NOT NULL, enabled boolean NOT NULL,"
            " scheduled_at timestamptz NOT NULL, status varchar(20) NOT NULL DEFAULT 'pending',"
            " retry_count integer NOT NULL DEFAULT 0, max_retries integer NOT NULL DEFAULT 3, next_retry_at timestamptz,"
            " last_error text, applied_at timestamptz, updated_at timestamptz)",
            "CREATE INDEX idx_schedules_status ON feature_flag_schedules (status)",
        ),
    },
)

# Text ids, a key of its own, every time in ISO text, a word for claimed.
_EVENTS = (
    "CREATE TABLE events (id text PRIMARY KEY DEFAULT ({id}), idempotency_key text NOT NULL UNIQUE, event_type text NOT NULL,"
    " payload text NOT NULL, status text NOT NULL DEFAULT 'pending', attempts integer NOT NULL DEFAULT 0,"
    " next_attempt_at text, error_message text, received_at text NOT NULL, updated_at text, started_at text,"
    " completed_at text)"
)
EVENTS = Shape(
    table=LedgerTable(
        "events",
        key="idempotency_key",
        id="id",
        kind="event_type",
        payload="payload",
        words=Words(waiting="pending", claimed="processing", done="completed", dead="failed"),
        due="next_attempt_at",
        count="attempts",
        last_error="error_message",
        created_at="received_at",
        updated_at="updated_at",
        claimed_at="started_at",
        done_at="completed_at",
    ),
    create={
        "sqlite": (_EVENTS.format(id="lower(hex(randomblob(16)))"),),
        "postgres": (_EVENTS.format(id="gen_random_uuid()::text"),),
    },
)

# Uuid ids that are the keys, a word of its own for retrying, tries counted as they start; the tenant is the gate.
JOBS = Shape(
    table=LedgerTable(
        "jobs",
        key="id",
        payload="args",
        words=Words(waiting="queued", retrying="retrying", done="succeeded", dead="discarded", cancelled="cancelled"),
        due="run_at",
        count="attempts",
        counts="attempts",
        count_max="max_attempts",
        last_error="error",
        ended_at="finished_at",
        created_at="inserted_at",
        tenant="account",
        priority="urgency",
    ),
    uuid_keys=True,
    create={
        "sqlite": (
            "CREATE TABLE jobs (id TEXT PRIMARY KEY, args JSON NOT NULL, status TEXT NOT NULL, run_at DATETIME,"
            " attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER, error TEXT, finished_at DATETIME,"
            " inserted_at DATETIME NOT NULL, queue TEXT NOT NULL DEFAULT 'default', account TEXT, urgency INTEGER)",
        ),
        "postgres": (
            "CREATE TABLE jobs (id uuid PRIMARY KEY, args jsonb NOT NULL, status text NOT NULL, run_at timestamptz,"
            " attempts smallint NOT NULL DEFAULT 0, max_attempts smallint, error text, finished_at timestamptz,"
            " inserted_at timestamptz NOT NULL, queue text NOT NULL DEFAULT 'default', account text, urgency smallint)",
        ),
    },
)

# Names that must be quoted, a schema and an enum on PostgreSQL, words with an apostrophe, a count that may be NULL, and
# one word for retrying and dead with a single due column; gates that are numbers.
LEGACY = Shape(
    table=LedgerTable(
        "Outbox Messages",
        key="Message Key",
        id="Id",
        kind="Type",
        payload="Body",
        status="State",
        words=Words(
            waiting="New", retrying="Failed", claimed="In Progress", done="It's done", dead="Failed", cancelled="Off"
        ),
        due="dueAt",
        count="Failures",
        last_error="Error",
        lease_until="leaseUntil",
        claim_id="claimId",
        ended_at="endedAt",
        updated_at="updatedAt",
        redrives="order",
        gate="bankId",
    ),
    postgres_schema="Ops",
    create={
        "sqlite": (
            'CREATE TABLE "Outbox Messages" ("Id" INTEGER PRIMARY KEY, "Message Key" VARCHAR(100) NOT NULL UNIQUE,'
            ' "Type" TEXT NOT NULL, "Body" TEXT, "State" TEXT NOT NULL DEFAULT \'New\', "Failures" INTEGER, "dueAt" TEXT,'
            ' "Error" TEXT, "endedAt" TEXT, "updatedAt" TEXT, "order" INTEGER NOT NULL DEFAULT 0,'
            ' "bankId" INTEGER)',
        ),
        "postgres": (
            'CREATE SCHEMA "Ops"',
            "CREATE TYPE \"Ops\".\"Outbox State\" AS ENUM ('New', 'Failed', 'In Progress', 'It''s done', 'Off')",
            'CREATE TABLE "Ops"."Outbox Messages" ("Id" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,'
            ' "Message Key" varchar(100) NOT NULL UNIQUE, "Type" varchar(50) NOT NULL, "Body" json,'
            ' "State" "Ops"."Outbox State" NOT NULL DEFAULT \'New\', "Failures" integer, "dueAt" timestamptz,'
            ' "Error" varchar(4000), "endedAt" timestamptz, "updatedAt" timestamptz, "order" integer NOT NULL DEFAULT 0,'
            ' "bankId" integer)',
        ),
    },
)

FOREIGN = (FLAGS, EVENTS, JOBS, LEGACY)

# The command bus: its rows are the bus's to insert, it writes beside the ledger, and on PostgreSQL it waits in PGMQ.
COMMANDS = Shape(
    table=replace(ledger_table(has_queues=False), kind="command_type"),
    postgres_table=replace(ledger_table(has_queues=True), kind="command_type"),
    create={"sqlite": (), "postgres": ()},
    shown_error=lambda error: error and error.partition(": ")[2],
)
SHAPES = (OWN, *FOREIGN, COMMANDS)
