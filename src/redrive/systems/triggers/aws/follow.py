"""What the deliveries of an event come to, written into its head in the very write that changes them, and told after it.

The rule is `fold`, the same as on SQL.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from redrive.items import FailedPart, Followed, Follower, Head, HeadChange, Part
from redrive.systems.triggers.aws.places import read_standing, standing_facts
from redrive.systems.triggers.changes import FailedTry, Who, changes_of, failures_of
from redrive.systems.triggers.logs import InOrder
from redrive.systems.triggers.status import Delivery, Failure, fold
from redrive.systems.triggers.values import Change

ENDED = ("done", "dead", "cancelled")


def delivery_of(part: Part) -> Delivery:
    """A part as the fold sees it. It ended when it last changed."""
    ended_at = part.updated_at if part.state.value in ENDED else None
    return Delivery(part.state.value, part.retries, part.due_at, part.claimed_at, ended_at)


class EventFollower(Follower):
    """Keeps events equal to their deliveries, counts them, and tells what has changed."""

    def __init__(self, tell: Callable[[Sequence[Change]], None] = lambda _: None) -> None:
        self.order = InOrder(tell)

    def follow(self, head: Head, parts: Mapping[str, Part], now: datetime, failures: Sequence[FailedPart]) -> Followed:
        """See `Follower.follow`."""
        before = read_standing(head.facts)
        failure = Failure(now, failures[-1].error) if failures else None
        parked = any(part.parked for part in parts.values())
        after = fold(before, [delivery_of(part) for part in parts.values()], now, failure, parked=parked)
        counts = {before.status: -1, after.status: 1} if before.status != after.status else {}
        facts = standing_facts(after, head.id, head.created_at)
        return Followed(facts, counts, kept=facts["delivered_at"])

    def tell(self, changes: Sequence[HeadChange]) -> None:
        """See `Follower.tell`."""
        self.order.tell([told for change in changes for told in told_of(change)])


def told_of(change: HeadChange) -> list[Change]:
    """What is told of a change of a head, in the order in which it happened."""
    head = change.after
    who = Who(head.id, head.user_id, head.facts.get("correlation_id", ""))
    deliveries = [(number, part.updated_at, *delivery_of(part)) for number, part in head.parts.items()]
    failed = {one.number: FailedTry(one.error, one.ended_at) for one in change.failures}
    failures = failures_of(who, deliveries, failed) if failed else []
    before, after = read_standing(change.before.facts), read_standing(head.facts)
    return changes_of(who, before, after, deliveries, failures, head.created_at, change.at)
