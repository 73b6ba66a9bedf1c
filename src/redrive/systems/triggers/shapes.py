"""What strangers send to `/v1` and what they get: the shapes of the API, with examples for its description."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from redrive.access.keys import Scope
from redrive.errors import UsageError
from redrive.http.reason import Reason
from redrive.systems.triggers.endpoints import check_secret
from redrive.systems.triggers.settings import RETRIES_MAX
from redrive.systems.triggers.values import COUNTED_MAX, EndpointState, GateState

STAMP = "2026-01-31T09:00:00.000000Z"
EVENT = "019c1320-7d00-7a3b-9f52-0c1d2e3f4a5b"
ENDPOINT = "019c1320-7d00-7b6e-8a10-5f4e3d2c1b0a"
BATCH_MAX = 100

EventStatus = Literal["received", "queued", "delivered", "failed"]
EventType = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9_.-]{1,200}$", description="Letters, digits, `_`, `.`, `-`", examples=["order.created"]),
]
TypePattern = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.*-]{1,200}$", description="`*` stands for any text", examples=["order.*"])
]
IdempotencyKey = Annotated[
    str, Field(pattern=r"^[!-~]{1,200}$", description="1 to 200 visible ASCII characters", examples=["order-7-created"])
]
Owner = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$", examples=["ada"])]
Description = Annotated[str, Field(max_length=500, pattern=r"^[^\x00]*$", description="For people; any text but NUL")]
YEAR_MIN, YEAR_MAX = 1970, 9998
"""Times between these can be stored, shown and reckoned with everywhere, in whatever zone they are written."""


def _moment(given: datetime) -> datetime:
    try:
        moment = given.astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise ValueError(f"it must lie between the years {YEAR_MIN} and {YEAR_MAX}")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_moment)]
"""A time with a zone, kept in UTC."""


def _secret(secret: str) -> str:
    try:
        return check_secret(secret)
    except UsageError as error:
        raise ValueError(str(error)) from None


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EventIn(_In):
    """An event to be taken in."""

    event_type: EventType
    payload: Any = Field(description="Any JSON value", examples=[{"order": 7, "total": "19.90"}])


class BatchEventIn(EventIn):
    """An event of a batch."""

    idempotency_key: IdempotencyKey | None = None


class BatchIn(_In):
    """Many events. Each is judged by itself: one that does not fit leaves the others alone."""

    events: list[Any] = Field(
        min_length=1,
        max_length=BATCH_MAX,
        description="Objects with `event_type`, `payload` and, if you like, `idempotency_key`",
        examples=[[{"event_type": "order.created", "payload": {"order": 7}, "idempotency_key": "order-7-created"}]],
    )


class EventTaken(BaseModel):
    """An event that is stored."""

    event_id: str = Field(examples=[EVENT])
    status: EventStatus = Field(examples=["received"])
    timestamp: str = Field(description="When it was taken in", examples=[STAMP])


class ItemError(BaseModel):
    """Why an item of a batch was not taken."""

    code: str = Field(examples=["VALIDATION_ERROR"])
    message: str


class BatchItem(BaseModel):
    """What became of an item of a batch: either an event or an error."""

    index: int = Field(examples=[0])
    event_id: str | None = Field(default=None, examples=[EVENT])
    status: EventStatus | None = Field(default=None, examples=["received"])
    timestamp: str | None = Field(default=None, examples=[STAMP])
    error: ItemError | None = None


class BatchTaken(BaseModel):
    """A result per item, in the order of the items."""

    results: list[BatchItem]


class EventStatusOut(BaseModel):
    """Exactly this, and never the payload."""

    event_id: str = Field(examples=[EVENT])
    status: EventStatus = Field(examples=["queued"])
    retry_attempts: int = Field(ge=0, le=RETRIES_MAX, description="Failed deliveries so far", examples=[1])
    last_retry_at: str | None = Field(description="The latest failed delivery", examples=[STAMP])
    failed_at: str | None = Field(description="When it failed for good", examples=[None])
    next_retry_at: str | None = Field(description="Null unless it waits", examples=["2026-01-31T09:01:00.000000Z"])


class EventOut(EventStatusOut):
    """An event with all that is known of it."""

    event_type: str = Field(examples=["order.created"])
    payload: Any = Field(examples=[{"order": 7}])
    timestamp: str = Field(examples=[STAMP])
    delivered_at: str | None = Field(examples=[None])
    last_error: str | None = Field(examples=["TransientError: the endpoint answered 503"])
    correlation_id: str = Field(examples=["5f0c9a3e7b1d4c2f8e6a0b9d7c5e3f1a"])


class AttemptOut(BaseModel):
    """One try of a delivery."""

    event_id: str = Field(examples=[EVENT])
    endpoint_id: str = Field(examples=[ENDPOINT])
    number: int = Field(description="Counted from one since the event was taken in or brought back", examples=[1])
    started_at: str | None = Field(examples=[STAMP])
    ended_at: str = Field(examples=[STAMP])
    duration_seconds: float = Field(examples=[0.082])
    outcome: str = Field(examples=["failed"])
    error_class: str | None = Field(examples=["transient"])
    error: str | None = Field(examples=["TransientError: the endpoint answered 503"])
    delay_seconds: float | None = Field(description="Until the next try, if there is one", examples=[60.0])


class Attempts(BaseModel):
    """Tries, newest first."""

    attempts: list[AttemptOut]


class InboxEvent(BaseModel):
    """An event in the inbox."""

    event_id: str = Field(examples=[EVENT])
    event_type: str = Field(examples=["order.created"])
    timestamp: str = Field(examples=[STAMP])
    payload: Any = Field(examples=[{"order": 7}])


class Pagination(BaseModel):
    """Where the next page begins."""

    limit: int = Field(examples=[50])
    cursor: str | None = Field(description="For the next page; null after the last")
    has_more: bool = Field(examples=[False])
    total_count: int | None = Field(description="Null when filtered by type", examples=[1])


class InboxOut(BaseModel):
    """A page of the inbox, oldest first."""

    events: list[InboxEvent]
    pagination: Pagination


class RetryIn(_In):
    """Which failed events are brought back: all conditions must hold."""

    event_type: EventType | None = None
    endpoint_id: str | None = Field(default=None, max_length=100, examples=[ENDPOINT])
    failed_after: Moment | None = Field(default=None, examples=[STAMP])
    failed_before: Moment | None = Field(default=None, examples=[STAMP])
    limit: int = Field(default=100, ge=1, le=1000, strict=True)
    dry_run: bool = Field(default=False, strict=True, description="Only count")


class Retried(BaseModel):
    """How many events matched and how many were brought back."""

    matched: int = Field(examples=[12])
    retried: int = Field(examples=[12])
    has_more: bool = Field(description="Whether there are more than `limit`", examples=[False])


class PolicyIn(_In):
    """How deliveries to an endpoint are made."""

    max_retries: int = Field(default=RETRIES_MAX, ge=0, le=RETRIES_MAX, strict=True)
    timeout_seconds: float = Field(default=15, ge=1, le=15, strict=True)
    retry_all: bool | None = Field(default=None, description="Null: as the service is set", strict=True)
    retry_after_max_seconds: float | None = Field(
        default=None, ge=0, le=86_400, strict=True,
        description="How long a `Retry-After` may make a wait; null: no longer than the longest of the service's delays",
    )  # fmt: skip


class EndpointIn(_In):
    """A subscription."""

    url: str = Field(min_length=1, max_length=2048, examples=["https://shop.example/hooks"])
    event_types: list[TypePattern] = Field(default=["*"], min_length=1, max_length=50)
    description: Description = ""
    secret: Annotated[str, Field(max_length=200), AfterValidator(_secret)] | None = Field(
        default=None, description="`whsec_` and the base64 of 24 to 64 bytes; without it one is made"
    )
    policy: PolicyIn = PolicyIn()
    enabled: bool = Field(default=True, strict=True)


class EndpointChange(_In):
    """What should change."""

    url: str | None = Field(default=None, min_length=1, max_length=2048, examples=["https://shop.example/hooks"])
    event_types: list[TypePattern] | None = Field(default=None, min_length=1, max_length=50)
    description: Description | None = None
    secret: Annotated[str, Field(max_length=200), AfterValidator(_secret)] | None = Field(
        default=None, description="A new one; the old one goes on signing for 24 hours"
    )
    rotate_secret: bool = Field(default=False, strict=True, description="Make a new one")
    policy: PolicyIn | None = None
    enabled: bool | None = Field(default=None, strict=True)


class HeldOut(BaseModel):
    """Why deliveries to an endpoint are kept back. They are not charged."""

    state: GateState = Field(
        description="`holding`: one delivery at a time asks whether it is back; `returning`: more and more go through; `paused`: a person said so"
    )
    since: str | None = Field(examples=[STAMP])
    next_at: str | None = Field(description="When the next delivery may go there", examples=[STAMP])
    reason: str | None = Field(examples=["its deliveries failed"])
    waiting: int | None = Field(
        description=f"Due deliveries that wait for it; counted up to {COUNTED_MAX:,}, null where nobody counts them"
    )


class EndpointOut(BaseModel):
    """A subscription, without its secret."""

    endpoint_id: str = Field(examples=[ENDPOINT])
    url: str = Field(examples=["https://shop.example/hooks"])
    event_types: list[str] = Field(examples=[["order.*"]])
    description: str = Field(examples=["the shop"])
    policy: dict[str, Any] = Field(
        examples=[{"max_retries": 3, "timeout_seconds": 15, "retry_all": None, "retry_after_max_seconds": None}]
    )
    enabled: bool
    disabled_at: str | None = Field(examples=[None])
    disabled_reason: str | None = Field(examples=[None])
    failing_since: str | None = Field(examples=[None])
    held: HeldOut | None = Field(description="Null while its deliveries go through", examples=[None])
    old_secret_until: str | None = Field(description="Until when two secrets sign", examples=[None])
    created_at: str = Field(examples=[STAMP])
    updated_at: str = Field(examples=[STAMP])


class NoticeOut(BaseModel):
    """Something that the owner of an endpoint must know."""

    endpoint_id: str = Field(examples=[ENDPOINT])
    timestamp: str = Field(examples=[STAMP])
    message: str = Field(examples=["the endpoint https://shop.example/hooks was disabled: it answered 410 Gone"])


class Notices(BaseModel):
    """The newest notices, newest first."""

    notices: list[NoticeOut]


class EndpointMade(EndpointOut):
    """The same with its secret, which is shown when it is made and when it changes."""

    secret: str | None = Field(default=None, examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="])


class Endpoints(BaseModel):
    """All endpoints of a user."""

    endpoints: list[EndpointOut]


class Tested(BaseModel):
    """What a test came to."""

    delivered: bool
    status_code: int | None = Field(examples=[200])
    error: str | None = Field(examples=[None])
    duration_seconds: float = Field(examples=[0.031])


class KeyIn(_In):
    """A key to be made."""

    user: Owner
    scopes: list[Scope] = Field(min_length=1, max_length=20)
    expires_at: Moment | None = Field(
        default=None, description="At most 366 days ahead; null: never", examples=["2027-01-31T09:00:00Z"]
    )


class KeyChange(_In):
    """What should change. `expires_at: null` lets the key live for ever."""

    scopes: list[Scope] | None = Field(default=None, min_length=1, max_length=20)
    expires_at: Moment | None = Field(
        default=None, description="At most 366 days ahead; null: never", examples=["2027-01-31T09:00:00Z"]
    )


class KeyOut(BaseModel):
    """What is known of a key."""

    key_id: str = Field(examples=["3f9a61c0d2b4"])
    user: str = Field(examples=["ada"])
    scopes: list[str] = Field(examples=[["events:write"]])
    created_at: str = Field(examples=[STAMP])
    expires_at: str | None = Field(examples=[None])


class KeyMade(KeyOut):
    """A new key; its text is shown this once."""

    key: str = Field(examples=["rdk_…"])


class KeyPage(BaseModel):
    """A page of keys."""

    keys: list[KeyOut]
    pagination: Pagination


# --- for operators ----------------------------------------------------------------------------------------------------


IDS_PER_ACT_MAX = 1000


class FailureOut(BaseModel):
    """The latest delivery that has failed and was not delivered since."""

    delivery_id: str = Field(description="A task of the ledger `trigger_deliveries`", examples=[EVENT])
    at: str = Field(examples=[STAMP])
    error: str = Field(examples=["TransientError: the endpoint answered 503"])


class EndpointSeenOut(BaseModel):
    """An endpoint, without its secrets."""

    endpoint_id: str = Field(examples=[ENDPOINT])
    user: str = Field(examples=["ada"])
    url: str = Field(description="Its query is hidden", examples=["https://shop.example/hooks?…"])
    description: str = Field(examples=["the shop"])
    event_types: list[str] = Field(examples=[["order.*"]])
    state: EndpointState = Field(description="`failing`: enabled, and nothing was delivered since then")
    since: str = Field(
        description="When it began to fail or was disabled; when it was made, if it is enabled", examples=[STAMP]
    )
    disabled_reason: str | None = Field(examples=["it answered 410 Gone"])
    disabled_by: str | None = Field(description="Null where its failures did it", examples=[None])
    retrying: int = Field(description=f"Deliveries that wait for another try; counted up to {COUNTED_MAX:,}")
    failed: int = Field(description=f"Deliveries that have failed for good; counted up to {COUNTED_MAX:,}")
    latest_failure: FailureOut | None
    held: HeldOut | None = Field(description="Null while its deliveries go through")
    created_at: str = Field(examples=[STAMP])


class EndpointPageOut(BaseModel):
    """Some endpoints."""

    endpoints: list[EndpointSeenOut]
    cursor: str | None = Field(description="For the next page, with the same filter; null on the last one")


class ActIn(BaseModel):
    """Which endpoints, and why."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    ids: list[Annotated[str, Field(max_length=100)]] = Field(
        min_length=1, max_length=IDS_PER_ACT_MAX, description="Ids of endpoints, of any user", examples=[[ENDPOINT]]
    )
    reason: Reason = Field(examples=["it is back"])


class ActedOut(BaseModel):
    """What an act came to."""

    changed: int = Field(description="How many endpoints, or deliveries, changed")
    refused: dict[str, str] = Field(
        description="Endpoints that were left alone, and why", examples=[{ENDPOINT: "it is enabled already"}]
    )
