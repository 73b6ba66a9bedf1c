"""When a schedule that failed is retried: after 2, 4, 8 … minutes up to an hour, each with up to 30 s more, or as it says itself."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from redrive import Exponential, Policy, Task, days, jitter, minutes, seconds
from redrive.errors import PolicyError, UsageError
from redrive.policies import parse_duration
from redrive.systems.flags.errors import InvalidChangeError

FIRST = minutes(2)
CAP = minutes(60)
SHORTEST, LONGEST = seconds(1), days(7)
"""Between these lies every wait that a schedule may ask for."""


def read_backoff(given: object) -> Exponential | None:
    """The backoff that a schedule brings, such as `{"first": "2m", "cap": "60m"}`; None where it brings none.

    What is not said is as it is for all. What cannot be used is an `InvalidChangeError`.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given or set(given) - {"first", "cap"}:
        raise InvalidChangeError(f"backoff must say first, cap or both, such as {{'first': '2m'}}, not {given!r:.80}")
    first, cap = (_wait(name, given[name]) if name in given else None for name in ("first", "cap"))
    first = first if first is not None else min(FIRST, cap or FIRST)
    cap = cap if cap is not None else max(CAP, first)
    try:
        return Exponential(first, cap)
    except PolicyError as error:
        raise InvalidChangeError(f"backoff: {error}") from error


def _wait(name: str, given: object) -> timedelta:
    try:
        read = parse_duration(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else None
    except UsageError:
        read = None
    if read is None or not SHORTEST <= read <= LONGEST:
        raise InvalidChangeError(
            f"backoff.{name} must be a wait from 1s to {LONGEST.days}d, such as 90 (seconds), '2m' or '1.5h', not {given!r:.80}"
        )
    return read


def own_backoff(task: Task) -> Exponential | None:
    """The backoff that a schedule brings; none where others wrote what cannot be read."""
    try:
        return read_backoff(task.payload.get("backoff"))
    except InvalidChangeError:
        return None


POLICY = Policy(
    Exponential(FIRST, CAP), retries=3, jitter=jitter.additive(seconds(30)), own_backoff=own_backoff, name="flags"
)
"""Each schedule brings its own number of retries; this one is only the default. The name is part of the draws."""


def calculate_next_retry_at(
    retry_count: int, key: object = "", *, now: datetime | None = None, first: timedelta = FIRST, cap: timedelta = CAP
) -> datetime:
    """When a schedule that has been retried `retry_count` times and fails at `now` is retried, in UTC.

        now + min(first * 2 ** retry_count, cap) + jitter, 0 <= jitter < 30 s

    Unless the schedule brings a backoff of its own, `first` is 2 minutes and `cap` an hour. The jitter is drawn from the
    schedule's id, given as `key`: the same id and count always give the same wait.
    """
    begins = datetime.now(UTC) if now is None else now
    if begins.tzinfo is None:
        raise UsageError(f"now must carry a time zone, such as datetime.now(UTC), not {begins!r}")
    drawn = Policy(Exponential(first, cap), jitter=POLICY.jitter, name=POLICY.name)
    return begins.astimezone(UTC) + drawn.delay(retry_count + 1, str(key))
