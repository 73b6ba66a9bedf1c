"""The numbers that charts are drawn from: what each minute counted, added up over ledgers, workers and steps of time.

Nothing here reads a task. Minutes are folded as they grow old, so that a week is a few thousand rows whatever was done in it:
after five minutes the workers of a minute become one row, after two days the minutes of an hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.core.states import State
from redrive.ledgers.rollup import MEASURED

SUMMED = (*MEASURED, "added", "pruned")
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
FOLD_WORKERS_AFTER = timedelta(minutes=5)
"""Soon: everybody who adds tasks in a transaction of their own leaves a row."""
FOLD_MINUTES_AFTER = timedelta(days=2)
FORGET_AFTER = timedelta(days=400)
COMMITTED_WITHIN = HOUR
"""A transaction may end so long after the minute that it counted in."""
FOLDED = ""
"""The worker of a row that stands for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """How many tasks of a ledger are in which state, when they were last counted, and how long the oldest due one waits."""

    amounts: Mapping[State, int]
    counted_at: datetime
    oldest_due: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What happened in one step of time."""

    start: datetime
    sums: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many tasks stood where in one step of time, at its last census."""

    start: datetime
    amounts: Mapping[State, int]
    oldest_due: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead tasks with one cause, as of the last census."""

    ledger: str
    id: str
    text: str
    sample: str
    first_seen: datetime
    last_seen: datetime
    amount: int
    kind: str | None = None
    at: str | None = None
    """The line of the user's code that the errors came from."""


def carried_on(amounts: Mapping[State, int], changed: Mapping[str, int]) -> dict[State, int]:
    """What a census has counted, carried on by what the minutes have counted since; no amount is below zero. Pure.

    The amounts add up: what ended was waiting or held when it was counted, and is no longer either.
    """
    ended = changed["done"] + changed["dead"] + changed["cancelled"]
    waiting = amounts[State.WAITING] + changed["added"] - ended
    now = {
        **amounts,
        State.WAITING: waiting,
        State.CLAIMED: amounts[State.CLAIMED] + min(0, waiting),
        State.DONE: amounts[State.DONE] + changed["done"] - changed["pruned"],
        State.DEAD: amounts[State.DEAD] + changed["dead"],
        State.CANCELLED: amounts[State.CANCELLED] + changed["cancelled"],
    }
    return {state: max(0, amount) for state, amount in now.items()}


def flows_from(at: datetime) -> datetime:
    """The minute from which on flows are added up to carry on a census of this instant.

    Early enough for what was counted before it and committed after; a whole hour, so that no fold moves anything across it.
    """
    return (at - COMMITTED_WITHIN).replace(minute=0, second=0, microsecond=0)
