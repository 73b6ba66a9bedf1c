"""The limits of a gate as people write them, and which of them holds for a gate. Pure; `gates.py` says what a gate does under them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from redrive.core.durations import SpanField, format_duration
from redrive.errors import UsageError

PROBE = timedelta(seconds=30)
WITHIN = timedelta(minutes=1)
RAMP_STEPS = 10
"""After so many seconds a gate without a rate flows again: 1,023 have gone through by then."""
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """So many transient failures `within` a span trip it; while it is tripped, one try every `probe` asks whether all is well.

    With `share`, it trips when at least `failures` tries were made and this share of them failed.
    """

    failures: int = 10
    share: float | None = None
    within: SpanField = SpanField(WITHIN)
    probe: SpanField = SpanField(PROBE)

    def __post_init__(self) -> None:
        _check_whole("failures", self.failures)
        _check_share("share", self.share)
        for name in ("within", "probe"):
            if getattr(self, name) < timedelta(milliseconds=1):
                raise UsageError(f"{name} must be at least 1ms, not {format_duration(getattr(self, name))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """The limits of a gate; None is no limit. Made by `read_rule`, which checks them."""

    concurrency: int | None = None
    rate: int | None = None
    """How many may start in any `rate_span`."""
    rate_span: timedelta = SECOND
    burst: int | None = None
    """How many of them at once; they lie inside the rate, not on top of it."""
    failures: int | None = None
    share: float | None = None
    within: timedelta = WITHIN
    probe: timedelta = PROBE
    budget: float | None = None

    @property
    def bucket(self) -> int:
        """How many tokens the bucket holds."""
        assert self.rate is not None
        return min(self.rate, 1 + self.rate // 20 if self.burst is None else self.burst)

    @property
    def fill(self) -> float:
        """How many tokens come in a second.

        A bucket that fills with the rate r and holds b lets r + b - 1 through in one span; filling with r - b + 1 makes it r.
        """
        assert self.rate is not None
        return (self.rate - self.bucket + 1) / self.rate_span.total_seconds()

    @property
    def ramp_steps(self) -> int:
        """After how many seconds a ramp of 1, 2, 4, … has reached the rate."""
        if self.rate is None:
            return RAMP_STEPS
        per_second = self.rate / self.rate_span.total_seconds()
        return next((step for step in range(RAMP_STEPS) if 2**step >= per_second), RAMP_STEPS)


UNLIMITED = GateRule()

_SPANS = {"s": SECOND, "m": timedelta(minutes=1), "h": timedelta(hours=1)}
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(s|m|h)\s*")


def read_rate(rate: str | int) -> tuple[int, timedelta]:
    """How many in which span: `"20/s"`, `"100/m"`, `"1000/h"`; a number is meant in a second."""
    matched = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if matched is not None and int(matched[1]) > 0:
        return int(matched[1]), _SPANS[matched[2]]
    if isinstance(rate, int) and not isinstance(rate, bool) and 0 < rate < 10**9:
        return rate, SECOND
    raise UsageError(f"rate must look like '20/s', '100/m' or '1000/h', not {rate!r}")


def read_rule(
    *,
    concurrency: int | None = None,
    rate: str | int | None = None,
    burst: int | None = None,
    breaker: Breaker | None = None,
    budget: float | None = None,
) -> GateRule:
    """The limits as they are written in code: `concurrency=5, rate="20/s", breaker=Breaker(failures=10), budget=0.2`."""
    _check_whole("concurrency", concurrency)
    _check_whole("burst", burst)
    _check_share("budget", budget)
    if burst is not None and rate is None:
        raise UsageError("burst is a part of the rate: say rate= too")
    amount, span = (None, SECOND) if rate is None else read_rate(rate)
    if breaker is None:
        return GateRule(concurrency=concurrency, rate=amount, rate_span=span, burst=burst, budget=budget)
    if not isinstance(breaker, Breaker):
        raise UsageError(f"breaker must be a Breaker, such as Breaker(failures=10), not {breaker!r}")
    return GateRule(
        concurrency=concurrency, rate=amount, rate_span=span, burst=burst, budget=budget,
        failures=breaker.failures, share=breaker.share, within=breaker.within, probe=breaker.probe,
    )  # fmt: skip


def _check_whole(name: str, amount: int | None) -> None:
    if amount is None:
        return
    if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= 1_000_000:
        raise UsageError(f"{name} must be a whole number from 1 to 1,000,000, not {amount!r}")


def _check_share(name: str, share: float | None) -> None:
    if share is None:
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UsageError(f"{name} must be a share above 0 and up to 1, such as 0.2, not {share!r}")


def most_specific(patterns: Iterable[str], name: str) -> str | None:
    """The pattern that holds for a gate: its own name before all, else the one with the most letters, else the first by name."""
    fitting = [pattern for pattern in patterns if fits(pattern, name)]
    return min(fitting, key=lambda one: ("*" in one, one.count("*") - len(one), one.count("*"), one), default=None)


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern, in which `*` stands for any text, is one of this name."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
