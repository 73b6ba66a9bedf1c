"""What every body of a request has in common."""

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A body: a field that is not known is a mistake that somebody should hear of."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
