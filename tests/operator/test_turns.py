"""Chores that one of many services does for all of them."""

import pytest

from redrive.core.durations import minutes
from redrive.operator.turns import give_turn_back, take_turn
from tests.ledgers.homes import Home
from tests.ledgers.shapes import OWN


@pytest.mark.homes(lambda table: table is OWN.table)
async def test_a_turn_is_one_holder_s_until_it_ends(home: Home) -> None:
    """Others get it when its time is over, or when it is given back."""
    late = await take_turn(home.database, "chore", minutes(1))
    assert late is not None
    assert await take_turn(home.database, "chore", minutes(1)) is None
    assert await take_turn(home.database, "another", minutes(1)) is not None
    home.clock.advance(minutes(2))
    until = await take_turn(home.database, "chore", minutes(1))
    assert until is not None
    await give_turn_back(home.database, "chore", late)  # it is another's by now
    assert await take_turn(home.database, "chore", minutes(1)) is None
    await give_turn_back(home.database, "chore", until)
    assert await take_turn(home.database, "chore", minutes(1)) is not None
