"""What a run came to. Outcomes are values: handlers may return `Snoozed` or `Cancelled`, the engine makes the rest."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from redrive.core.durations import SpanField
from redrive.core.failure import safe_text


@dataclass(frozen=True, slots=True)
class Done:
    """The handler came back without an error, with this result. A `Beside` gets it; without one the ledger keeps it as JSON."""

    result: Any = None


class Failed(NamedTuple):
    """The handler raised."""

    error: BaseException


@dataclass(frozen=True)
class Snoozed:
    """Not now: try again after `delay`; no failure is charged. A handler returns this."""

    delay: SpanField = SpanField()
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", safe_text(self.reason))


@dataclass(frozen=True, slots=True)
class Cancelled:
    """No longer wanted: end without a failure. A handler returns this; a `Beside` gets its result."""

    reason: str = ""
    result: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", safe_text(self.reason))


@dataclass(frozen=True, slots=True)
class Released:
    """The worker stopped before the end: due at once, no failure is charged."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The claim was never settled: its worker is lost. The try counts if nothing ran beside it that could be to blame."""


Outcome = Done | Failed | Snoozed | Cancelled | Released | LeaseExpired
