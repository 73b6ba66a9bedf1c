"""The table `events`, and beside it what is remembered of signed bodies. Migrations create them; a test holds both equal on both databases.

Ids are UUIDs of version 7 in text: their order is the order in which the webhooks came.
"""

from typing import Any

from sqlalchemy import CheckConstraint, Column, ColumnElement, Index, Integer, MetaData, Table, Text, Uuid, func, text

from redrive import LedgerTable, Words
from redrive.extend import NAMES, When
from redrive.sql import Instant, comparable

WORDS = Words(waiting="pending", claimed="processing", done="completed", dead="failed", cancelled="cancelled")

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
    gate="gate",
)


events = Table(
    "events",
    MetaData(naming_convention=NAMES),
    Column("id", Text, primary_key=True),
    Column("idempotency_key", Text, nullable=False, unique=True),
    Column("event_type", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("retry_after", When),
    Column("created_at", When, nullable=False),
    Column("updated_at", When, nullable=False),
    Column("lease_until", When),
    Column("claim_id", Uuid().with_variant(Text(), "sqlite")),
    Column("gate", Text),
    CheckConstraint("status IN ('pending', 'processing', 'completed', 'failed', 'cancelled')", name="status"),
    CheckConstraint("length(idempotency_key) BETWEEN 1 AND 500", name="key_length"),
    CheckConstraint("length(event_type) BETWEEN 1 AND 200", name="type_length"),
    CheckConstraint("attempts >= 0", name="attempts"),
    CheckConstraint("status IN ('pending', 'processing') OR retry_after IS NULL", name="retry_after"),
)
"""The three indexes that claims need are added by `ledger_indexes`."""

handlers = Table(
    "webhook_handlers",
    MetaData(naming_convention=NAMES),
    Column("event_type", Text, primary_key=True),
    Column("seen_at", When, nullable=False),
)
"""Which types workers handle, `*` for any text, and when one of them last said so."""

bodies = Table(
    "webhook_bodies",
    MetaData(naming_convention=NAMES),
    Column("source", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("idempotency_key", Text, nullable=False),
    Column("forget_at", Instant, nullable=False),
    Index("webhook_bodies_forget_at_idx", "forget_at"),
)
"""Signed bodies, by which replays are recognised: see `replays`."""

due_since: ColumnElement[Any] = func.coalesce(comparable(events.c.retry_after), comparable(events.c.created_at))
"""Since when a waiting row is due, or from when on.

It says the same as the due time of a claim in other words, so that a claim never takes the index that the depth of the queue is
counted by: that one knows no event types.
"""


def _index(name: str, indexed: ColumnElement[Any], word: str) -> None:
    where = text(f"status = '{word}'")
    Index(name, indexed, sqlite_where=where, postgresql_where=where)


_index("events_due_idx", due_since, "pending")
_index("events_failed_idx", events.c.id, "failed")
_index("events_completed_at_idx", comparable(events.c.updated_at), "completed")
_index("events_failed_at_idx", comparable(events.c.updated_at), "failed")
_index("events_cancelled_at_idx", comparable(events.c.updated_at), "cancelled")
