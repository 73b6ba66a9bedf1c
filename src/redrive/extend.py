"""The second door: what a system may use, ours or yours. `docs/guides/write-a-system.md` shows how.

A system is a `System` on an application. It describes its tables with SQLAlchemy (`Instant`, `IsoText`, `NAMES`,
`ledger_indexes`), reads and writes them through `app.database` (`Database`, `Gather`, `run_within`), and has a `Beside` write
in the commits of the engine. What it handles, and how it is retried, it says with the names of `redrive`.

    letters = Table("letters", MetaData(naming_convention=NAMES), Column("due_at", Instant), …)
    ledger_indexes(LETTERS, letters)     # attaches the three indexes that claims need
"""

from redrive.core.decide import Settlement, decide
from redrive.core.durations import format_duration, rounded
from redrive.core.failure import describe_error, redact, safe_text
from redrive.core.outcome import LeaseExpired
from redrive.core.states import Act
from redrive.core.table import Counts
from redrive.core.task import Claim, ClaimLocked, ClaimLost
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
from redrive.ledgers.sql.settle import ExtraColumns
from redrive.ledgers.sql.times import EPOCH, Instant, IsoText
from redrive.ports import Actor, Return
from redrive.system import System

__all__ = [
    "ATTEMPTS",
    "Act",
    "Actor",
    "Batch",
    "Beside",
    "Claim",
    "ClaimLocked",
    "ClaimLost",
    "Counts",
    "DEEDS",
    "Database",
    "EPOCH",
    "ExtraColumns",
    "Gather",
    "Instant",
    "IsoText",
    "LeaseExpired",
    "NAMES",
    "Return",
    "Settlement",
    "SqlLedger",
    "System",
    "after_commit",
    "decide",
    "describe_error",
    "format_duration",
    "ledger_indexes",
    "redact",
    "rounded",
    "run_within",
    "safe_text",
    "sync_connection",
    "uuid7",
]
