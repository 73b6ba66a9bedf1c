"""A store: one place that holds ledgers, keys, sessions, the audit log, figures, alerts and turns.

Whoever serves people or keeps house asks the store of the application, and knows no SQL. Systems that write tables of their own ask
for its `database`, which only a store over SQL has.
"""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from redrive.access.ports import Keys, Sessions
from redrive.core.table import LedgerTable
from redrive.ledgers.sql.beside import Beside
from redrive.ledgers.sql.database import Database
from redrive.operator.ports import (
    Alerts,
    Audit,
    Census,
    Chain,
    CountedKinds,
    Figures,
    Gates,
    History,
    Operations,
    OperatorLedger,
    Roster,
    Search,
    TaskPages,
    Turns,
)
from redrive.ports import Filter

ON_ITEMS = "triggers"
"""The one system that can be kept in DynamoDB."""
NO_TASKS = (
    "only deliveries of triggers are kept in DynamoDB: for other tasks, adopted tables and other systems make another application, "
    "on SQLite or PostgreSQL"
)


class Store(Protocol):
    """One store, shared by all lanes of an application."""

    keeps_tasks: bool
    """Whether tasks of any kind are kept here, and tables can be adopted; elsewhere a system brings the ledger that it needs."""
    keys: Keys
    sessions: Sessions
    audit: Audit
    chain: Chain
    figures: Figures
    alerts: Alerts
    turns: Turns
    roster: Roster
    kinds: CountedKinds
    operations: Operations

    @property
    def url(self) -> str:
        """Where it is; what is secret in it is for nobody to see."""
        ...

    @property
    def file(self) -> Path | None:
        """The file that it is; None where a server has it."""
        ...

    @property
    def database(self) -> Database:
        """The database that it is; `UsageError` where it is not one of SQL."""
        ...

    def now(self) -> datetime:
        """The instant, by the clock of this process."""
        ...

    async def present(self) -> datetime:
        """The instant, as the store itself sees it."""
        ...

    async def open(self, systems: Collection[str] = ()) -> None:
        """Connect, and see that all is there that redrive and these systems need; `LedgerAwayError` if that is not possible now."""
        ...

    async def close(self) -> None:
        """Let go of every connection and thread."""
        ...

    async def find_systems(self) -> list[str]:
        """The systems that keep something here. Connects, if nobody has."""
        ...

    async def answers(self) -> None:
        """Come back when it has answered; raises whatever it says instead."""
        ...

    def trouble(self) -> str | None:
        """What keeps writes from going through though reads are answered, in a sentence; None where all is well."""
        ...

    async def describe(self) -> str:
        """What it is and how durable, in a few words."""
        ...

    def own_ledger(self) -> OperatorLedger:
        """The ledger of redrive's own tasks."""
        ...

    async def open_ledger(self, table: LedgerTable, *, beside: Beside | None = None) -> OperatorLedger:
        """The ledger over a table of somebody else's, which is checked."""
        ...

    def pages(self, ledger: OperatorLedger, *, limited: bool = True) -> TaskPages:
        """Pages of the tasks of a ledger; `limited` is for people who wait."""
        ...

    def gates(self, ledger: OperatorLedger, *, limited: bool = True) -> Gates:
        """The gates of a ledger; `UsageError` where it has none. `limited` as in `pages`."""
        ...

    def history(self, ledger: OperatorLedger) -> History:
        """The tries of a ledger that are on record; `UsageError` where they cannot be read one after the other."""
        ...

    def census(self, ledger: OperatorLedger) -> Census:
        """Who counts a ledger."""
        ...

    def search(self, ledger: OperatorLedger, asked: Filter, shown: Any) -> Search:
        """A search through a whole ledger; `shown` makes of a payload what people may see."""
        ...
