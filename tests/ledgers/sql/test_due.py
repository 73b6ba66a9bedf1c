"""What is due, of however many kinds; how long the oldest due task has waited, also where others insert rows without a due time."""

import pytest
from sqlalchemy.dialects import postgresql, sqlite

from redrive.core.decide import decide
from redrive.core.durations import minutes, seconds
from redrive.core.outcome import Released
from redrive.core.policy import Policy
from redrive.core.table import LedgerTable
from redrive.core.task import NewTask
from redrive.ledgers.open import own_ledger
from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.due import KINDS_PER_LOOK_MAX, STATEMENTS_KEPT
from tests.ledgers.homes import Home


def _has_one_due(table: LedgerTable) -> bool:
    return table.first_due is None and table.schema is None and "commandbus" not in table.name


async def test_none_is_due(home: Home) -> None:
    """What waits for its time is not due."""
    await home.put(1, delay=minutes(5))
    assert await home.ledger.oldest_due() is None


@pytest.mark.homes.with_args(_has_one_due)
async def test_a_row_without_a_due_time_is_due_since_it_was_made(home: Home) -> None:
    """Not since the beginning of time: a chart would show nothing else, and an alert would go out for each of them."""
    [id_] = await home.put(1)
    await home.change(id_, due=None)
    home.clock.advance(minutes(5))
    waited = await home.ledger.oldest_due()
    expected = minutes(5) if home.table.created_at is not None else seconds(0)
    assert waited is not None and abs(waited - expected) < seconds(2)


async def test_any_number_of_kinds_is_looked_through(database: Database) -> None:
    """What is due of them is found, and nothing of other kinds."""
    ledger = own_ledger(database)
    await ledger.add([NewTask(kind=f"k{number:02}", key=f"{number}") for number in range(KINDS_PER_LOOK_MAX + 1)])
    for amount in range(1, KINDS_PER_LOOK_MAX + 1):
        kinds = [f"k{number:02}" for number in range(amount)]
        assert await ledger.next_due(kinds=kinds) == seconds(0)
        claims = await ledger.claim(100, seconds(30), kinds=kinds)
        assert sorted(claim.task.kind for claim in claims) == kinds
        assert await ledger.next_due(kinds=kinds) is None
        await ledger.settle([decide(claim, Released(), Policy()) for claim in claims], worker="w")


async def test_how_far_away_is_told_once_for_all_kinds(database: Database) -> None:
    """What a statement says of each kind is where to look, and no calculation: that was more than half of it."""
    statements = own_ledger(database)._due
    dialect = {"sqlite": sqlite, "postgresql": postgresql}[database.dialect.name].dialect()
    for build in (statements._next_due, statements._since_due):
        few, many = (str(build(kinds).statement.compile(dialect=dialect)).lower() for kinds in (1, KINDS_PER_LOOK_MAX))
        assert many.count("limit") == KINDS_PER_LOOK_MAX * few.count("limit")
        for sign in ("cast(", "extract(", "case when", "julianday"):
            assert many.count(sign) == few.count(sign), sign


async def test_statements_do_not_pile_up_with_the_number_of_kinds(database: Database) -> None:
    """They are large: a service whose kinds come and go keeps a dozen of each sort, and makes none twice while their number stays."""
    ledger = own_ledger(database)
    due, claiming = type(ledger._due)(ledger._mapped), type(ledger._claiming)(ledger._mapped)
    for build in (due.next_due, due.since_due, claiming.claim):
        for number in range(KINDS_PER_LOOK_MAX + 1):
            assert build(number) is build(number)
        assert build.cache_info().currsize == STATEMENTS_KEPT
