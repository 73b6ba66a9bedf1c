"""The second door: what a system may use, ours or yours. `docs/guides/write-a-system.md` shows how.

A system is a `System` on an application. It describes its tables with SQLAlchemy (`When`, `NAMES`, `ledger_indexes`), reads and
writes them through `app.database` (a `Database`), and has a `Beside` write in the commits of the engine. What it handles, and how it
is retried, it says with the names of `redrive`.

    letters = Table("letters", MetaData(naming_convention=NAMES), Column("due_at", When), …)
    ledger_indexes(LETTERS, letters)     # attaches the three indexes that claims need

    class Letters(OnDatabase):
        @writes
        def write(self, connection, recipient, body): ...
"""

from redrive.ledgers.sql.audit_lines import record as record_act
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.gate_rows import Gated, GatesInUse, NamedGate
from redrive.ledgers.sql.on_database import OnDatabase, looks, reads, writes
from redrive.ledgers.sql.predicates import ledger_indexes
from redrive.ledgers.sql.schema import NAMES
from redrive.ledgers.sql.schema import attempt as ATTEMPTS  # noqa: N812 - the history of all ledgers, to be joined
from redrive.ledgers.sql.times import When
from redrive.system import System

__all__ = [
    "ATTEMPTS",
    "Beside",
    "Database",
    "Gated",
    "GatesInUse",
    "NAMES",
    "NamedGate",
    "OnDatabase",
    "System",
    "When",
    "ledger_indexes",
    "looks",
    "reads",
    "record_act",
    "writes",
]
