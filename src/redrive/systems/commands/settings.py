"""The settings of the command bus."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from redrive.settings import Section, span


def _waits(given: Any) -> Any:
    """Seconds separated by commas."""
    waits = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else given
    try:
        usable = bool(waits) and all(0 <= float(wait) <= WAIT_SECONDS_MAX for wait in waits)
    except (TypeError, ValueError):
        usable = False
    if not usable:
        raise ValueError("it must be seconds separated by commas, such as 10,60,300, each at most a year")
    return waits


WAIT_SECONDS_MAX = 86_400 * 365
Waits = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_waits)]
Timeout = Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1)))]


class CommandSettings(Section):
    """How commands are handled unless the command or its handler says otherwise."""

    commands_max_attempts: int = Field(default=3, ge=1, le=1000, description="How many tries a command has in all")
    commands_backoff: Waits = Field(
        default=("10", "60", "300"), description="The waits in seconds, by the next attempt: the second waits 60 s"
    )
    commands_visibility_timeout: Timeout = Field(
        default=timedelta(seconds=30),
        description="How long a command stays hidden without a sign of life from its worker",
    )
    commands_unhandled_after: Timeout = Field(
        default=timedelta(minutes=10),
        description="After how long without any handler a command goes to the troubleshooting queue",
    )

    @property
    def backoff(self) -> list[float]:
        """The waits as numbers."""
        return [float(wait) for wait in self.commands_backoff]
