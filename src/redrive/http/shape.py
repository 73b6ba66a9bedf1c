"""What bodies and parameters of requests have in common."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

YEARS = (1900, 9000)
"""Far from the ends of time, where an offset from UTC, or a wait, leads to an instant that cannot be."""


def _instant(given: datetime) -> datetime:
    if not YEARS[0] <= given.year < YEARS[1]:
        raise ValueError(f"it must lie between the years {YEARS[0]} and {YEARS[1]}")
    return given.replace(tzinfo=UTC) if given.tzinfo is None else given


InstantAt = Annotated[datetime, AfterValidator(_instant)]
"""An instant that is given; without an offset it is in UTC."""


def _encodable(given: str) -> str:
    # JSON can spell half of a surrogate pair, which no database stores and no answer can repeat.
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character: send well-formed Unicode") from None
    return given


WellFormed = Annotated[str, AfterValidator(_encodable)]
"""Text that a database can be asked for."""


class Body(BaseModel):
    """A body: a field that is not known is a mistake that somebody should hear of."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
