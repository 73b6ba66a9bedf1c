"""How long to wait after the n-th failure, before jitter.

Each backoff is a frozen value with one method, `wait(failures)`, that is pure and total: any integer gives a wait
between zero and `cap`, without overflow. A number below one counts as one.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

from redrive.core.durations import DURATION_MAX, ZERO, Span, SpanField, format_duration, read_span
from redrive.errors import PolicyError


@runtime_checkable
class Backoff(Protocol):
    """What a policy needs of a backoff."""

    @property
    def cap(self) -> timedelta:
        """No wait is ever longer."""
        ...

    def wait(self, failures: int) -> timedelta:
        """The wait after this many failures."""
        ...

    def describe(self) -> str:
        """A few words for explanations, such as `exponential 2s ×2, cap 5m`."""
        ...


def _cap_too_short(cap: timedelta, first: timedelta) -> str:
    return f"cap ({format_duration(cap)}) must not be shorter than first ({format_duration(first)})"


@dataclass(frozen=True)
class Exponential:
    """`min(cap, first * factor ** (n - 1))` after the n-th failure."""

    first: SpanField = SpanField(timedelta(seconds=1))
    cap: SpanField = SpanField(timedelta(hours=1))
    _: KW_ONLY
    factor: float = 2.0

    def __post_init__(self) -> None:
        # `not (… <= …)` also refuses NaN.
        if not (isinstance(self.factor, int | float) and 1 <= self.factor <= 1000):
            raise PolicyError(f"factor must lie between 1 and 1000, not {self.factor!r}")
        if self.cap < self.first:
            raise PolicyError(_cap_too_short(self.cap, self.first))

    def wait(self, failures: int) -> timedelta:
        """See the class."""
        if self.factor == 1 or not self.first:
            return self.first
        try:
            return min(self.cap, self.first * float(self.factor) ** max(0, failures - 1))
        except OverflowError:  # of the power or of the product: both lie far beyond any cap
            return self.cap

    def describe(self) -> str:
        """See `Backoff.describe`."""
        return f"exponential {format_duration(self.first)} ×{self.factor:g}, cap {format_duration(self.cap)}"


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """The n-th entry after the n-th failure, the last one for ever after."""

    waits: tuple[timedelta, ...]

    def __init__(self, waits: Sequence[Span]) -> None:
        if isinstance(waits, str) or not isinstance(waits, Sequence):
            raise PolicyError(
                f"a schedule takes a list of waits, such as [10, 60] or [seconds(10), minutes(1)], not {waits!r}"
            )
        object.__setattr__(self, "waits", tuple(read_span("waits", wait) for wait in waits))
        if not 1 <= len(self.waits) <= 1000:
            raise PolicyError(f"a schedule has 1 to 1000 waits, not {len(self.waits)}")

    @property
    def cap(self) -> timedelta:
        """The longest entry."""
        return max(self.waits)

    def wait(self, failures: int) -> timedelta:
        """See the class."""
        return self.waits[min(max(failures, 1), len(self.waits)) - 1]

    def describe(self) -> str:
        """See `Backoff.describe`."""
        shown = ", ".join(format_duration(wait) for wait in self.waits[:6])
        return f"schedule {shown}{', …' if len(self.waits) > 6 else ''}"


@dataclass(frozen=True)
class Fixed:
    """The same wait after every failure."""

    every: SpanField = SpanField()

    @property
    def cap(self) -> timedelta:
        """The wait itself."""
        return self.every

    def wait(self, failures: int) -> timedelta:  # noqa: ARG002 - the same after every failure
        """See the class."""
        return self.every

    def describe(self) -> str:
        """See `Backoff.describe`."""
        return f"fixed {format_duration(self.every)}"


@dataclass(frozen=True)
class Linear:
    """`min(cap, first + step * (n - 1))` after the n-th failure."""

    first: SpanField = SpanField()
    step: SpanField = SpanField()
    cap: SpanField = SpanField(DURATION_MAX)

    def __post_init__(self) -> None:
        if self.cap < self.first:
            raise PolicyError(_cap_too_short(self.cap, self.first))

    def wait(self, failures: int) -> timedelta:
        """See the class."""
        steps = max(0, failures - 1)
        if self.step > ZERO and steps > (self.cap - self.first) / self.step:
            return self.cap
        return min(self.cap, self.first + self.step * (steps if self.step > ZERO else 0))

    def describe(self) -> str:
        """See `Backoff.describe`."""
        first, step, cap = (format_duration(span) for span in (self.first, self.step, self.cap))
        return f"linear {first} + {step}, cap {cap}"


Wait = Backoff | Span | Sequence[Span]
"""What a handler may say of its waits: `5`, `"2s"`, `[1, "5m"]` or a backoff."""


def read_backoff(wait: Wait) -> Backoff:
    """The backoff that a short word stands for: one span is the same wait each time, a list is a schedule."""
    if isinstance(wait, Backoff) and not isinstance(wait, type):
        return wait
    if isinstance(wait, list | tuple):
        return Schedule(wait)
    if isinstance(wait, timedelta | int | float | str):
        return Fixed(read_span("wait", wait))
    raise PolicyError(
        f"wait must be a span, a list of spans or a backoff, such as 5, '2s', [1, 5, 15] or Exponential(2, 300), not {wait!r}"
    )
