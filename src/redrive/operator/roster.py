"""Who works: each process that runs handlers gives a sign of life now and then, so that people see who is there and who is lost.

Nothing hangs on it: claims have leases of their own, and a worker that is not on the roster works as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

SIGN_EVERY = timedelta(seconds=2)
SILENT_AFTER = timedelta(seconds=5.5)
"""Who has given no sign for so long is named on the first screen: two signs are missing, and are more than late. Nobody is called for it yet.

With the time between two looks of an open page this stays below ten seconds."""
LOST_AFTER = timedelta(seconds=35)
"""Who has given no sign for so long, and has not said goodbye, is lost: a process that is merely busy is heard from before."""
KEPT = timedelta(days=7)
"""So long those who are gone stay on the roster: a version is told from the next by when it was first seen."""
SHOWN_MAX = 200


def drift_words(milliseconds: float | None) -> str:
    """`+2 ms`, `−1 ms`: how far a clock is ahead of the store's; `–` where the store has none of its own."""
    if milliseconds is None:
        return "–"
    whole = round(milliseconds)
    sign = "+" if whole > 0 else "−" if whole < 0 else ""
    return f"{sign}{abs(whole):,} ms"


Holds = Mapping[str, Mapping[str, int]]
"""How many tasks are held, by ledger and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSign:
    """What a process says of itself."""

    name: str
    host: str
    pid: int
    started_at: datetime
    version: str | None = None
    slots: int = 0
    holds: Holds = field(default_factory=dict)
    lease: timedelta | None = None
    """For how long what it holds stays its own without being extended."""
    tries_a_minute: int | None = None
    """How many tries have ended in it within the last minute."""
    held_since: datetime | None = None
    """When it claimed the oldest task that it holds, by the clock of the store."""
    stops: bool = False
    """The last sign: it was asked to stop, and has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker as the roster has it."""

    name: str
    host: str
    pid: int
    version: str | None
    slots: int
    holds: Holds
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None
    lease: timedelta | None = None
    tries_a_minute: int | None = None
    held_since: datetime | None = None
    drift_ms: float | None = None
    """How far its clock is ahead of the store's; None where the store has none of its own."""

    @property
    def held_for(self) -> timedelta | None:
        """How long it had held its oldest task at its last sign of life."""
        return None if self.held_since is None else max(self.seen_at - self.held_since, timedelta(0))

    @property
    def held(self) -> int:
        """How many tasks it held at its last sign of life."""
        return sum(sum(kinds.values()) for kinds in self.holds.values())

    def is_lost(self, now: datetime) -> bool:
        """Whether it ought to be there and is not."""
        return self.stopped_at is None and now - self.seen_at > LOST_AFTER

    def is_silent(self, now: datetime) -> bool:
        """Whether it should have been heard from by now; it may still be there."""
        return self.stopped_at is None and SILENT_AFTER < now - self.seen_at <= LOST_AFTER

    def is_there(self, now: datetime) -> bool:
        """Whether it works."""
        return self.stopped_at is None and not self.is_lost(now)

    @property
    def leases_end(self) -> datetime | None:
        """By when what it held is free again, if it was lost right before its next sign; None where nobody knows."""
        return None if self.lease is None else self.seen_at + SIGN_EVERY + self.lease
