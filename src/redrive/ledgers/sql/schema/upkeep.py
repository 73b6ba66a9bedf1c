"""What processes know of each other: whose turn it is, who works, which code may, and how the history is partitioned."""

from sqlalchemy import JSON, Column, Float, Index, Integer, Table, Text

from redrive.ledgers.sql.schema.base import metadata
from redrive.ledgers.sql.times import Instant

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
