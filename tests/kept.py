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
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.open import open_clients
from redrive.ledgers.aws.table import definition
from redrive.ledgers.sql.database import Database
from redrive.operator.aws.alerts import ItemAlerts
from redrive.operator.aws.audit import ItemAudit
from redrive.operator.aws.figures import ItemFigures
from redrive.operator.aws.turns import ItemTurns
from redrive.operator.ports import Alerts, Audit, Figures, Turns
from redrive.operator.sql.alerts import SqlAlerts
from redrive.operator.sql.audit import SqlAudit
from redrive.operator.sql.figures import SqlFigures
from redrive.operator.sql.turns import SqlTurns
from redrive.testing import VirtualClock
from tests.conftest import STORES
from tests.ledgers.aws.servers import AWS


@dataclass(slots=True)
class Kept:
    """What is kept, and the clock that it believes."""

    clock: VirtualClock
    keys: Keys
    sessions: Sessions
    audit: Audit
    alerts: Alerts
    turns: Turns
    figures: Figures
    dynamo: Dynamo | None = None
    database: Database | None = None


def in_tables(database: Database, clock: Any) -> Kept:
    """In tables of SQL."""
    kinds = (SqlKeys, SqlSessions, SqlAudit, SqlAlerts, SqlTurns, SqlFigures)
    return Kept(clock, *(kind(database) for kind in kinds), database=database)  # type: ignore[arg-type]


def in_items(dynamo: Dynamo, clock: Any) -> Kept:
    """In items of DynamoDB."""
    kinds = (ItemKeys, ItemSessions, ItemAudit, ItemAlerts, ItemTurns, ItemFigures)
    return Kept(clock, *(kind(dynamo, clock=clock) for kind in kinds), dynamo=dynamo)  # type: ignore[arg-type]


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
async def kept_in_items(aws: str, clock: VirtualClock) -> AsyncIterator[Kept]:
    """The same in a new table of DynamoDB."""
    os.environ.update({name: value for name, value in AWS.items() if name not in os.environ})
    async with open_clients(region="us-east-1", endpoint_url=aws) as clients:
        name = f"t-{secrets.token_hex(6)}"
        await clients.dynamodb.create_table(**definition(name))
        yield in_items(Dynamo(clients.dynamodb, name), clock)
        await clients.dynamodb.delete_table(TableName=name)
