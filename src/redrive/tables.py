"""For whoever describes tables of their own beside redrive's: column types, indexes, and the database that holds them.

    queue = Table("retry_queue", metadata, Column("next_retry_at", Instant), …)
    ledger_indexes(RETRY_QUEUE, queue, dialect.name)     # attaches the three indexes that claims need

`Redrive.database` runs functions of a connection: `await app.database.write(store, rows)`.
"""

from redrive.core.decide import Settlement, decide
from redrive.core.outcome import LeaseExpired
from redrive.core.states import Act
from redrive.core.task import Claim
from redrive.ledgers.batches import Batch
from redrive.ledgers.database import Database, run_within, sync_connection
from redrive.ledgers.gather import Gather
from redrive.ledgers.pgmq import PgmqLedger
from redrive.ledgers.pgmq_statements import QueueLayout
from redrive.ledgers.predicates import ledger_indexes
from redrive.ledgers.queues import Queues, archive_table, message_table, pgmq_sql
from redrive.ledgers.schema import NAMES
from redrive.ledgers.schema import attempt as ATTEMPTS  # noqa: N812 - the history of all ledgers, to be joined
from redrive.ledgers.schema import deed as DEEDS  # noqa: N812 - the audit log, for acts on what is no task
from redrive.ledgers.sql import Beside, BesideActs, SqlLedger
from redrive.ledgers.statements import Own
from redrive.ledgers.times import EPOCH, Instant, IsoText

__all__ = [
    "ATTEMPTS",
    "DEEDS",
    "EPOCH",
    "NAMES",
    "Act",
    "Batch",
    "Beside",
    "BesideActs",
    "Claim",
    "Database",
    "Gather",
    "Instant",
    "IsoText",
    "LeaseExpired",
    "Own",
    "PgmqLedger",
    "QueueLayout",
    "Queues",
    "Settlement",
    "SqlLedger",
    "archive_table",
    "decide",
    "ledger_indexes",
    "message_table",
    "pgmq_sql",
    "run_within",
    "sync_connection",
]
