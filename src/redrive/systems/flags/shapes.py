"""What comes in and goes out over HTTP: names in camelCase, times in ISO 8601 with a zone, nothing without a limit."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
)
from pydantic.alias_generators import to_camel

from redrive.http.reason import Reason
from redrive.lane import Acted, Attempt
from redrive.operator.json_views import instant_json
from redrive.systems.flags.settings import RETRIES_MAX
from redrive.systems.flags.values import NewSchedule, Retries, SeenSchedule

KEY = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
BULK_MAX = 50
IDS_MAX = 1000
_AT = "2026-12-01T08:00:00.000000Z"


def storable(text: str) -> str:
    """A validator: text that every database stores."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character: send well-formed Unicode") from None
    if "\0" in text:
        raise ValueError("it must not hold a NUL character")
    return text


def read_instant(given: Any) -> Any:
    """A validator: an instant as ISO 8601 text with a zone."""
    if not isinstance(given, str):
        raise ValueError(f"write it as text, such as {_AT}")  # noqa: TRY004 - pydantic takes these for an answer
    try:
        read = datetime.fromisoformat(given)
        if read.tzinfo is None:
            raise ValueError
        return read.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"write it in ISO 8601 with a zone, such as {_AT}") from None


Text = Annotated[str, AfterValidator(storable)]
Given = Annotated[datetime, BeforeValidator(read_instant)]
Shown = Annotated[datetime, PlainSerializer(instant_json, return_type=str)]


def _example(**shown: Any) -> ConfigDict:
    """What the description shows of a body."""
    return ConfigDict(json_schema_extra={"examples": [shown]})


