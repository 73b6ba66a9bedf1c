"""What is told of events whose deliveries have changed, and what their minutes count: from how they stood to how they stand. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from redrive import State
from redrive.operator.headcount import ended
from redrive.systems.triggers.inbox import WORDS
from redrive.systems.triggers.status import Delivery, Standing, moves
from redrive.systems.triggers.values import Change, DeliveryFailed, StatusChanged

ZERO = timedelta(0)
CLAIMED_AT = 2 + Delivery._fields.index("claimed_at")
ENDS = {WORDS[state]: state for state in (State.DONE, State.DEAD)}


class Who(NamedTuple):
    """Which event a change is of."""

    event_id: str
    user_id: str
    correlation_id: str


class FailedTry(NamedTuple):
    """A try that has just failed."""

    error: str | None
    ended_at: datetime | None
    """When it ended; None where nobody knows, because its worker was lost."""


def failures_of(who: Who, deliveries: Sequence[Any], failed: Mapping[Any, FailedTry]) -> list[DeliveryFailed]:
    """Those of the deliveries that have just failed. A delivery is its id, when it last changed, and the fields of `Delivery`."""
    told = []
    for id_, updated_at, _, attempts, due_at, *_ in deliveries:
        if id_ in failed:
            error, ended_at = failed[id_]
            latency = None if ended_at is None else max(updated_at - ended_at, ZERO)
            told.append(DeliveryFailed(*who, attempts, error, due_at, updated_at, latency))
    return told


def changes_of(
    who: Who, before: Standing, after: Standing, deliveries: Sequence[Any], failures: Sequence[DeliveryFailed],
    created_at: datetime, at: datetime,
) -> list[Change]:  # fmt: skip
    """All that is told of an event, in the order in which it happened."""
    statuses = _statuses(who, before, after, deliveries, created_at, at)
    # It failed after it was picked up, and has failed because of it.
    split = 1 if statuses and statuses[0].old_status == "received" else 0
    return [*statuses[:split], *failures, *statuses[split:]]


def taken(who: Who, created_at: datetime) -> StatusChanged:
    """What is told of an event that was just taken in."""
    return StatusChanged(*who, None, "received", 0, None, None, created_at, created_at)


def _statuses(
    who: Who, before: Standing, after: Standing, deliveries: Sequence[Any], created_at: datetime, at: datetime
) -> list[StatusChanged]:
    """The changes of an event's status; one that was left out when it was picked up has the time of that."""
    told = []
    for old, new in moves(before.status, after.status, acknowledged=after.acknowledged_at is not None):
        if new == "queued" and old == "received":
            picked_up = min((row[CLAIMED_AT] for row in deliveries if row[CLAIMED_AT] is not None), default=at)
            told.append(StatusChanged(*who, old, new, 0, None, None, created_at, picked_up))
        else:
            facts = after.retry_attempts, after.last_error, after.failed_at
            told.append(StatusChanged(*who, old, new, *facts, created_at, at))
    return told


def flows_of(change: StatusChanged) -> Sequence[str]:
    """What a change adds to its minute."""
    if change.old_status is None:
        return ("added",)
    if change.new_status not in ENDS:
        return ()
    return ended(ENDS[change.new_status], change.retry_attempts, change.at - change.created_at)
