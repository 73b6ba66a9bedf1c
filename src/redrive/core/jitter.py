"""Spreading a herd without randomness.

A jitter turns the wait of a backoff into the delay that is used, by a draw in [0, 1). The draw is a keyed hash of
(task key, failure number, policy name): the same on every machine and in every test, so a preview shows the very times
that will happen, while many tasks that fail together still come back spread out.

Write `jitter.none`, `jitter.full`, `jitter.equal`, `jitter.decorrelated`, `jitter.percent(10)`, `jitter.plus_minus(10)` or
`jitter.additive(seconds(30))`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b

from redrive.core.backoff import Backoff
from redrive.core.durations import Span, read_span
from redrive.errors import PolicyError

Draw = Callable[[int], float]
"""The draw for a failure number."""

DECORRELATED_MEMORY = 32
"""How many failures back the decorrelated chain is followed, so that its cost has a limit."""


@lru_cache(maxsize=256)  # a decision needs the same draw twice: for the delay and for its explanation
def draw(key: str, failures: int, policy_name: str) -> float:
    """A number in [0, 1), uniform over keys and failures, and always the same for the same three."""
    # The mask changes no count that exists; it keeps the text short for any integer.
    counted = f"{policy_name}\0{failures & 0xFFFF_FFFF_FFFF_FFFF}\0{key}"
    digest = blake2b(counted.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    # 53 bits fill a float's mantissa exactly; more would round up to 1.0 once in a while.
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


class Jitter:
    """From a backoff's wait to the delay that is used."""

    __slots__ = ()

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        """The delay after this many failures."""
        raise NotImplementedError

    def ceiling(self, backoff: Backoff, failures: int) -> timedelta:
        """No delay after this many failures is longer."""
        return backoff.wait(failures)

    def describe(self) -> str:
        """A few words for explanations."""
        return type(self).__name__.strip("_").lower()


@dataclass(frozen=True, slots=True)
class _None(Jitter):
    """The wait as it is."""

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:  # noqa: ARG002
        return backoff.wait(failures)


@dataclass(frozen=True, slots=True)
class _Full(Jitter):
    """`wait * draw`: anywhere between nothing and the wait."""

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        return backoff.wait(failures) * drawn(failures)


@dataclass(frozen=True, slots=True)
class _Equal(Jitter):
    """`wait * (1 + draw) / 2`: the upper half of the wait."""

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        return backoff.wait(failures) * ((1 + drawn(failures)) / 2)


@dataclass(frozen=True, slots=True)
class _Decorrelated(Jitter):
    """`min(cap, first + draw * (3 * previous - first))`: each delay grows from the one before."""

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        failures = max(failures, 1)
        first = delay = backoff.wait(1)
        for number in range(max(1, failures - DECORRELATED_MEMORY), failures + 1):
            previous = min(delay, backoff.cap)
            delay = min(backoff.cap, first + (3 * previous - first) * drawn(number))
        return delay

    def ceiling(self, backoff: Backoff, failures: int) -> timedelta:  # noqa: ARG002 - bounded by the cap alone
        return backoff.cap


@dataclass(frozen=True, slots=True)
class _Percent(Jitter):
    """`wait * (1 - percent / 100 * draw)`: up to that much earlier, never past the cap."""

    percent: float

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        return backoff.wait(failures) * (1 - self.percent / 100 * drawn(failures))

    def describe(self) -> str:
        return f"percent {self.percent:g}"


@dataclass(frozen=True, slots=True)
class _PlusMinus(Jitter):
    """`wait * (1 + percent / 100 * (2 * draw - 1))`: up to that much earlier or later, also past the cap."""

    percent: float

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        return backoff.wait(failures) * (1 + self.percent / 100 * (2 * drawn(failures) - 1))

    def ceiling(self, backoff: Backoff, failures: int) -> timedelta:
        return backoff.wait(failures) * (1 + self.percent / 100)

    def describe(self) -> str:
        return f"plus_minus {self.percent:g}"


@dataclass(frozen=True, slots=True)
class _Additive(Jitter):
    """`wait + max * draw`, after the cap."""

    max: timedelta

    def delay(self, backoff: Backoff, failures: int, drawn: Draw) -> timedelta:
        return backoff.wait(failures) + self.max * drawn(failures)

    def ceiling(self, backoff: Backoff, failures: int) -> timedelta:
        return backoff.wait(failures) + self.max

    def describe(self) -> str:
        return f"additive {self.max.total_seconds():g}s"


none: Jitter = _None()
"""The wait as it is."""
full: Jitter = _Full()
"""Anywhere between nothing and the wait."""
equal: Jitter = _Equal()
"""The upper half of the wait."""
decorrelated: Jitter = _Decorrelated()
"""Each delay grows from the one before, up to the cap."""


def percent(amount: float) -> Jitter:
    """Up to `amount` percent earlier than the wait, never past the cap."""
    return _Percent(_share("percent", amount))


def plus_minus(amount: float) -> Jitter:
    """Up to `amount` percent earlier or later than the wait, also past the cap."""
    return _PlusMinus(_share("plus_minus", amount))


def _share(name: str, amount: float) -> float:
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= 100:
        raise PolicyError(f"jitter {name} must lie between 0 and 100, not {amount!r}")
    return amount


def additive(most: Span) -> Jitter:
    """Up to `most` later than the wait, also past the cap."""
    return _Additive(read_span("jitter", most))
