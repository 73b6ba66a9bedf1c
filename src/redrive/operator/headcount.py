"""What people count of a lane, where that is not its tasks: an event, for one, may be many deliveries, or none.

It is counted in the same minutes as tasks are, under a name of its own, in the commits that change it. So charts and alarms take
either, and nobody counts a table for them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from redrive.core.histograms import TOOK, TRIES, took_bucket, tries_bucket
from redrive.core.states import State

ENDS = ("done", "dead", *TRIES, *TOOK)
"""What is counted of those that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headcount:
    """What is counted, what it is called, and how many there are."""

    name: str
    """What the minutes call it."""
    things: str
    """What people call several of them."""
    words: Mapping[State, str]
    """Its own words for the states that it can be in."""
    amounts: Callable[[], Awaitable[Mapping[State, int]]]
    """How many are in each state, all at one instant, so that they add up."""


def ended(state: State, failures: int, took: timedelta) -> list[str]:
    """The columns that count one that has ended."""
    names = [state.value, tries_bucket(failures + 1)]
    return [*names, took_bucket(took.total_seconds())] if state is State.DONE else names
