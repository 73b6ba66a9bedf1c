"""What flags are made of: flags, overrides and schedules as they stand, and what comes of looking at them or acting on them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row

from redrive.lane import Attempt
from redrive.policies import Try, preview
from redrive.systems.flags.errors import InvalidChangeError
from redrive.systems.flags.policy import POLICY, read_backoff

PRODUCTION = "production"
"""The environment that is meant where none is named."""
LISTED_MAX = 1000
"""How many of anything are listed at once."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""When something was due whose time nobody can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag in one environment."""

    id: int
    flag_key: str
    environment: str
    enabled: bool
    rollout_percentage: int
    description: str | None
    created_at: datetime | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A user for whom a flag is on or off whatever its percentage."""

    user_id: str
    override_type: str
    reason: str | None
    created_by: str | None
    created_at: datetime | None


PRIORITIES = ("high", "normal", "low")
"""Each stands in the row as its place here, and normal as no number."""
NORMAL = "normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A change that is to take effect at a set time."""

    scheduled_at: datetime
    updates: dict[str, Any]
    max_retries: int | None = None
    expires_at: datetime | None = None
    backoff: Mapping[str, Any] | None = None
    """How long its retries wait, such as `{"first": "2m", "cap": "60m"}`; as it is for all where it is None."""
    priority: str = NORMAL
    """Of what is due, high goes before normal, and normal before low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSchedule:
    """A change that takes effect at a set time, as it stands."""

    id: int
    flag_id: int | None
    flag_key: str
    environment: str
    scheduled_at: datetime
    status: str
    updates: dict[str, Any]
    applied_at: datetime | None
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    last_error: str | None
    created_by: str | None
    cancelled_by: str | None
    cancelled_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    expires_at: datetime | None
    lease_until: datetime | None
    backoff: dict[str, Any] | None
    priority: str

    @classmethod
    def of(cls, row: Row[Any]) -> "FlagSchedule":
        """A row of the table. What others wrote and nobody can read: such a time is due, such updates set nothing."""
        known = {name: getattr(row, name) for name in cls.__slots__}
        updates = row.updates if isinstance(row.updates, dict) else {}
        try:
            backoff = None if read_backoff(row.backoff) is None else row.backoff
        except InvalidChangeError:
            backoff = None
        return cls(
            **known
            | {"scheduled_at": row.scheduled_at or LONG_AGO, "updates": updates, "backoff": backoff}
            | _priority(row)
        )

    @property
    def is_open(self) -> bool:
        """Whether it may still be applied: it waits for its time or for a retry, or is being applied."""
        return self.status == "pending" or self.next_retry_at is not None or self.lease_until is not None

    @property
    def due_at(self) -> datetime | None:
        """When it is tried next, if it waits."""
        return (self.next_retry_at or self.scheduled_at) if self.is_open else None

    def expires_by(self, now: datetime) -> bool:
        """Whether it is too late for it then."""
        return self.expires_at is not None and now >= self.expires_at

    def upcoming(self) -> list[Try]:
        """The exact times of the tries to come, if each of them fails."""
        if self.due_at is None or self.expires_by(self.due_at):
            return []
        own = read_backoff(self.backoff)
        return preview(
            POLICY if own is None else replace(POLICY, backoff=own), str(self.id), self.due_at, failures=self.retry_count, failures_max=self.max_retries + 1,
            deadline_at=self.expires_at,
        )  # fmt: skip


def _priority(row: Row[Any]) -> dict[str, str]:
    return {"priority": PRIORITIES[row.priority] if row.priority in range(len(PRIORITIES)) else NORMAL}


class ScheduleStatus(StrEnum):
    """What people tell apart. The table has one word for two: `failed` with a next try is retrying, without it is over."""

    PENDING = "pending"
    RETRYING = "retrying"
    FAILED = "failed"
    APPLIED = "applied"
    CANCELLED = "cancelled"

    @property
    def word(self) -> str:
        """The word of the table."""
        return "failed" if self is ScheduleStatus.RETRYING else self.value

    @property
    def is_ahead(self) -> bool:
        """Whether such schedules are still to come."""
        return self in (ScheduleStatus.PENDING, ScheduleStatus.RETRYING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSchedule:
    """A schedule with its tries: how many there were, and when those to come are if each of them fails."""

    schedule: FlagSchedule
    tries: int
    upcoming: Sequence[Try]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The tries of a schedule: those that were, and the exact times of those to come if each of them fails."""

    schedule: FlagSchedule
    attempts: list[Attempt]
    upcoming: list[Try]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """The state of a flag at some time, if every schedule until then succeeds at its next try."""

    at: datetime
    enabled: bool
    rollout_percentage: int
    applied: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """What one run of the processor did."""

    processed: int
    """How many schedules there were: the sum of the following."""
    applied: int
    """How many changed their flag."""
    retried: int
    """How many failed and will be retried."""
    failed: int
    """How many failed for good."""
    superseded: int
    """How many gave way to a newer change of the same flag."""
    duration_ms: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)
