"""What triggers holds: events, endpoints, what changes, and endpoints as operators see them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to be taken in; its payload is JSON text."""

    user_id: str
    event_type: str
    payload: str
    correlation_id: str
    idempotency_key: str | None = None


class Taken(NamedTuple):
    """An event that is stored, now or before under the same idempotency key."""

    id: str
    status: str
    created_at: datetime
    new: bool
    deliveries: int = 0
    """How many it has made: one for each endpoint that wants it, where it is new."""


class NotTaken(NamedTuple):
    """An event that could not be stored now, and why; it may be sent again."""

    why: str


class Status(NamedTuple):
    """What the status of an event tells."""

    id: str
    status: str
    retry_attempts: int
    last_retry_at: datetime | None
    failed_at: datetime | None
    next_retry_at: datetime | None


class StoredEvent(NamedTuple):
    """An event with all that is known of it; its payload is JSON text."""

    id: str
    event_type: str
    payload: str
    correlation_id: str
    status: str
    retry_attempts: int
    last_retry_at: datetime | None
    next_retry_at: datetime | None
    failed_at: datetime | None
    delivered_at: datetime | None
    acknowledged_at: datetime | None
    last_error: str | None
    created_at: datetime


class ListedEvent(NamedTuple):
    """An event as the inbox shows it; its payload is JSON text."""

    id: str
    event_type: str
    created_at: datetime
    payload: str


class InboxPage(NamedTuple):
    """A page of the inbox, and whether there is more behind it."""

    events: list[ListedEvent]
    last: str
    """The id that the next page begins behind, if there is more."""
    has_more: bool
    total: int | None


class DeadDeliveries(NamedTuple):
    """An event's status, None if there is no such event, and its deliveries that can be brought back."""

    status: str | None
    ids: list[str]


class FailedEvents(NamedTuple):
    """Failed events, each with its deliveries that can be brought back, and whether there are more."""

    deliveries: dict[str, list[str]]
    has_more: bool


class DeliveryTry(NamedTuple):
    """One try of a delivery."""

    event_id: str
    endpoint_id: str
    number: int
    started_at: datetime | None
    ended_at: datetime
    duration_seconds: float
    outcome: str
    error_class: str | None
    error: str | None
    delay_seconds: float | None


class Address(NamedTuple):
    """What a delivery is of: which event, of whom, and where it goes."""

    event_id: str
    user_id: str
    endpoint_id: str


class DueEvent(NamedTuple):
    """What is delivered of an event, and whether it still should be."""

    id: str
    event_type: str
    payload: str
    correlation_id: str
    created_at: datetime
    acknowledged_at: datetime | None


class StatusChanged(NamedTuple):
    """An event has a new status; `old_status` is None for one that was just taken in."""

    event_id: str
    user_id: str
    correlation_id: str
    old_status: str | None
    new_status: str
    retry_attempts: int
    last_error: str | None
    failed_at: datetime | None
    created_at: datetime
    at: datetime


class DeliveryFailed(NamedTuple):
    """A delivery has failed; without `next_retry_at` for good."""

    event_id: str
    user_id: str
    correlation_id: str
    retry_attempts: int
    error: str | None
    next_retry_at: datetime | None
    at: datetime
    """When that was written down."""
    latency: timedelta | None
    """From the end of the try until then; None where its worker was lost, so that nobody knows its end."""


Change = StatusChanged | DeliveryFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A subscription of a user."""

    id: str
    user_id: str
    url: str
    event_types: tuple[str, ...]
    description: str
    secret: str
    old_secret: str | None
    old_secret_until: datetime | None
    policy: Mapping[str, Any]
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: str | None
    failing_since: datetime | None
    created_at: datetime
    updated_at: datetime
    disabled_by: str | None
    """Who switched it off; None where its failures did."""

    def __repr__(self) -> str:
        return f"Endpoint(id={self.id!r})"  # never its secrets

    def secrets(self, now: datetime) -> list[str]:
        """The secrets that sign now, as they are stored, the current one first."""
        both = self.old_secret is not None and self.old_secret_until is not None and now < self.old_secret_until
        return [self.secret, *([self.old_secret] if both and self.old_secret else [])]


class Notice(NamedTuple):
    """What the owner of an endpoint must be told."""

    endpoint_id: str
    at: datetime
    message: str


# --- for operators ----------------------------------------------------------------------------------------------------

COUNTED_MAX = 1000
"""Deliveries of an endpoint are counted up to here."""
EndpointState = Literal["enabled", "failing", "disabled"]
STATES: tuple[EndpointState, ...] = get_args(EndpointState)
"""Failing ones are enabled, and have only failed since then."""


GateState = Literal["holding", "returning", "paused"]


class HeldEndpoint(NamedTuple):
    """An endpoint whose deliveries are kept back."""

    state: GateState
    since: datetime | None
    next_at: datetime | None
    """When the next delivery may go there; None where somebody will say."""
    reason: str | None
    waiting: int | None = None
    """Due deliveries that wait for it, counted up to `COUNTED_MAX`; None where nobody counts them."""


class LatestFailure(NamedTuple):
    """The latest delivery to an endpoint that has failed and was not delivered since."""

    delivery_id: str
    at: datetime
    """When it was last tried."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEndpoint:
    """An endpoint as an operator sees it."""

    id: str
    user: str
    url: str
    """Without its query, which may hold a secret."""
    description: str
    event_types: tuple[str, ...]
    state: EndpointState
    since: datetime
    """When it began to fail or was disabled; when it was made, if it is enabled: nobody writes down when that began."""
    disabled_reason: str | None
    disabled_by: str | None
    created_at: datetime
    retrying: int
    """Deliveries that have failed and are tried again; counted up to `COUNTED_MAX`."""
    failed: int
    """Deliveries that have failed for good; counted up to `COUNTED_MAX`."""
    latest_failure: LatestFailure | None
    held: HeldEndpoint | None = None
    """Whether its deliveries are kept back."""


class GivenUp(NamedTuple):
    """An endpoint that its failures have disabled, and not anybody."""

    id: str
    user_id: str
    url: str
    disabled_at: datetime
    disabled_reason: str | None


class Switched(NamedTuple):
    """Which of some endpoints are there, and which of those were switched; the others stood so already."""

    there: set[str]
    changed: set[str]
