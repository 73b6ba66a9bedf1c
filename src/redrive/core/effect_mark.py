"""The durable mark of an effect: that a try has entered it, what that try came to, and what was found out since."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from redrive.core.durations import ZERO
from redrive.core.failure import ErrorClass
from redrive.core.states import State


class MarkState(StrEnum):
    """What a mark says."""

    INSIDE = "inside"
    """A try is inside its effect, or was lost there."""
    UNKNOWN = "unknown"
    """Nobody knows whether it happened: the probe is asked before any new try."""
    PERSON = "person"
    """The probe could not tell: a person must answer."""
    ANSWERED = "answered"


OPEN = (MarkState.INSIDE, MarkState.UNKNOWN, MarkState.PERSON)
"""States of a mark in which no new try may be made."""


class EffectAnswer(StrEnum):
    """Whether it happened."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not_happened"
    CLOSED = "closed"
    """Somebody has closed the question without an answer."""


class Then(NamedTuple):
    """What a try came to by itself: this is written if its effect did not happen."""

    state: State = State.WAITING
    outcome: str = "released"
    delay: timedelta | None = ZERO
    error: str | None = None
    error_class: ErrorClass = ErrorClass.TRANSIENT
    rule: str = "effect"
    verdict: str = "retry"

    def as_json(self) -> dict[str, Any]:
        """For the mark: the span in seconds."""
        shown = {name: value for name, value in self._asdict().items() if value is not None}
        return shown | ({} if self.delay is None else {"delay": self.delay.total_seconds()})


def read_then(stored: dict[str, Any] | None) -> Then:
    """What `as_json` has made; the default where nothing is stored: the worker was lost before it could say."""
    if not stored:
        return Then()
    delay = stored.get("delay")
    return Then(
        state=State(stored["state"]),
        outcome=stored["outcome"],
        delay=None if delay is None else timedelta(seconds=delay),
        error=stored.get("error"),
        error_class=ErrorClass(stored["error_class"]),
        rule=stored["rule"],
        verdict=stored["verdict"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectMark:
    """What is durable of the effect of a task."""

    state: MarkState
    claim_id: UUID
    """The fence of the try that entered last."""
    first_at: datetime
    """When a try first entered with this key: from then on the other side remembers it."""
    entered_at: datetime
    probes: int = 0
    """How often the probe was asked without an answer since then."""
    error: str | None = None
    """How the try ended."""
    why: str | None = None
    """What the probe said, or what went wrong with it."""
    then: Then | None = None
    answer: EffectAnswer | None = None
    answered_by: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the question is open, so that no new try may be made."""
        return self.state in OPEN
