"""A queue of PGMQ as a ledger, for systems whose tasks wait in one: the ledger, its layout, the queues and their tables."""

from redrive.ledgers.pgmq.ledger import PgmqLedger
from redrive.ledgers.pgmq.queues import Queues, archive_table, message_table, pgmq_sql
from redrive.ledgers.pgmq.statements import QueueLayout

__all__ = ["PgmqLedger", "QueueLayout", "Queues", "archive_table", "message_table", "pgmq_sql"]
