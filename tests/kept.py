"""What a store keeps beside its ledgers, for claims that hold in every store: SQLite, PostgreSQL and items of DynamoDB.

A module that imports `store`, `kept` and `kept_in_items` runs its tests in all three.
"""

import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from redrive.access.aws.keys import ItemKeys
from redrive.access.aws.sessions import ItemSessions
from redrive.access.ports import Keys, Sessions
from redrive.access.sql.keys import SqlKeys
from redrive.access.sql.sessions import SqlSessions
from redrive.core.table import LedgerTable
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.open import open_clients
from redrive.ledgers.aws.table import definition
from redrive.ledgers.sql.database import Database
from redrive.operator.aws.alerts import ItemAlerts
from redrive.operator.aws.audit import ItemAudit
from redrive.operator.aws.census import ItemCensus
from redrive.operator.aws.figures import ItemFigures
from redrive.operator.aws.pages import ItemTaskPages
from redrive.operator.aws.roster import ItemRoster
from redrive.operator.aws.turns import ItemTurns
from redrive.operator.ports import Alerts, Audit, Census, Figures, Roster, TaskPages, Turns
from redrive.operator.sql.alerts import SqlAlerts
from redrive.operator.sql.audit import SqlAudit
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.figures import SqlFigures
from redrive.operator.sql.pages import SqlTaskPages
from redrive.operator.sql.roster import SqlRoster
from redrive.operator.sql.turns import SqlTurns
from redrive.testing import VirtualClock
from tests.conftest import STORES
from tests.ledgers.aws.homes import DELIVERIES
from tests.ledgers.aws.servers import AWS
from tests.ledgers.homes import Home


@dataclass(slots=True)
class Kept:
    """What is kept, and the clock that it believes."""

    clock: VirtualClock
    keys: Keys
    sessions: Sessions
    audit: Audit
    alerts: Alerts
    turns: Turns
    roster: Roster
    figures: Figures
    dynamo: Dynamo | None = None
    database: Database | None = None


def in_tables(database: Database, clock: Any) -> Kept:
    """In tables of SQL."""
    kinds = (SqlKeys, SqlSessions, SqlAudit, SqlAlerts, SqlTurns, SqlRoster, SqlFigures)
    return Kept(clock, *(kind(database) for kind in kinds), database=database)  # type: ignore[arg-type]


def in_items(dynamo: Dynamo, clock: Any) -> Kept:
    """In items of DynamoDB."""
    kinds = (ItemKeys, ItemSessions, ItemAudit, ItemAlerts, ItemTurns, ItemRoster, ItemFigures)
    return Kept(clock, *(kind(dynamo, clock=clock) for kind in kinds), dynamo=dynamo)  # type: ignore[arg-type]


def audit_of(home: Home) -> Audit:
    """The audit of a home's store."""
    if isinstance(home.ledger, DynamoLedger):
        return ItemAudit(home.ledger.dynamo, clock=home.clock)
    return SqlAudit(home.database)


def figures_of(home: Home) -> Figures:
    """The numbers of a home's store."""
    if isinstance(home.ledger, DynamoLedger):
        return ItemFigures(home.ledger.dynamo, clock=home.clock)
    return SqlFigures(home.database)


def census_of(ledger: Any) -> Census:
    """Who counts this ledger."""
    return ItemCensus(ledger) if isinstance(ledger, DynamoLedger) else SqlCensus(ledger)


def pages_of(ledger: Any, *, limited: bool = True) -> TaskPages:
    """The pages of this ledger."""
    kind = ItemTaskPages if isinstance(ledger, DynamoLedger) else SqlTaskPages
    return kind(ledger, limited=limited)


def in_sql(table: LedgerTable) -> bool:
    """For claims that items do not make."""
    return table.schema != DELIVERIES.table.schema


@pytest.fixture(params=(*STORES, "aws"))
def store(request: pytest.FixtureRequest) -> str:
    """Which store a test runs on."""
    return str(request.param)


@pytest.fixture
def kept(store: str, clock: VirtualClock, request: pytest.FixtureRequest) -> Kept:
    """An empty store that believes the test's clock."""
    if store == "aws":
        kept: Kept = request.getfixturevalue("kept_in_items")
        return kept
    return in_tables(request.getfixturevalue("database"), clock)


@pytest.fixture
async def kept_in_items(aws: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    """The same in a new table of DynamoDB. Nothing in it is older than the clock's start, so nobody need look through years."""
    monkeypatch.setattr("redrive.operator.aws.audit.EARLIEST", clock.now())
    os.environ.update({name: value for name, value in AWS.items() if name not in os.environ})
    async with open_clients(region="us-east-1", endpoint_url=aws) as clients:
        name = f"t-{secrets.token_hex(6)}"
        await clients.dynamodb.create_table(**definition(name))
        yield in_items(Dynamo(clients.dynamodb, name), clock)
        await clients.dynamodb.delete_table(TableName=name)
