"""For a system whose tasks do not simply stand in a table of its own: in a queue of PGMQ, or with more that the ledger writes.

`PgmqLedger` reads a queue as a `QueueLayout` says; `ExtraColumns` are written with each settlement; a `Return` comes back with its
count. `decide` and `LeaseExpired` are for whoever settles the tries of lost workers by hand; what was not written is `ClaimLost` or
`ClaimLocked`.
"""

from redrive.core.decide import decide
from redrive.core.outcome import LeaseExpired
from redrive.core.task import ClaimLocked, ClaimLost
from redrive.ledgers.pgmq.ledger import PgmqLedger
from redrive.ledgers.pgmq.queues import Queues, archive_table, message_table, pgmq_sql
from redrive.ledgers.pgmq.statements import QueueLayout
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.settle import ExtraColumns
from redrive.ports import Return

__all__ = [
    "ClaimLocked", "ClaimLost", "ExtraColumns", "LeaseExpired", "PgmqLedger", "QueueLayout", "Queues", "Return", "SqlLedger",
    "archive_table", "decide", "message_table", "pgmq_sql",
]  # fmt: skip
