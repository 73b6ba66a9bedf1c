"""What the flags refuse.

UsageError
└── FlagsError
    ├── FlagNotFoundError        there is no such flag in this environment
    ├── ScheduleNotFoundError    there is no such schedule of this flag
    ├── InvalidChangeError       a flag, an override or a schedule that cannot be as it was asked for
    └── InvalidStateError        the schedule is in a state in which this cannot be done
"""

from redrive.errors import UsageError


class FlagsError(UsageError):
    """What was asked of the flags cannot be done."""


class FlagNotFoundError(FlagsError):
    """There is no such flag in this environment."""

    def __init__(self, key: str, environment: str) -> None:
        super().__init__(f"there is no flag {key!r} in environment {environment!r}: create it first")


class ScheduleNotFoundError(FlagsError):
    """There is no such schedule, or it belongs to another flag."""

    def __init__(self, key: str, environment: str, id: int) -> None:
        super().__init__(f"flag {key!r} in environment {environment!r} has no schedule {id}")


class InvalidChangeError(FlagsError):
    """A flag, an override or a schedule cannot be as it was asked for."""


class InvalidStateError(FlagsError):
    """The schedule is in a state in which this cannot be done."""
