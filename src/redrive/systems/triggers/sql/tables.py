"""The tables of triggers. Migrations create them; a test holds the two equal on both databases.

A delivery is one event for one endpoint, and the only ledger here. What an event's deliveries come to is written into the
event in the very commit that changes a delivery: see `beside.py`.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    text,
)

from redrive.extend import NAMES, When
from redrive.systems.triggers.ledger import DELIVERIES, ENDPOINTS, EVENTS
from redrive.systems.triggers.status import STATUSES

metadata = MetaData(naming_convention=NAMES)

_SERIAL = BigInteger().with_variant(Integer(), "sqlite")
_WORDS = ", ".join(f"'{word}'" for word in STATUSES)


def _where(name: str, condition: str, *columns: str) -> Index:
    """An index of those rows for which the condition holds."""
    return Index(name, *columns, sqlite_where=text(condition), postgresql_where=text(condition))


events = Table(
    EVENTS,
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("correlation_id", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'received'")),
    Column("retry_attempts", Integer, nullable=False, server_default=text("0")),
    Column("last_retry_at", When),
    Column("next_retry_at", When),
    Column("failed_at", When),
    Column("delivered_at", When),
    Column("acknowledged_at", When),
    Column("last_error", Text),
    Column("created_at", When, nullable=False),
    Column("updated_at", When, nullable=False),
    CheckConstraint(f"status IN ({_WORDS})", name="status"),
    CheckConstraint("retry_attempts BETWEEN 0 AND 3", name="retry_attempts"),
    CheckConstraint("(status = 'failed') = (failed_at IS NOT NULL)", name="failed_at"),
    CheckConstraint("status = 'queued' OR next_retry_at IS NULL", name="next_retry_at"),
    Index("trigger_events_inbox_idx", "user_id", "status", "id"),
    Index("trigger_events_type_idx", "user_id", "status", "event_type", "id"),
    Index(
        "trigger_events_idempotency_idx",
        "user_id",
        "idempotency_key",
        unique=True,
        sqlite_where=text("idempotency_key IS NOT NULL"),
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index(
        "trigger_events_delivered_idx",
        "delivered_at",
        sqlite_where=text("status = 'delivered'"),
        postgresql_where=text("status = 'delivered'"),
    ),
)
"""What was sent to us. The payload is JSON text, as it will be delivered."""

deliveries = Table(
    DELIVERIES,
    metadata,
    Column("id", Text, primary_key=True),
    Column("event_id", Text, ForeignKey("trigger_events.id", ondelete="CASCADE"), nullable=False),
    Column("endpoint_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'waiting'")),
    Column("retry_attempts", Integer, nullable=False, server_default=text("0")),
    Column("retries_max", Integer, nullable=False, server_default=text("3")),
    Column("due_at", When),
    Column("lease_until", When),
    Column("claim_id", Uuid().with_variant(Text(), "sqlite")),
    Column("claimed_at", When),
    Column("ended_at", When),
    Column("last_error", Text),
    Column("redrives", Integer, nullable=False, server_default=text("0")),
    Column("created_at", When, nullable=False),
    Column("updated_at", When, nullable=False),
    CheckConstraint("status IN ('waiting', 'claimed', 'done', 'dead', 'cancelled')", name="status"),
    CheckConstraint("retry_attempts BETWEEN 0 AND 3", name="retry_attempts"),
    CheckConstraint("retries_max BETWEEN 0 AND 3", name="retries_max"),
    Index("trigger_deliveries_event_idx", "event_id"),
    Index("trigger_deliveries_endpoint_idx", "endpoint_id", "id"),
    # Only what has failed at least once is in it: a delivery that goes well costs nothing more.
    _where("trigger_deliveries_failures_idx", "last_error IS NOT NULL", "endpoint_id", "status", "id"),
)
"""One event for one endpoint: the ledger. The indexes that claims need are added by `ledger_indexes`."""

endpoints = Table(
    ENDPOINTS,
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("event_types", JSON, nullable=False),
    Column("description", Text, nullable=False, server_default=text("''")),
    Column("secret", Text, nullable=False),
    Column("old_secret", Text),
    Column("old_secret_until", When),
    Column("policy", JSON, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("disabled_at", When),
    Column("disabled_reason", Text),
    Column("failing_since", When),
    Column("created_at", When, nullable=False),
    Column("updated_at", When, nullable=False),
    Column("disabled_by", Text),
    Index("trigger_endpoints_user_idx", "user_id", "id"),
    _where("trigger_endpoints_disabled_idx", "disabled_at IS NOT NULL", "disabled_at", "id"),
    _where("trigger_endpoints_given_up_idx", "disabled_at IS NOT NULL AND disabled_by IS NULL", "disabled_at", "id"),
    _where("trigger_endpoints_failing_idx", "failing_since IS NOT NULL AND disabled_at IS NULL", "failing_since", "id"),
)
"""Where a user's events go.

`disabled_at` is null while it is enabled. `disabled_by` is who switched it off, and null where its failures did: that is an alarm.
"""

notices = Table(
    "trigger_notices",
    metadata,
    Column("id", _SERIAL, Identity(), primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("endpoint_id", Text, nullable=False),
    Column("at", When, nullable=False),
    Column("message", Text, nullable=False),
    Index("trigger_notices_user_idx", "user_id", "id"),
)
"""What the owner of an endpoint must be told, and reads at `/v1/notices`."""

counts = Table(
    "trigger_counts",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("status", Text, primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("amount", BigInteger, nullable=False),
)
"""How many events a user has in each status, in shards so that writers do not wait for each other; without a name, all users together."""

limits = Table(
    "trigger_limits",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("minute", BigInteger, primary_key=True),
    Column("used", BigInteger, nullable=False),
    Index("trigger_limits_minute_idx", "minute"),
)
"""How many requests of a key's minute were given out to processes."""

secrets = Table(
    "trigger_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""What all processes must share to read each other's cursors."""

SECRETS = (endpoints.c.secret, endpoints.c.old_secret)
"""The columns whose values are encrypted. Not what signs cursors: who knows it can make up a place in a list of their own, and no more."""
