"""What the deliveries of an event come to, written into its head in the very write that changes them.

The rule is `fold`, the same as on SQL. The status is written twice: as itself, and as the key under which the inbox finds it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from redrive.items import FailedPart, Followed, Follower, Head, Part
from redrive.operator.json_views import instant_json
from redrive.systems.triggers.status import Delivery, Failure, Standing, fold

INSTANTS = ("last_retry_at", "next_retry_at", "failed_at", "delivered_at", "acknowledged_at")
INBOX_KEY = "status#timestamp"


def read_standing(facts: Mapping[str, Any]) -> Standing:
    """Where an event stands, from the facts of its head."""
    when = {name: None if name not in facts else datetime.fromisoformat(facts[name]) for name in INSTANTS}
    return Standing(
        status=facts["status"],
        retry_attempts=facts.get("retry_attempts", 0),
        last_error=facts.get("last_error"),
        **when,
    )


def standing_facts(standing: Standing, event_id: str, created_at: datetime) -> dict[str, Any]:
    """The facts of a head whose event stands there; None where there is nothing to tell."""
    facts = standing._asdict()
    for name in INSTANTS:
        facts[name] = None if facts[name] is None else instant_json(facts[name])
    facts[INBOX_KEY] = f"{standing.status}#{instant_json(created_at)}#{event_id}"
    return facts


def delivery_of(part: Part) -> Delivery:
    """A part as the fold sees it. It ended when it last changed."""
    ended_at = part.updated_at if part.state.value in ("done", "dead", "cancelled") else None
    return Delivery(part.state.value, part.retries, part.due_at, part.claimed_at, ended_at)


class EventFollower(Follower):
    """Keeps events equal to their deliveries, and counts them."""

    def follow(self, head: Head, parts: Mapping[str, Part], now: datetime, failures: Sequence[FailedPart]) -> Followed:
        """See `Follower.follow`."""
        before = read_standing(head.facts)
        failure = Failure(now, failures[-1].error) if failures else None
        after = fold(before, [delivery_of(part) for part in parts.values()], now, failure)
        counts = {before.status: -1, after.status: 1} if before.status != after.status else {}
        return Followed(standing_facts(after, head.id, head.created_at), counts)
