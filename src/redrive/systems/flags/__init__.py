"""Feature flags, and changes to them that take effect at a set time and come through. See `docs/systems/flags.md`."""

from redrive.systems.flags.errors import (
    FlagNotFoundError,
    FlagsError,
    InvalidChangeError,
    InvalidStateError,
    ScheduleNotFoundError,
)
from redrive.systems.flags.policy import POLICY, calculate_next_retry_at
from redrive.systems.flags.settings import FlagSettings
from redrive.systems.flags.system import Flags
from redrive.systems.flags.tables import FLAG_SCHEDULES
from redrive.systems.flags.values import Flag, FlagSchedule, Foreseen, NewSchedule, Override, Processed, Retries

__all__ = [
    "FLAG_SCHEDULES",
    "POLICY",
    "Flag",
    "FlagNotFoundError",
    "FlagSchedule",
    "FlagSettings",
    "Flags",
    "FlagsError",
    "Foreseen",
    "InvalidChangeError",
    "InvalidStateError",
    "NewSchedule",
    "Override",
    "Processed",
    "Retries",
    "ScheduleNotFoundError",
    "calculate_next_retry_at",
]
