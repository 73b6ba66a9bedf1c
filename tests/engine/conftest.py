"""Ledgers on both databases for the tests of the engine."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.ledger import SqlLedger
from tests.engine.workbench import Gate, Heard


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
def ledger(database: Any) -> SqlLedger:
    """redrive's own table, on both databases, with the test's clock."""
    return own_ledger(database)


@pytest.fixture
def real_ledger(real_time_database: Any) -> SqlLedger:
    """The same with real time, for the tests of the worker."""
    return own_ledger(real_time_database)


@pytest.fixture
def threads() -> Any:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
async def gate() -> Gate:
    """A handler that lets nobody out by itself."""
    return Gate()
