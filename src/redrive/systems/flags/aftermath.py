"""What a commit wrote and only its transaction has seen, kept for those who are told of the try afterwards.

A settlement says how long a schedule waits; the database says until when. A schedule that is applied ends older ones; which ones is
known where it happens. Both are told once the commit stands.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from redrive.events import Settlement

KEPT_MAX = 10_000
"""How much is kept that nobody has asked for: of tries whose settlement was lost."""


class Superseded(NamedTuple):
    """A schedule that gave way to a newer change of its flag, and to which."""

    schedule_id: int
    flag_key: str
    reason: str


class Aftermath:
    """Written in transactions, read by observers of the same process."""

    def __init__(self) -> None:
        self._next_retry_at: dict[UUID, datetime | None] = {}
        self._superseded: dict[object, Sequence[Superseded]] = {}

    def planned(self, settlement: Settlement, next_retry_at: datetime | None) -> None:
        """When a schedule is retried, as the row has it."""
        if len(self._next_retry_at) >= KEPT_MAX:
            self._next_retry_at.clear()
        self._next_retry_at[settlement.claim.claim_id] = next_retry_at

    def gave_way(self, schedule_id: int, superseded: Sequence[Superseded]) -> None:
        """Which schedules this one ended when it was applied."""
        if len(self._superseded) >= KEPT_MAX:
            self._superseded.clear()
        self._superseded[schedule_id] = superseded

    def next_retry_at(self, settlement: Settlement) -> datetime | None:
        """When it is retried; None if it is not."""
        return self._next_retry_at.get(settlement.claim.claim_id)

    def superseded_by(self, settlement: Settlement) -> Sequence[Superseded]:
        """The schedules that it ended."""
        return self._superseded.get(settlement.claim.task.id, ())

    def told(self, settlement: Settlement) -> None:
        """All have heard of this try."""
        self._next_retry_at.pop(settlement.claim.claim_id, None)
        self._superseded.pop(settlement.claim.task.id, None)
