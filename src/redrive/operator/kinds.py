"""What is known of each kind: how many tries, how many of them failed and of what, how long runs took, and in which versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

LATELY = timedelta(minutes=5)
"""What a table of kinds is about."""
TREND = timedelta(hours=1)
EPISODE_ENDS_AFTER = timedelta(minutes=30)
"""A cause that comes back after it has been quiet for so long begins anew: longer than most waits between two tries."""
CAUSES_SHOWN_MAX = 30
KINDS_SHOWN_MAX = 500
SEEN_SPAN = timedelta(days=7)
"""A cause that nobody has seen for longer is known by its dead tasks alone."""
FOLD_AFTER = timedelta(minutes=5)
"""Then the workers of a minute become one row."""
FOLD_MINUTES_AFTER = timedelta(days=2)
"""Then the minutes of an hour become one."""
FOLD_REACH = timedelta(days=7)
"""Older minutes that nobody has folded stay as they are until they are forgotten."""
FORGET_AFTER = timedelta(days=30)
FOLDED = ""
FOLD_MAX = 5_000
"""Rows that are folded at once."""
NOT_COUNTED = "Kinds are not counted on DynamoDB, where all tasks are deliveries of one kind."


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingKind:
    """How many tasks of a kind wait, counted up to a limit."""

    waiting: int
    behind_gates: int
    """Those that have a gate, whether it lets them through or not."""
    oldest_due: timedelta | None
    """How long the oldest due one waits that has no gate."""
    more: bool = False
    """Whether there are more than that."""


@dataclass(frozen=True, slots=True)
class MinuteOfKind:
    """What a minute counted."""

    start: datetime
    tries: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSeen:
    """One kind: its sums of the last five minutes, and the minutes of the last hour."""

    ledger: str
    kind: str
    begun_a_minute: int
    """New tasks that were begun in the last whole minute."""
    tries: int
    failures: int
    done: int
    dead: int
    p50: timedelta | None
    p95: timedelta | None
    points: Sequence[MinuteOfKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSums:
    """What one kind did over some time."""

    tries: int
    failures: int
    p50: timedelta | None
    p95: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseSeen:
    """One cause that tries fail of, or failed of lately."""

    ledger: str
    id: str
    kind: str
    sample: str
    at: str | None
    first_seen: datetime
    since: datetime
    """When it began this time."""
    last_seen: datetime
    first_version: str | None
    last_version: str | None
    tries_max: int | None
    lasts: timedelta | None
    failures: int
    """How many tries failed of it since."""
    tries: int
    """How many tries of its kind ended since, of whatever cause."""
    died: int
    recovered_at: datetime | None
    """The first success of its kind after its last failure."""
    tries_since: int
    failures_since: int
    """What the kind has tried since then."""
    points: Sequence[MinuteOfKind]
    """The minutes of the last hour in which it failed."""
    died_at: Sequence[tuple[datetime, int]]
    """How many died of it, in which minutes of the last hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSeen:
    """What one version of the user's code has tried of a kind in the last seven days, and how much of it failed."""

    version: str | None
    """None where its workers did not say."""
    tries: int
    failures: int
    """Of the cause that was asked for, else of any."""
    dead: int
    first_tried: datetime
    """The minute of its first try; the hour where that is long ago."""
    last_failure: datetime | None
    last_success: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindsSeen:
    """All kinds, and the causes that were seen lately, the latest first."""

    kinds: Sequence[KindSeen] = ()
    causes: Sequence[CauseSeen] = ()
    settled_at: datetime | None = None
    """When the last try of the last hour ended that is counted."""
