"""Where the items of triggers are kept, and how events and endpoints are written in them. Pure.

Instants are ISO texts, which sort by time. What is a map with gaps for people, as a policy is, is JSON text: DynamoDB's own maps have no
place for None, and would not tell 15 from 15.0.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from redrive.items import Head, Item, Key, from_iso, from_item, to_iso
from redrive.systems.triggers.endpoints import state_of
from redrive.systems.triggers.status import Standing
from redrive.systems.triggers.values import DueEvent, Endpoint, Status, StoredEvent

INBOX = "StatusIndex"
INBOX_KEY = "status#timestamp"
USERS = "users"
ENDPOINTS = "endpoints"
"""The list of all endpoints, by their ids; those of a state are on a list of their own, by since when."""
GIVEN_UP = "given_up"
"""The list of endpoints that their failures have disabled; the other disabled ones are on the list of that name."""
_INSTANTS = ("old_secret_until", "disabled_at", "failing_since", "created_at", "updated_at")
_STANDING_INSTANTS = ("last_retry_at", "next_retry_at", "failed_at", "delivered_at", "acknowledged_at")


# --- events -------------------------------------------------------------------------------------------------------------


def payload_key(event_id: str) -> Key:
    """Where the payload of an event is kept."""
    return f"E#{event_id}", "P"


def idempotency_key(user_id: str, hashed: str) -> Key:
    """Where the event of an idempotency key is told."""
    return f"I#{user_id}#{hashed}", "I"


def hash_key(key: str) -> str:
    """What is kept of an idempotency key."""
    return hashlib.sha256(key.encode()).hexdigest()


def inbox_place(status: str, created_at: datetime, event_id: str) -> str:
    """Where an event stands in the inbox of its user."""
    return f"{status}#{to_iso(created_at)}#{event_id}"


def read_standing(facts: Mapping[str, Any]) -> Standing:
    """Where an event stands, from the facts of its head."""
    when = {name: from_iso(facts[name]) if name in facts else None for name in _STANDING_INSTANTS}
    return Standing(
        status=facts["status"],
        retry_attempts=facts.get("retry_attempts", 0),
        last_error=facts.get("last_error"),
        **when,
    )


def standing_facts(standing: Standing, event_id: str, created_at: datetime) -> dict[str, Any]:
    """The facts of a head whose event stands there; None where there is nothing to tell.

    The status is written twice: as itself, and in the key under which the inbox finds it.
    """
    facts = standing._asdict()
    for name in _STANDING_INSTANTS:
        facts[name] = None if facts[name] is None else to_iso(facts[name])
    facts[INBOX_KEY] = inbox_place(standing.status, created_at, event_id)
    return facts


def read_status(head: Head) -> Status:
    """What the status of an event tells."""
    stands = read_standing(head.facts)
    return Status(
        head.id, stands.status, stands.retry_attempts, stands.last_retry_at, stands.failed_at, stands.next_retry_at
    )


def read_event(head: Head, payload: str) -> StoredEvent:
    """An event from its head and its payload."""
    stands = read_standing(head.facts)
    facts = {name: getattr(stands, name) for name in Standing._fields}
    return StoredEvent(
        id=head.id, event_type=head.facts["event_type"], payload=payload, correlation_id=head.facts["correlation_id"],
        created_at=head.created_at, **facts,
    )  # fmt: skip


def read_due(head: Head, payload: str) -> DueEvent:
    """What is delivered of an event."""
    said = head.facts.get("acknowledged_at")
    return DueEvent(
        head.id, head.facts["event_type"], payload, head.facts["correlation_id"], head.created_at,
        None if said is None else from_iso(said),
    )  # fmt: skip


# --- users and endpoints ------------------------------------------------------------------------------------------------


def user_key(user_id: str) -> Key:
    """Where is kept what is known of a user: that there is one, and how many endpoints they have."""
    return f"U#{user_id}", "U"


def endpoint_key(user_id: str, id: str) -> Key:
    """Where an endpoint is kept."""
    return f"U#{user_id}", f"P#{id}"


def holder_key(id: str) -> Key:
    """Where is told whose an endpoint is."""
    return f"EP#{id}", "EP"


def endpoint_values(endpoint: Endpoint) -> dict[str, Any]:
    """An endpoint as it is written, with its place on the list of its state."""
    state, since = state_of(endpoint.created_at, endpoint.failing_since, endpoint.disabled_at)
    listing: str = GIVEN_UP if state == "disabled" and endpoint.disabled_by is None else state
    values = {
        "id": endpoint.id,
        "user_id": endpoint.user_id,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "description": endpoint.description,
        "secret": endpoint.secret,
        "old_secret": endpoint.old_secret,
        "policy": json.dumps(dict(endpoint.policy)),
        "enabled": endpoint.enabled,
        "disabled_reason": endpoint.disabled_reason,
        "disabled_by": endpoint.disabled_by,
        "listing": endpoints_listing(listing),
        "listing_at": f"{to_iso(since)}#{endpoint.id}",
    }
    return values | {name: _text(getattr(endpoint, name)) for name in _INSTANTS}


def endpoints_listing(state: str) -> str:
    """The list of the endpoints in a state."""
    return f"{ENDPOINTS}#{state}"


def read_endpoint(item: Item) -> Endpoint:
    """The endpoint that an item holds."""
    values = from_item(item)
    told: dict[str, Any] = {name: values.get(name) for name in Endpoint.__dataclass_fields__}
    instants = {name: from_iso(values[name]) if name in values else None for name in _INSTANTS}
    shaped = {"event_types": tuple(values["event_types"]), "policy": json.loads(values["policy"])}
    return Endpoint(**told | instants | shaped)


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else to_iso(instant)
