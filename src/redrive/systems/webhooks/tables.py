"""The table `events`. The migration creates it; a test holds the two equal on both databases.

Times are ISO 8601 text on SQLite, which has no type for them, and are compared as instants in whatever spelling somebody wrote
them. PostgreSQL has such a type and reads every spelling into it. Ids are UUIDs of version 7 in text: their order is the
order in which the webhooks came.
"""

from typing import Any

from sqlalchemy import CheckConstraint, Column, ColumnElement, Index, Integer, MetaData, Table, Text, Uuid, func, text
from sqlalchemy.types import TypeEngine

from redrive import LedgerTable, Words
from redrive.extend import NAMES, Instant, IsoText, ledger_indexes

WORDS = Words(waiting="pending", claimed="processing", done="completed", dead="failed")

EVENTS = LedgerTable(
    "events",
    key="idempotency_key",
    id="id",
    kind="event_type",
    payload="payload",
    words=WORDS,
    due="retry_after",
    count="attempts",
    counts="attempts",
    last_error="last_error",
    created_at="created_at",
    updated_at="updated_at",
)


def make_table(dialect: str) -> Table:
    """The table as this database has it, with all its indexes."""
    time: TypeEngine[Any] = IsoText() if dialect == "sqlite" else Instant()
    table = Table(
        "events",
        MetaData(naming_convention=NAMES),
        Column("id", Text, primary_key=True),
        Column("idempotency_key", Text, nullable=False, unique=True),
        Column("event_type", Text, nullable=False),
        Column("payload", Text, nullable=False),
        Column("status", Text, nullable=False, server_default=text("'pending'")),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("last_error", Text),
        Column("retry_after", time),
        Column("created_at", time, nullable=False),
        Column("updated_at", time, nullable=False),
        Column("lease_until", time),
        Column("claim_id", Text if dialect == "sqlite" else Uuid),
        CheckConstraint("status IN ('pending', 'processing', 'completed', 'failed')", name="status"),
        CheckConstraint("length(idempotency_key) BETWEEN 1 AND 500", name="key_length"),
        CheckConstraint("length(event_type) BETWEEN 1 AND 200", name="type_length"),
        CheckConstraint("attempts >= 0", name="attempts"),
        CheckConstraint("status IN ('pending', 'processing') OR retry_after IS NULL", name="retry_after"),
    )
    _index("events_due_idx", due_since(table, dialect), "pending")
    _index("events_failed_idx", table.c.id, "failed")
    for word in ("completed", "failed"):
        _index(f"events_{word}_at_idx", instant(table.c.updated_at, dialect), word)
    ledger_indexes(EVENTS, table)
    return table


def _index(name: str, indexed: ColumnElement[Any], word: str) -> Index:
    where = text(f"status = '{word}'")
    return Index(name, indexed, sqlite_where=where, postgresql_where=where)


def due_since(table: Table, dialect: str) -> ColumnElement[Any]:
    """Since when a waiting row is due, or from when on.

    It says the same as the due time of a claim in other words, so that a claim never takes the index that the depth of
    the queue is counted by: that one knows no event types.
    """
    return func.coalesce(instant(table.c.retry_after, dialect), instant(table.c.created_at, dialect))


def instant(time: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """A time as something that compares by instant, whatever its spelling."""
    return func.julianday(time) if dialect == "sqlite" else time
