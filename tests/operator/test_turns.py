"""Chores that one of many services does for all of them."""

import asyncio

from redrive.core.durations import minutes
from tests.kept import Kept
from tests.kept import kept as kept
from tests.kept import kept_in_items as kept_in_items
from tests.kept import store as store


async def test_a_turn_is_one_holder_s_until_it_ends(kept: Kept) -> None:
    """Others get it when its time is over, or when it is given back."""
    turns = kept.turns
    late = await turns.take("chore", minutes(1))
    assert late == kept.clock.now() + minutes(1)
    assert await turns.take("chore", minutes(1)) is None
    assert await turns.take("another", minutes(1)) is not None
    kept.clock.advance(minutes(2))
    until = await turns.take("chore", minutes(1))
    assert until is not None
    await turns.give_back("chore", late)  # it is another's by now
    assert await turns.take("chore", minutes(1)) is None
    await turns.give_back("chore", until)
    assert await turns.take("chore", minutes(1)) is not None


async def test_of_many_at_once_one_has_it(kept: Kept) -> None:
    """Also of the very first turn, and also where nobody had it before."""
    for _ in range(2):
        taken = await asyncio.gather(*(kept.turns.take("chore", minutes(1)) for _ in range(6)))
        assert sum(until is not None for until in taken) == 1
        kept.clock.advance(minutes(1))
