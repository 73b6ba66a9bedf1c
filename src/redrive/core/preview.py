"""The timeline of a task that always fails: the very times that will happen, because draws are not random."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.core.durations import ZERO
from redrive.core.policy import Policy
from redrive.errors import UsageError

TRIES_SHOWN_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of the timeline: when it starts, and the delay that led to it."""

    number: int
    at: datetime
    delay: timedelta


def preview(
    policy: Policy,
    key: str,
    start: datetime,
    *,
    failures: int = 0,
    failures_max: int | None = None,
    deadline_at: datetime | None = None,
    stretch: int = 1,
) -> list[Try]:
    """All tries from `start` on if each fails at once, the first at `start` itself; at most `TRIES_SHOWN_MAX`.

    `failures` is how many there were before `start`; `failures_max` and `deadline_at` are the task's own, if any. `stretch` is how many
    times as long its waits are behind a gate that has tripped.
    """
    for name, instant in (("start", start), ("deadline_at", deadline_at)):
        if instant is not None and instant.tzinfo is None:
            raise UsageError(f"{name} must carry a time zone, such as datetime.now(UTC), not {instant!r}")
    last = policy.failures_max if failures_max is None else failures_max
    ends = [end for end in (deadline_at, start + policy.deadline if policy.deadline is not None else None) if end]
    tries = [Try(number=failures + 1, at=start, delay=ZERO)]
    at = start
    for number in range(failures + 1, min(last, failures + TRIES_SHOWN_MAX)):
        delay = policy.delay(number, key) * stretch
        at += delay
        if any(at >= end for end in ends):
            break
        tries.append(Try(number=number + 1, at=at, delay=delay))
    return tries
