"""The tables of the command bus. The migration creates them; a test holds the two equal on both databases.

On PostgreSQL they stand in the schema `commandbus` and each open command has a message in a queue of PGMQ, which holds its
data and says when it is due. SQLite has no schemas and no PGMQ: there the names have the prefix `commandbus_`, the data
stands in the row, and replies have a table of their own.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Computed,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from redrive import LedgerTable, Words
from redrive.extend import NAMES, ledger_indexes
from redrive.sql import Instant, JsonText

SCHEMA = "commandbus"
LANE = "commands"
"""The name of the lane, and of its ledger in the engine's history, on both databases."""

COUNTED = ("completed", "failed", "canceled", "in_troubleshooting")
"""The states that a batch counts in its row. The open ones are the rest: counted too, every claim would write the row."""

WORDS = Words(
    waiting="PENDING",
    claimed="IN_PROGRESS",
    done="COMPLETED",
    dead="IN_TROUBLESHOOTING_QUEUE",
    cancelled="CANCELED",
    refused="FAILED",
)

_ID = BigInteger().with_variant(Integer(), "sqlite")


class Tables(NamedTuple):
    """The tables as one database has them."""

    command: Table
    audit: Table
    batch: Table
    handler: Table
    reply: Table | None


def ledger_table(*, has_queues: bool) -> LedgerTable:
    """The commands as a ledger."""
    return LedgerTable(
        "command" if has_queues else "commandbus_command",
        schema=SCHEMA if has_queues else None,
        key="id",
        kind="kind",
        words=WORDS,
        count="attempts",
        counts="attempts",
        count_max="max_attempts",
        last_error="last_error_msg",
        claimed_at="claimed_at",
        ended_at="ended_at",
        created_at="created_at",
        updated_at="updated_at",
        redrives="redrives",
        trace="trace",
        gate=None if has_queues else "gate",
    )


@lru_cache(maxsize=2)
def make_tables(*, has_queues: bool) -> Tables:
    """All tables for a database with or without queues, with their indexes."""
    metadata = MetaData(naming_convention=NAMES, schema=SCHEMA if has_queues else None)
    prefix = "" if has_queues else "commandbus_"
    words = ", ".join(f"'{word}'" for word in WORDS.all())
    command = Table(
        f"{prefix}command",
        metadata,
        Column("id", _ID, Identity(), primary_key=True),
        Column("domain", Text, nullable=False),
        Column("command_id", Text, nullable=False),
        Column("command_type", Text, nullable=False),
        # What handlers are chosen by; a domain holds no slash, so the two cannot be confused.
        Column("kind", Text, Computed("domain || '/' || command_type", persisted=True)),
        Column("queue_name", Text, nullable=False),
        Column("msg_id", BigInteger),
        Column("status", Text, nullable=False, server_default=text("'PENDING'")),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("max_attempts", Integer),
        Column("due_at", Instant),
        Column("lease_until", Instant),
        Column("claim_id", Uuid),
        Column("claimed_at", Instant),
        Column("last_error_type", Text),
        Column("last_error_code", Text),
        Column("last_error_msg", Text),
        Column("reply_queue", Text),
        Column("correlation_id", Text),
        Column("batch_id", Text),
        *([] if has_queues else [Column("data", JsonText)]),
        Column("redrives", Integer, nullable=False, server_default=text("0")),
        Column("trace", Text),
        Column("created_at", Instant, nullable=False),
        Column("updated_at", Instant, nullable=False),
        Column("ended_at", Instant),
        # Since when a person is asked. The index of the troubleshooting queue is made of this column and not of the status:
        # PostgreSQL updates a row in place only while no indexed column changes, and the status always does.
        Column("troubled_at", Instant),
        *([] if has_queues else [Column("gate", Text)]),
        UniqueConstraint("domain", "command_id"),
        CheckConstraint(f"status IN ({words})", name="status"),
        CheckConstraint("attempts >= 0 AND max_attempts >= 1", name="attempts"),
        # Every command is updated twice; with room on its page that touches no index.
        postgresql_with={"fillfactor": 50},
    )
    _partial(f"{prefix}command_troubled_idx", command.c.id, "troubled_at IS NOT NULL")
    _partial(f"{prefix}command_batch_idx", command.c.batch_id, "batch_id IS NOT NULL")
    audit = Table(
        f"{prefix}audit",
        metadata,
        Column("id", _ID, Identity(), primary_key=True),
        Column("domain", Text, nullable=False),
        Column("command_id", Text, nullable=False),
        Column("event_type", Text, nullable=False),
        Column("at", Instant, nullable=False),
        Column("details", JSON(none_as_null=True)),
        Index(f"{prefix}audit_command_idx", "command_id"),
    )
    batch = Table(
        f"{prefix}batch",
        metadata,
        Column("domain", Text, primary_key=True),
        Column("batch_id", Text, primary_key=True),
        Column("name", Text),
        Column("custom_data", JSON(none_as_null=True)),
        Column("status", Text, nullable=False),
        *(Column(name, Integer, nullable=False, server_default=text("0")) for name in ("total", *COUNTED)),
        Column("created_at", Instant, nullable=False),
        Column("updated_at", Instant, nullable=False),
        Column("completed_at", Instant),
        CheckConstraint("status IN ('OPEN', 'COMPLETED', 'COMPLETED_WITH_FAILURES')", name="status"),
    )
    handler = Table(
        f"{prefix}handler",
        metadata,
        Column("domain", Text, primary_key=True),
        Column("command_type", Text, primary_key=True),
        Column("seen_at", Instant, nullable=False),
    )
    reply = None
    if not has_queues:
        ledger_indexes(ledger_table(has_queues=False), command)
        reply = Table(
            "commandbus_reply",
            metadata,
            Column("msg_id", _ID, Identity(), primary_key=True),
            Column("queue_name", Text, nullable=False),
            Column("message", JSON, nullable=False),
            Column("enqueued_at", Instant, nullable=False),
            Index("commandbus_reply_queue_idx", "queue_name", "msg_id"),
        )
    return Tables(command, audit, batch, handler, reply)


def _partial(name: str, column: Column[Any], where: str) -> Index:
    return Index(name, column, sqlite_where=text(where), postgresql_where=text(where))