class CamelBody(BaseModel):
    """The names outside are camelCase; what is not known is refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", from_attributes=True)


# --- in -----------------------------------------------------------------------------------------------------------------


class FlagChange(CamelBody):
    """What a flag is to be. What is left out stays as it is, or has its default in a new flag: off, for 0 percent."""

    model_config = _example(enabled=True, rolloutPercentage=10, description="The new checkout")
    enabled: StrictBool | None = Field(default=None, description="Whether it is on at all")
    rollout_percentage: Annotated[StrictInt, Field(ge=0, le=100)] | None = Field(
        default=None, description="For how many of a hundred users it is on"
    )
    description: Annotated[Text, Field(max_length=2000)] | None = Field(default=None, description="For people")


class UserOverride(CamelBody):
    """A user for whom the percentage does not speak."""

    model_config = _example(userId="u-17", overrideType="include", reason="beta tester")
    user_id: Annotated[Text, Field(min_length=1, max_length=200)]
    override_type: Literal["include", "exclude"]
    reason: Annotated[Text, Field(max_length=500)] | None = None


class Updates(CamelBody):
    """What a schedule sets: at least one of both."""

    enabled: StrictBool | None = Field(default=None, description="Whether the flag is on at all")
    rollout_percentage: Annotated[StrictInt, Field(ge=0, le=100)] | None = Field(
        default=None, description="For how many of a hundred users it is on"
    )

    def given(self) -> dict[str, Any]:
        """What was given, by the names outside."""
        return self.model_dump(by_alias=True, exclude_none=True)


class BackoffRequest(CamelBody):
    """How long retries wait: `first`, then twice as long each time, up to `cap`. At least one of both."""

    model_config = _example(first="2m", cap="60m")
    first: Annotated[str, Field(max_length=20)] | None = Field(default=None, description="Before the first retry; 2m")
    cap: Annotated[str, Field(max_length=20)] | None = Field(default=None, description="No wait is longer; 60m")


class ScheduleRequest(CamelBody):
    """A change that is to take effect at a set time."""

    model_config = _example(
        scheduledAt=_AT,
        updates={"enabled": True, "rolloutPercentage": 100},
        maxRetries=5,
        expiresAt="2026-12-01T12:00:00.000000Z",
        backoff={"first": "2m", "cap": "60m"},
        priority="high",
    )
    scheduled_at: Given = Field(description="When it takes effect: in the future")
    updates: Updates
    max_retries: Annotated[StrictInt, Field(ge=0, le=RETRIES_MAX)] | None = Field(
        default=None, description="How often it is retried if it fails; FLAG_SCHEDULE_MAX_RETRIES by default"
    )
    expires_at: Given | None = Field(default=None, description="From then on it is too late: it fails as expired")
    backoff: BackoffRequest | None = Field(default=None, description="How long its retries wait, if not as for all")
    priority: Literal["high", "normal", "low"] = Field(
        default="normal", description="Of what is due, high goes before normal, and normal before low"
    )

    def new(self) -> NewSchedule:
        """The schedule to be made."""
        return NewSchedule(
            scheduled_at=self.scheduled_at, updates=self.updates.given(),
            max_retries=self.max_retries, expires_at=self.expires_at,
            backoff=None if self.backoff is None else self.backoff.model_dump(exclude_none=True), priority=self.priority,
        )  # fmt: skip


class BulkRequest(CamelBody):
    """Several schedules of one flag, made together or not at all."""

    schedules: Annotated[list[ScheduleRequest], Field(min_length=1, max_length=BULK_MAX)]


class ActRequest(CamelBody):
    """Which, and why."""

    model_config = _example(ids=[17, 18], reason="the promotion is off")
    ids: Annotated[list[Annotated[StrictInt, Field(ge=1, lt=2**63)]], Field(min_length=1, max_length=IDS_MAX)]
    reason: Reason


class SwitchRequest(ActRequest):
    """Which flags are to be on or off, and why."""

    model_config = _example(ids=[7], enabled=False, reason="checkout is broken")
    enabled: StrictBool = Field(description="On or off; the percentage stays as it is")


# --- out ----------------------------------------------------------------------------------------------------------------


class FlagBody(CamelBody):
    """A flag in one environment."""

    model_config = _example(
        id=7,
        flagKey="new-checkout",
        environment="production",
        enabled=True,
        rolloutPercentage=10,
        description="The new checkout",
        createdAt="2026-11-01T09:00:00.000000Z",
        updatedAt="2026-11-02T09:00:00.000000Z",
    )
    id: int
    flag_key: str
    environment: str
    enabled: bool
    rollout_percentage: int
    description: str | None
    created_at: Shown | None
    updated_at: Shown | None


class FlagList(CamelBody):
    """The flags of an environment by their keys."""

    environment: str
    flags: list[FlagBody]


class OverrideBody(CamelBody):
    """A user for whom the percentage does not speak."""

    user_id: str
    override_type: str
    reason: str | None
    created_by: str | None
    created_at: Shown | None


class OverrideList(CamelBody):
    """The overrides of a flag by user."""

    flag_key: str
    environment: str
    users: list[OverrideBody]


class OverrideRemoved(CamelBody):
    """Whether there was an override to take away."""

    removed: bool


_SCHEDULE: dict[str, Any] = {
    "id": 17,
    "flagKey": "new-checkout",
    "scheduledAt": _AT,
    "status": "failed",
    "updates": {"enabled": True},
    "appliedAt": None,
    "retryCount": 1,
    "maxRetries": 3,
    "nextRetryAt": "2026-12-01T08:02:17.250000Z",
    "lastError": "OperationalError: the database does not answer",
    "createdBy": "ada",
    "cancelledBy": None,
    "cancelledAt": None,
    "createdAt": "2026-11-02T09:00:00.000000Z",
    "expiresAt": None,
    "backoff": None,
    "priority": "normal",
}


class ScheduleBody(CamelBody):
    """A change that takes effect at a set time. `failed` with a `nextRetryAt` will be retried; without one it failed for good."""

    model_config = _example(**_SCHEDULE)
    id: int
    flag_key: str
    scheduled_at: Shown
    status: Literal["pending", "applied", "failed", "cancelled"]
    updates: dict[str, Any]
    applied_at: Shown | None
    retry_count: int
    max_retries: int
    next_retry_at: Shown | None
    last_error: str | None
    created_by: str | None
    cancelled_by: str | None
    cancelled_at: Shown | None
    created_at: Shown | None
    expires_at: Shown | None
    backoff: dict[str, Any] | None = Field(description="How long its retries wait, where it says so itself")
    priority: Literal["high", "normal", "low"]


class ScheduleList(CamelBody):
    """The schedules of a flag by their time."""

    flag_key: str
    environment: str
    schedules: list[ScheduleBody]


class PreviewBody(CamelBody):
    """The state of a flag at a time to come, if each schedule until then succeeds at its next try."""

    flag_key: str
    environment: str
    at: Shown
    enabled: bool
    rollout_percentage: int
    applied: list[int] = Field(description="The schedules that will have been applied by then, in their order")


class AttemptBody(CamelBody):
    """One try that was."""

    number: int
    started_at: Shown | None
    ended_at: Shown
    outcome: str = Field(description="done, failed, lease_expired, cancelled or released")
    error: str | None
    retry_after_seconds: float | None = Field(description="How long after its end the next try was due")

    @classmethod
    def of(cls, attempt: Attempt) -> "AttemptBody":
        """The try as it is shown."""
        return cls(
            number=attempt.number, started_at=attempt.started_at, ended_at=attempt.ended_at, outcome=attempt.outcome,
            error=attempt.error, retry_after_seconds=None if attempt.delay is None else attempt.delay.total_seconds(),
        )  # fmt: skip


class UpcomingBody(CamelBody):
    """One try to come, if all before it fail."""

    number: int
    at: Shown


class RetriesBody(CamelBody):
    """The tries of a schedule: those that were, and the exact times of those to come if each of them fails."""

    schedule_id: int
    status: str
    retry_count: int
    max_retries: int
    attempts: list[AttemptBody]
    upcoming: list[UpcomingBody]

    @classmethod
    def of(cls, retries: Retries) -> "RetriesBody":
        """The tries as they are shown."""
        schedule = retries.schedule
        return cls(
            schedule_id=schedule.id, status=schedule.status, retry_count=schedule.retry_count,
            max_retries=schedule.max_retries,
            attempts=[AttemptBody.of(one) for one in retries.attempts],
            upcoming=[UpcomingBody.model_validate(one) for one in retries.upcoming],
        )  # fmt: skip


class Evaluated(CamelBody):
    """Whether one flag is on."""

    model_config = _example(flagKey="new-checkout", environment="production", enabled=True)
    flag_key: str
    environment: str
    enabled: bool


class ActedBody(CamelBody):
    """What an act came to."""

    model_config = _example(
        changed=1, refused={"18": "schedule 18 is applied for good: only one that waits can be cancelled"}
    )
    changed: int = Field(description="How many changed")
    refused: dict[int, str] = Field(description="The others by their ids, and why they were left alone")

    @classmethod
    def of(cls, acted: Acted) -> "ActedBody":
        """The act as it is told."""
        return cls.model_validate({"changed": len(acted.changed), "refused": acted.refused})


class SeenBody(CamelBody):
    """A schedule with its environment and its tries."""

    environment: str
    schedule: ScheduleBody
    tries: int = Field(description="How often it was tried, in all its life")
    upcoming: list[UpcomingBody] = Field(description="The exact times of the tries to come, if each of them fails")

    @classmethod
    def of(cls, seen: SeenSchedule) -> "SeenBody":
        """The schedule as it is shown."""
        return cls(
            environment=seen.schedule.environment, schedule=ScheduleBody.model_validate(seen.schedule), tries=seen.tries,
            upcoming=[UpcomingBody.model_validate(one) for one in seen.upcoming],
        )  # fmt: skip


class SchedulePageBody(CamelBody):
    """Some schedules, and the cursor of the next page, if there is one."""

    schedules: list[SeenBody]
    cursor: str | None
