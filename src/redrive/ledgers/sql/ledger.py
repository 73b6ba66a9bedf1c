"""The one SQL implementation of the ledger port, over any `LedgerTable` on any `Database`.

Each verb is a file: `add`, `claim`, `due`, `settle`, `acts`, `reader`. It holds the statements, built once from the `LedgerTable`,
and the methods that run them. The methods of the port are thin: they choose how a function of a connection runs (`statement`,
`write`, `read`, or in the caller's own transaction). The functions themselves, with a leading underscore, are synchronous and
stand right below.
"""

from contextlib import AbstractAsyncContextManager

from sqlalchemy import Table

from redrive.core.table import LedgerTable
from redrive.ledgers.sql.add import Adding
from redrive.ledgers.sql.answers import Answering
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.claim import Claiming
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.gates import Gating
from redrive.ledgers.sql.mapped import Mapped
from redrive.ledgers.sql.parked import Parking
from redrive.ledgers.sql.reader import Reading
from redrive.ledgers.sql.settle import ExtraColumns, Settling
from redrive.ports import Transaction


class SqlLedger(Adding, Claiming, Settling, Answering, Gating, Parking, Reading):
    """A table of a database as a ledger, and its reader.

    `beside` writes what else must be in the same commits; where it does not listen to claims or settlements, these stay one
    statement each. `extra` fills columns of the rows themselves.
    """

    def __init__(
        self,
        database: Database,
        ledger_table: LedgerTable,
        table: Table,
        *,
        name: str | None = None,
        beside: Beside | None = None,
        extra: ExtraColumns | None = None,
    ) -> None:
        super().__init__(database, Mapped(ledger_table, table, database.dialect), name=name, beside=beside)
        self._extra = extra

    @property
    def transactions_max(self) -> int:
        """See `Ledger.transactions_max`."""
        return self.database.transactions_max

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """See `Ledger.transaction`."""
        return self.database.transaction()
