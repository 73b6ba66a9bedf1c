"""The settings of flags."""

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field

from redrive.settings import Section, span

RETRIES_MAX = 10
"""The CHECK in the table allows no more."""


class FlagSettings(Section):
    """How schedules are retried, and what is answered while the store is away."""

    flag_schedule_max_retries: int = Field(
        default=3,
        ge=0,
        le=RETRIES_MAX,
        description="How often a schedule that fails is tried again, 0 to 10, unless it says otherwise itself",
    )
    flag_outage_max: Annotated[timedelta, BeforeValidator(span(timedelta(0)))] | None = Field(
        default=None,
        description="For how long flags are answered from the last known state while the store is away; until it is back "
        "if not set",
    )
