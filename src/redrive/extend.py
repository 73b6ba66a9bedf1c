"""For whoever describes tables of their own beside redrive's: column types, indexes, and the database that holds them.

    queue = Table("retry_queue", metadata, Column("next_retry_at", Instant), …)
    ledger_indexes(RETRY_QUEUE, queue, dialect.name)     # attaches the three indexes that claims need

`Redrive.database` runs functions of a connection: `await app.database.write(store, rows)`.
"""

from redrive.core.decide import Settlement, decide
from redrive.core.durations import format_duration, rounded
from redrive.core.outcome import LeaseExpired
from redrive.core.states import Act
from redrive.core.task import Claim
from redrive.events import AttemptEnded, AttemptStarted, Event, SettleFailed, TaskAdded, TasksChanged
from redrive.ledgers.pgmq.ledger import PgmqLedger
from redrive.ledgers.pgmq.queues import Queues, archive_table, message_table, pgmq_sql
from redrive.ledgers.pgmq.statements import QueueLayout
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database, after_commit, run_within, sync_connection
from redrive.ledgers.sql.gather import Gather
from redrive.ledgers.sql.ids import uuid7
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import ledger_indexes
from redrive.ledgers.sql.schema import NAMES
from redrive.ledgers.sql.schema import attempt as ATTEMPTS  # noqa: N812 - the history of all ledgers, to be joined
from redrive.ledgers.sql.schema import deed as DEEDS  # noqa: N812 - the audit log, for acts on what is no task
from redrive.ledgers.sql.statements import ExtraColumns
from redrive.ledgers.sql.times import EPOCH, Instant, IsoText, comparable
from redrive.ports import Actor, Return
from redrive.system import System

__all__ = [
    "ATTEMPTS",
    "Act",
    "Actor",
    "AttemptEnded",
    "AttemptStarted",
    "Batch",
    "Beside",
    "Claim",
    "DEEDS",
    "Database",
    "EPOCH",
    "Event",
    "ExtraColumns",
    "Gather",
    "Instant",
    "IsoText",
    "LeaseExpired",
    "NAMES",
    "PgmqLedger",
    "QueueLayout",
    "Queues",
    "Return",
    "SettleFailed",
    "Settlement",
    "SqlLedger",
    "System",
    "TaskAdded",
    "TasksChanged",
    "after_commit",
    "archive_table",
    "comparable",
    "decide",
    "format_duration",
    "ledger_indexes",
    "message_table",
    "pgmq_sql",
    "rounded",
    "run_within",
    "sync_connection",
    "uuid7",
]
