"""Figures: what each minute counted, censuses, and the groups of what failed."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, Table, Text, text

from redrive.core.histograms import RAN, TOOK, TRIES
from redrive.core.states import State
from redrive.ledgers.rollup import FLOWS, STATES_AND_OUTCOMES
from redrive.ledgers.sql.schema.base import metadata, where
from redrive.ledgers.sql.times import Instant

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
    Index("redrive_kind_minute_worker_idx", "minute", **where("worker <> ''")),
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
