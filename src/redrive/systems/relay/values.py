"""What the relay holds: a message that asks for its retry, and what became of a batch of them."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message that asks for its retry."""

    message_id: str
    payload: bytes
    queue: str
    error_reason: str
    retry_count: int
    max_retries: int
    not_before: datetime | None
    headers: dict[str, Any]
    content_type: str | None


@dataclass(slots=True)
class Stored:
    """What became of a batch: each message is in exactly one of the lists."""

    new: list[tuple[Any, Arrival, timedelta]] = field(default_factory=list)
    """Stored for the first time, with the id of its row and its wait."""
    returned: list[tuple[Any, Arrival, timedelta]] = field(default_factory=list)
    """Its row had ended and waits again."""
    known: list[Arrival] = field(default_factory=list)
    """Its row waits already: nothing has changed."""
    held: list[Arrival] = field(default_factory=list)
    """Its row is being published right now. It must not be acknowledged: what is published may be what has just failed, and
    the settlement still to come would end the row. It is stored when the claim has ended."""

    def add(self, other: "Stored") -> None:
        """Take in what became of another batch."""
        self.new += other.new
        self.returned += other.returned
        self.known += other.known
        self.held += other.held
