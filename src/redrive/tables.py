"""For whoever describes tables of their own beside redrive's: column types, indexes, and the database that holds them.

    queue = Table("retry_queue", metadata, Column("next_retry_at", Instant), …)
    ledger_indexes(RETRY_QUEUE, queue, dialect.name)     # attaches the three indexes that claims need

`Redrive.database` runs functions of a connection: `await app.database.write(store, rows)`.
"""

from redrive.ledgers.database import Database
from redrive.ledgers.predicates import ledger_indexes
from redrive.ledgers.schema import NAMES
from redrive.ledgers.times import EPOCH, Instant, IsoText

__all__ = ["EPOCH", "NAMES", "Database", "Instant", "IsoText", "ledger_indexes"]
