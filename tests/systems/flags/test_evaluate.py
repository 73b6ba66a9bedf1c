"""Whether a flag is on: the rules in their order, and percentages over many users."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from redrive.systems.flags.evaluate import FlagFacts, bucket, is_on


def flag(enabled: bool = True, percentage: int = 100) -> FlagFacts:
    return FlagFacts(1, enabled, percentage)


@pytest.mark.parametrize(
    ("facts", "override", "user", "on"),
    [
        (None, "include", "u", False),
        (flag(enabled=False), "include", "u", False),
        (flag(enabled=False, percentage=100), None, None, False),
        (flag(percentage=100), "exclude", "u", False),
        (flag(percentage=0), "include", "u", True),
        (flag(percentage=100), None, "u", True),
        (flag(percentage=100), None, None, True),
        (flag(percentage=0), None, "u", False),
        (flag(percentage=0), None, None, False),
        (flag(percentage=1), None, None, True),
        (flag(percentage=99), None, None, True),
    ],
)
def test_rules_in_their_order(facts: FlagFacts | None, override: str | None, user: str | None, on: bool) -> None:
    """Off beats all, then overrides, then the ends of the percentage, then nobody named is let in."""
    assert is_on(facts, override, user) is on


@given(user=some.text(max_size=50), percentage=some.integers(1, 99))
def test_the_bucket_decides(user: str, percentage: int) -> None:
    """The first 8 hex digits of SHA-256 of the id, mod 100, below the percentage; the same at every call."""
    expected = int(hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:8], 16) % 100
    assert bucket(user) == expected
    assert is_on(flag(percentage=percentage), None, user) is (expected < percentage)


def test_known_buckets() -> None:
    """Numbers that may never change: users would be in today and out tomorrow."""
    assert [bucket(user) for user in ("u-1", "ada", "ÄÖ", "")] == [53, 81, 83, 10]


@pytest.mark.parametrize("percentage", [1, 10, 50, 90, 99])
def test_percentages_hold_over_many_users(percentage: int) -> None:
    """Over 100,000 users the share is right within one percent, and who is in at 10 percent is in at 50."""
    buckets = [bucket(f"user-{number}") for number in range(100_000)]
    share = sum(one < percentage for one in buckets) / 1000
    assert abs(share - percentage) < 1
