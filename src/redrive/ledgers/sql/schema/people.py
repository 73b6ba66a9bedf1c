"""What people did and may do: the audit, alerts, keys and sessions."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, Identity, Index, Table, Text

from redrive.ledgers.sql.schema.base import ID, metadata, where
from redrive.ledgers.sql.times import Instant

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

audit = Table(
    "redrive_audit",
    metadata,
    Column("id", ID, Identity(), primary_key=True),
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
    Index("redrive_audit_at_idx", "at", "id", **where("leads")),
    Index("redrive_audit_ledger_idx", "ledger", "at", "id", **where("leads")),
    Index("redrive_audit_whole_idx", "whole", "id", **where("whole IS NOT NULL")),
    Index("redrive_audit_unlinked_idx", "id", **where("number IS NULL")),
)
"""Lines of the audit: each is written in the commit of what it tells, and never changed but for its place in the chain, which it gets later.

An act over several commits has a line for each, with the same `whole`; the first of them `leads`. `things` are the ids of what was changed there.
"""

deed = Table(
    "redrive_deed",
    metadata,
    Column("id", ID, Identity(), primary_key=True),
    Column("ledger", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("act", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("line", BigInteger),
    Index("redrive_deed_task_idx", "ledger", "task_id"),
    Index("redrive_deed_alone_idx", "id", **where("line IS NULL")),
)
"""Who redrove, cancelled, resolved or returned which task, and why: the history of each task, which goes with it.

`line` is the line of the audit that tells of it. It is NULL where older code wrote the deed, or a stranger's system: those lines are made later.
"""

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
