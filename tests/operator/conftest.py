"""Ledgers for what operators see and do: the homes of the conformance suite, and redrive's own table."""

from pathlib import Path
from typing import Any

import pytest

from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.ledger import SqlLedger
from tests.engine.workbench import Heard
from tests.ledgers.conftest import grounds as grounds
from tests.ledgers.conftest import home as home
from tests.ledgers.conftest import pytest_configure as pytest_configure
from tests.ledgers.conftest import pytest_generate_tests as pytest_generate_tests
from tests.ledgers.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.ledgers.conftest import share_a_loop
from tests.ledgers.conftest import url as url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As in the folder of the ledgers."""
    share_a_loop(items, Path(__file__).parent)


@pytest.fixture
async def heard() -> Heard:
    """An observer that keeps every fact."""
    return Heard()


@pytest.fixture
def ledger(database: Any) -> SqlLedger:
    """redrive's own table, on both databases, with the test's clock."""
    return own_ledger(database)
