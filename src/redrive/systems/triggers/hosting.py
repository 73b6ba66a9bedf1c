"""What the place allows in which the API runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """A process that serves many requests at once, for long."""

    batch_bytes_max: int = 8 << 20
    """How large a batch of events may be."""
    limit_shares: int = 50
    """The requests of a key's minute are handed out to processes in blocks, each this part of the limit."""
    first_share_free: bool = True
    """Whether a process lets a first block pass before it asks for one: most keys ask seldom, and cost no write then."""


FUNCTION = Hosting(batch_bytes_max=4 << 20, limit_shares=100, first_share_free=False)
"""A function of Lambda: a request may have 6 MB with all that is around its body, and of many copies none may give away a share."""
