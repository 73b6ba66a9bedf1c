"""Chores that one of many services does for all of them."""

import pytest

from redrive.core.durations import minutes
from redrive.operator.sql.turns import SqlTurns
from tests.ledgers.homes import Home
from tests.ledgers.shapes import OWN


@pytest.mark.homes(lambda table: table is OWN.table)
async def test_a_turn_is_one_holder_s_until_it_ends(home: Home) -> None:
    """Others get it when its time is over, or when it is given back."""
    turns = SqlTurns(home.database)
    late = await turns.take("chore", minutes(1))
    assert late is not None
    assert await turns.take("chore", minutes(1)) is None
    assert await turns.take("another", minutes(1)) is not None
    home.clock.advance(minutes(2))
    until = await turns.take("chore", minutes(1))
    assert until is not None
    await turns.give_back("chore", late)  # it is another's by now
    assert await turns.take("chore", minutes(1)) is None
    await turns.give_back("chore", until)
    assert await turns.take("chore", minutes(1)) is not None
