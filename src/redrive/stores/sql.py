"""The store over a database of SQL: SQLite or PostgreSQL."""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import text

from redrive.access.ports import Keys, Sessions
from redrive.access.sql.keys import SqlKeys
from redrive.access.sql.sessions import SqlSessions
from redrive.core.table import LedgerTable
from redrive.ledgers.open import open_ledger, own_ledger
from redrive.ledgers.sql import migrate
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.ports import Alerts, Audit, CountedKinds, Figures, OperatorLedger, Roster, Turns
from redrive.operator.sql.alerts import SqlAlerts
from redrive.operator.sql.audit import SqlAudit
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.figures import SqlFigures
from redrive.operator.sql.gates import SqlGates
from redrive.operator.sql.kinds import SqlKinds
from redrive.operator.sql.pages import SqlTaskPages
from redrive.operator.sql.roster import SqlRoster
from redrive.operator.sql.search import SqlSearch
from redrive.operator.sql.turns import SqlTurns
from redrive.ports import Filter


class SqlStore:
    """All that a database holds; see `Store`."""

    keeps_tasks = True

    def __init__(self, database: Database) -> None:
        self.database = database
        self.keys: Keys = SqlKeys(database)
        self.sessions: Sessions = SqlSessions(database)
        self.audit: Audit = SqlAudit(database)
        self.figures: Figures = SqlFigures(database)
        self.alerts: Alerts = SqlAlerts(database)
        self.turns: Turns = SqlTurns(database)
        self.roster: Roster = SqlRoster(database)
        self.kinds: CountedKinds = SqlKinds(database)

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self.database.url

    @property
    def file(self) -> Path | None:
        """See `Store.file`."""
        return self.database.file

    def now(self) -> datetime:
        """See `Store.now`."""
        return self.database.now()

    async def present(self) -> datetime:
        """See `Store.present`."""
        return await self.database.read(self.database.present)

    async def open(self, systems: Collection[str] = ()) -> None:
        """See `Store.open`. SQLite's tables are made where they lack; a server's are made by `redrive migrate`."""
        await self.database.open()
        prepare = migrate.migrate if self.database.migrates_itself else migrate.check
        await prepare(self.database, migrate.with_tables(systems))

    async def close(self) -> None:
        """See `Store.close`."""
        await self.database.close()

    async def find_systems(self) -> list[str]:
        """See `Store.find_systems`."""
        await self.database.open()
        return sorted(set(await migrate.versions(self.database)) - {migrate.ENGINE})

    async def answers(self) -> None:
        """See `Store.answers`."""
        await self.database.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())

    def trouble(self) -> str | None:
        """See `Store.trouble`."""
        return self.database.trouble()

    async def describe(self) -> str:
        """See `Store.describe`."""
        return await self.database.describe()

    def own_ledger(self) -> SqlLedger:
        """See `Store.own_ledger`."""
        return own_ledger(self.database)

    async def open_ledger(self, table: LedgerTable, *, beside: Beside | None = None) -> SqlLedger:
        """See `Store.open_ledger`."""
        return await open_ledger(self.database, table, beside=beside)

    def pages(self, ledger: OperatorLedger, *, limited: bool = True) -> SqlTaskPages:
        """See `Store.pages`."""
        return SqlTaskPages(_of_sql(ledger), limited=limited)

    def gates(self, ledger: OperatorLedger, *, limited: bool = True) -> SqlGates:
        """See `Store.gates`."""
        return SqlGates(_of_sql(ledger), limited=limited)

    def census(self, ledger: OperatorLedger) -> SqlCensus:
        """See `Store.census`."""
        return SqlCensus(_of_sql(ledger))

    def search(self, ledger: OperatorLedger, asked: Filter, shown: Any) -> SqlSearch:
        """See `Store.search`."""
        return SqlSearch(_of_sql(ledger), asked, shown)


def _of_sql(ledger: OperatorLedger) -> SqlLedger:
    assert isinstance(ledger, SqlLedger), "a ledger of this database"
    return ledger
