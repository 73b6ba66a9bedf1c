"""Ledgers for what operators see and do: the homes of the conformance suite, and redrive's own table."""

from typing import Any

import pytest
from engine.workbench import Heard
from ledgers.conftest import home as home
from ledgers.conftest import pytest_configure as pytest_configure
from ledgers.conftest import pytest_generate_tests as pytest_generate_tests
from ledgers.conftest import url as url

from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.ledger import SqlLedger


@pytest.fixture
async def heard() -> Heard:
    """An observer that keeps every fact."""
    return Heard()


@pytest.fixture
def ledger(database: Any) -> SqlLedger:
    """redrive's own table, on both databases, with the test's clock."""
    return own_ledger(database)
