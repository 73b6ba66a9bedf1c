"""How long the oldest due task has waited, also where others insert rows without a due time."""

import pytest

from redrive.core.durations import minutes, seconds
from redrive.core.table import LedgerTable
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
