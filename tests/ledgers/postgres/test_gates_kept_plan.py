"""Plans that PostgreSQL keeps: to make one may take longer than what is asked."""

import pytest
from sqlalchemy import text

from redrive.core.task import NewTask
from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.database import Database
from tests.ledgers.homes import LEASE

PLANS = text(
    "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE 'WITH RECURSIVE present%'"
)
CLAIMS = 8


@pytest.fixture
def store() -> str:
    return "postgres"


async def test_a_claim_behind_gates_is_planned_once(real_time_database: Database) -> None:
    """Its statement is a long one: a plan for the parameters of each claim takes ten times as long as the claim."""
    ledger = own_ledger(real_time_database)
    await ledger.add([NewTask(kind="job", key=f"k{number}", gate="bank") for number in range(CLAIMS)])
    for _ in range(CLAIMS):
        [claim] = await ledger.claim(1, LEASE, kinds=["job"])
        assert claim.task.gate == "bank"
    plans = await real_time_database.statement(lambda connection: connection.execute(PLANS).all())
    assert [tuple(one) for one in plans] == [(CLAIMS, 0)]
