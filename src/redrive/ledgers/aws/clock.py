"""What time it is: by the clock of this machine, unless AWS says that it is wrong.

DynamoDB has no clock in its expressions, so leases and due times are compared with instants that each process brings along. One whose
clock is minutes off would take others' leases for over. Every answer of AWS says when it was given, in whole seconds: where this machine
is off by more than `TRUSTED`, it is corrected by the median of what the last answers say.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from redrive.core.durations import ZERO

TRUSTED = timedelta(seconds=2)
"""How far a clock may be off before it is corrected: answers are no better than a second."""
ANSWERS = 15
"""How many answers the median is of."""
NOTE_EVERY_SECONDS = 1.0
ROUND_TRIP_SECONDS_MAX = 1.0
"""An answer that took longer does not tell when it was given."""
STEP_SECONDS = 1.0
"""A change of the machine's clock by more than this was somebody's doing, and what was noted before means nothing."""
HALF_SECOND = 0.5


def machine_now() -> datetime:
    """The instant, by the clock of this machine."""
    return datetime.now(UTC)


class AnswerClock:
    """The clock of this machine, corrected by the `Date` of answers."""

    def __init__(self, machine: Callable[[], datetime] = machine_now) -> None:
        self._machine = machine
        self._ahead: deque[float] = deque(maxlen=ANSWERS)
        self._correction = ZERO
        self._next_note_at = -math.inf
        self._step = machine().timestamp() - time.monotonic()

    def now(self) -> datetime:
        """The instant."""
        machine = self._machine()
        step = machine.timestamp() - time.monotonic()
        if abs(step - self._step) > STEP_SECONDS:
            # The clock was set, or this process was frozen. Either way the machine is believed until the next answer.
            self._ahead.clear()
            self._correction, self._next_note_at, self._step = ZERO, -math.inf, step
        return machine + self._correction

    def note(self, answer: Mapping[str, Any], asked_at: float) -> None:
        """Take the time from an answer to a call that was made at this monotonic time."""
        heard_at = time.monotonic()
        if heard_at < self._next_note_at or heard_at - asked_at > ROUND_TRIP_SECONDS_MAX:
            return
        try:
            said = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        except (KeyError, TypeError, ValueError):
            return
        self.now()  # whether the clock was set meanwhile
        self._next_note_at = heard_at + NOTE_EVERY_SECONDS
        machine = self._machine()
        self._step = machine.timestamp() - heard_at
        given_at = machine.timestamp() - (heard_at - asked_at) / 2
        self._ahead.append(said.timestamp() + HALF_SECOND - given_at)
        ahead = timedelta(seconds=statistics.median(self._ahead))
        self._correction = ahead if abs(ahead) > TRUSTED else ZERO
