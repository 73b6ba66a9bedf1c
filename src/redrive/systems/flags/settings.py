"""The settings of flags."""

from pydantic import Field

from redrive.settings import Section

RETRIES_MAX = 10
"""The CHECK in the table allows no more."""


class FlagSettings(Section):
    """How schedules are retried."""

    flag_schedule_max_retries: int = Field(
        default=3,
        ge=0,
        le=RETRIES_MAX,
        description="How often a schedule that fails is tried again, 0 to 10, unless it says otherwise itself",
    )
