"""The table `retry_queue`, and how the engine reads it: a message is a task, and its republishes are counted as its rounds."""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    text,
)

from redrive import LedgerTable, Words
from redrive.extend import NAMES, When

MESSAGE_ID_CHARS_MAX = 500

RETRY_QUEUE = LedgerTable(
    "retry_queue",
    key="message_id",
    id="id",
    words=Words(waiting="pending", done="retried", dead="failed", cancelled="resolved"),
    due="next_retry_at",
    count="retry_count",
    # Only the settlement that writes `retried` raises the count. `max_retries` is the handler's to compare it with, so that
    # no row dies without its review message.
    counts="done",
    last_error="last_error",
    created_at="created_at",
    updated_at="updated_at",
    trace="trace",
    gate="gate",
)

metadata = MetaData(naming_convention=NAMES)


def _partial(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))


retry_queue = Table(
    "retry_queue",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), Identity(), primary_key=True),
    Column("message_id", Text, nullable=False, unique=True),
    Column("original_payload", LargeBinary, nullable=False),
    Column("original_queue", Text, nullable=False),
    Column("error_reason", Text, server_default=text("''")),
    Column("retry_count", Integer, nullable=False, server_default=text("0")),
    Column("max_retries", Integer, nullable=False, server_default=text("3")),
    Column("next_retry_at", When),
    Column("created_at", When, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    Column("updated_at", When, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("headers", JSON, nullable=False, server_default=text("'{}'")),
    Column("content_type", Text),
    Column("last_error", Text),
    Column("lease_until", When),
    Column("claim_id", Uuid),
    Column("trace", Text),
    Column("gate", Text),
    CheckConstraint("status IN ('pending', 'retried', 'failed', 'resolved')", name="status"),
    CheckConstraint(f"length(message_id) BETWEEN 1 AND {MESSAGE_ID_CHARS_MAX}", name="message_id_length"),
    CheckConstraint("retry_count >= 0 AND max_retries >= 0", name="counts"),
    CheckConstraint("status = 'pending' OR lease_until IS NULL", name="lease"),
    CheckConstraint("(lease_until IS NULL) = (claim_id IS NULL)", name="fence"),
    CheckConstraint("status = 'pending' OR next_retry_at IS NULL", name="due"),
    _partial("idx_retry_next_retry", "next_retry_at", where="status = 'pending'"),
    _partial("retry_queue_ended_idx", "updated_at", where="status IN ('retried', 'resolved')"),
    _partial("retry_queue_failed_idx", "id", where="status = 'failed'"),
    _partial("retry_queue_review_idx", "original_queue", "id", where="status = 'failed'"),
)
"""What waits, what went out and what people must look at. What others insert needs its id, payload and queue alone. The three indexes that claims need are added by `ledger_indexes`."""
