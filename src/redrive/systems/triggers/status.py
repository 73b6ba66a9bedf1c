"""The status of an event, from its deliveries: one pure function, whoever changed them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

STATUSES = ("received", "queued", "delivered", "failed")
"""The four words of an event's life."""
MOVES = (
    ("received", "queued"),
    ("received", "delivered"),
    ("queued", "delivered"),
    ("queued", "failed"),
    ("failed", "queued"),
)
"""The only ways between them."""


def moves(old: str, new: str, *, acknowledged: bool = False) -> list[tuple[str, str]]:
    """The ways from one status to another.

    An event that somebody had locked when it was picked up is still `received` when its delivery ends: it was queued in between.
    """
    if old == new:
        return []
    if old == "received" and new in ("delivered", "failed") and not acknowledged:
        return [("received", "queued"), ("queued", new)]
    return [(old, new)]


class Delivery(NamedTuple):
    """What an event's status depends on in one of its deliveries."""

    status: str
    retry_attempts: int
    due_at: datetime | None
    claimed_at: datetime | None
    """When it was last picked up; None if it never was."""
    ended_at: datetime | None


class Standing(NamedTuple):
    """Where an event stands."""

    status: str
    retry_attempts: int = 0
    last_retry_at: datetime | None = None
    next_retry_at: datetime | None = None
    failed_at: datetime | None = None
    delivered_at: datetime | None = None
    acknowledged_at: datetime | None = None
    last_error: str | None = None


class Failure(NamedTuple):
    """A delivery that has just failed."""

    at: datetime
    error: str | None


def fold(
    before: Standing,
    deliveries: Sequence[Delivery],
    now: datetime,
    failure: Failure | None = None,
    *,
    parked: bool = False,
) -> Standing:
    """Where an event stands after its deliveries changed. What is delivered stays as it is.

    `parked`: a gate keeps one of them back that was never tried.
    """
    if before.status == "delivered":
        return before
    live = [one for one in deliveries if one.status != "cancelled"]
    untried = any(one.status == "waiting" and one.claimed_at is None for one in live)
    status = _status(before, deliveries, live, parked=parked and untried)
    if before.acknowledged_at is not None:
        ended: datetime | None = before.acknowledged_at
    else:
        ended = max((one.ended_at for one in deliveries if one.ended_at is not None), default=now)
    waiting = [one.due_at for one in live if one.status == "waiting" and one.claimed_at is not None]
    if untried and before.next_retry_at is not None and before.next_retry_at <= now:
        waiting.append(before.next_retry_at)  # it was parked, and nobody has picked it up
    elif untried and parked:
        waiting.append(now)
    return Standing(
        status=status,
        retry_attempts=max((one.retry_attempts for one in live), default=before.retry_attempts),
        last_retry_at=before.last_retry_at if failure is None else failure.at,
        next_retry_at=min((due for due in waiting if due is not None), default=None) if status == "queued" else None,
        failed_at=(before.failed_at or ended) if status == "failed" else None,
        delivered_at=ended if status == "delivered" else None,
        acknowledged_at=before.acknowledged_at,
        last_error=before.last_error if failure is None else failure.error,
    )


def _status(before: Standing, deliveries: Sequence[Delivery], live: Sequence[Delivery], *, parked: bool) -> str:
    states = {one.status for one in live}
    if before.acknowledged_at is not None:
        return "delivered"
    if "waiting" in states or "claimed" in states:
        # Before the first pick-up there is nothing to tell but that it was received; or that a gate keeps it back.
        picked_up = parked or before.status != "received" or any(one.claimed_at is not None for one in deliveries)
        return "queued" if picked_up else "received"
    if before.status == "failed" or "dead" in states:
        return "failed"
    if "done" in states:
        return "delivered"
    # All were cancelled: whoever waits for a delivery must hear that there will be none.
    return "failed" if before.status == "queued" else before.status
