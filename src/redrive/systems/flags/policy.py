"""When a failed schedule is retried: after 2, 4 and 8 minutes, and so on up to an hour, each with up to 30 s more."""

from datetime import UTC, datetime

from redrive import Exponential, Policy, jitter, minutes, seconds
from redrive.errors import UsageError

POLICY = Policy(Exponential(minutes(2), minutes(60)), retries=3, jitter=jitter.additive(seconds(30)), name="flags")
"""Each schedule brings its own number of retries; this one is only the default. The name is part of the draws."""


def calculate_next_retry_at(retry_count: int, key: object = "", *, now: datetime | None = None) -> datetime:
    """When a schedule that has been retried `retry_count` times and fails at `now` is retried, in UTC.

        now + min(2 ** (retry_count + 1) minutes, 60 minutes) + jitter, 0 <= jitter < 30 s

    The jitter is drawn from the schedule's id, given as `key`: the same id and count always give the same wait.
    """
    begins = datetime.now(UTC) if now is None else now
    if begins.tzinfo is None:
        raise UsageError(f"now must carry a time zone, such as datetime.now(UTC), not {begins!r}")
    return begins.astimezone(UTC) + POLICY.delay(retry_count + 1, str(key))
