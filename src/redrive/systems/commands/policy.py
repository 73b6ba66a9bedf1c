"""How often a command is tried, and how long the waits are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from redrive import Policy, Schedule, jitter, seconds
from redrive.errors import UsageError

BACKOFF = (10, 60, 300)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How many tries in all, and the wait before each, in seconds.

    `backoff` is indexed by the next attempt: the wait before attempt n is `backoff[n - 1]`, and the last entry repeats. With
    the defaults the second attempt waits 60 s and the third 300 s. Nothing waits before the first attempt, so the first entry
    counts only if it is the only one.
    """

    max_attempts: int = 3
    backoff: Sequence[float] = BACKOFF
    policy: Policy = field(init=False, repr=False, compare=False)
    """The same for the engine, which decides."""

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, list | tuple) or not self.backoff:
            raise UsageError(f"backoff must be a list of seconds such as [10, 60, 300], not {self.backoff!r}")
        waits = tuple(self.backoff)
        object.__setattr__(self, "backoff", waits)
        spans = [seconds(wait) for wait in waits[1:] or waits]
        policy = Policy(Schedule(spans), attempts=self.max_attempts, jitter=jitter.none, name="commands")
        object.__setattr__(self, "policy", policy)
