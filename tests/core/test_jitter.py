"""Jitter: draws that are spread like chance and repeat like a table, and delays that keep their bounds."""

from collections import Counter
from datetime import timedelta
from fractions import Fraction
from hashlib import blake2b
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.core import jitter
from redrive.core.backoff import Backoff, Exponential, Fixed, Linear, Schedule
from redrive.core.durations import DURATION_MAX, hours, minutes, seconds
from redrive.core.jitter import DECORRELATED_MEMORY, Jitter, draw
from redrive.core.policy import Policy
from redrive.errors import DurationError, PolicyError

ZERO = timedelta(0)
TICK = timedelta(microseconds=1)
MONOTONE_BACKOFFS = [
    Exponential(seconds(1), hours(1)),
    Exponential(timedelta(microseconds=1), DURATION_MAX, factor=1000),
    Exponential(ZERO, ZERO),
    Fixed(minutes(1)),
    Fixed(ZERO),
    Linear(seconds(1), seconds(7), minutes(10)),
    Linear(ZERO, DURATION_MAX),
    Schedule([seconds(1), seconds(30), minutes(5)]),
]
BACKOFFS = [*MONOTONE_BACKOFFS, Schedule([minutes(5), seconds(1), seconds(30)])]
JITTERS = [
    jitter.none,
    jitter.full,
    jitter.equal,
    jitter.decorrelated,
    jitter.percent(0),
    jitter.percent(10),
    jitter.percent(100),
    jitter.plus_minus(0),
    jitter.plus_minus(10),
    jitter.plus_minus(100),
    jitter.additive(ZERO),
    jitter.additive(seconds(30)),
    jitter.additive(DURATION_MAX),
]
COUNTS = st.one_of(
    st.integers(min_value=-3, max_value=80),
    st.integers(),
    st.sampled_from([0, -1, 10**6, -(10**6), 2**63, 10**400, -(10**400)]),
)
KEYS = st.text(max_size=30)
POLICIES = st.builds(
    lambda backoff, spread, name: Policy(backoff, jitter=spread, name=name),
    st.sampled_from(BACKOFFS), st.sampled_from(JITTERS), st.sampled_from(["default", "flags", ""]),
)  # fmt: skip
MANY = 20_000


def chi_square(draws: list[float], bins: int) -> float:
    """Pearson's statistic against the uniform distribution over [0, 1)."""
    expected = len(draws) / bins
    found = Counter(int(drawn * bins) for drawn in draws)
    return sum((found[each] - expected) ** 2 / expected for each in range(bins))


def kolmogorov_distance(draws: list[float]) -> float:
    """The largest gap between the draws' distribution and the uniform one."""
    ordered = sorted(draws)
    return max(max((i + 1) / len(draws) - d, d - i / len(draws)) for i, d in enumerate(ordered))


@given(POLICIES, COUNTS, KEYS)
@example(Policy(Exponential(), jitter=jitter.full), 10**6, "\ud800")
def test_delay_is_total_and_within_its_ceiling(policy, failures, key):
    """For every backoff and jitter any count and key gives a delay from zero to the policy's ceiling."""
    delay = policy.delay(failures, key)
    assert ZERO <= delay <= policy.ceiling(failures)


@pytest.mark.parametrize("spread", JITTERS)
@pytest.mark.parametrize("backoff", BACKOFFS)
def test_no_count_is_too_long_to_be_counted(backoff, spread):
    """Counts of five thousand digits, which Python refuses to print, still have a delay within bounds."""
    for failures in (10**5000, -(10**5000)):
        assert ZERO <= Policy(backoff, jitter=spread).delay(failures, "key") <= spread.ceiling(backoff, failures)


@given(st.sampled_from(MONOTONE_BACKOFFS), st.sampled_from(JITTERS), COUNTS, COUNTS)
def test_ceilings_never_fall(backoff, spread, some, more):
    """With a backoff that only grows, the longest possible delay only grows."""
    assert spread.ceiling(backoff, min(some, more)) <= spread.ceiling(backoff, max(some, more))


@given(KEYS, COUNTS, KEYS)
def test_a_draw_lies_in_zero_to_one_and_repeats(key, failures, name):
    """A draw is in [0, 1) and the same every time."""
    drawn = draw(key, failures, name)
    assert 0 <= drawn < 1
    assert draw(key, failures, name) == drawn


@given(KEYS, st.integers(min_value=0, max_value=2**64 - 1), KEYS)
def test_a_draw_is_the_published_hash(key, failures, name):
    """A draw is the top 53 bits of BLAKE2b-64 over name, number and key, so any language can repeat it."""
    digest = blake2b(b"\0".join([name.encode(), str(failures).encode(), key.encode()]), digest_size=8).digest()
    assert draw(key, failures, name) == float(Fraction(int.from_bytes(digest, "big") // 2**11, 2**53))


@pytest.mark.parametrize(
    "draws",
    [
        pytest.param([draw(f"order-{n}", 1, "default") for n in range(MANY)], id="keys"),
        pytest.param([draw(f"order-{n}", 3, "flags") for n in range(MANY)], id="keys of another policy"),
        pytest.param([draw("order-1", n, "default") for n in range(MANY)], id="failure numbers"),
        pytest.param([draw("order-1", 1, f"policy {n}") for n in range(MANY)], id="policy names"),
    ],
)
def test_draws_are_uniform(draws):
    """Over 20,000 keys, numbers or names the draws pass chi-square and Kolmogorov tests at one in ten thousand."""
    # 99 degrees of freedom: chi-square above 161 has p < 0.0001; a distance above 2.23 / sqrt(n) too.
    assert chi_square(draws, bins=100) < 161
    assert kolmogorov_distance(draws) < 2.23 / MANY**0.5


def test_draws_of_one_task_are_independent_of_each_other():
    """The draw after the first failure says nothing about the second: pairs fill a grid of ten by ten evenly."""
    pairs = [int(draw(f"k{n}", 1, "p") * 10) * 10 + int(draw(f"k{n}", 2, "p") * 10) for n in range(MANY)]
    assert chi_square([(pair + 0.5) / 100 for pair in pairs], bins=100) < 161


def test_a_draw_depends_on_key_number_and_name():
    """Changing any one of the three changes the draw, and they cannot be traded for each other."""
    drawn = {
        draw("a", 1, "p"), draw("b", 1, "p"), draw("a", 2, "p"), draw("a", 1, "q"), draw("1", 1, "p"),
        draw("p", 1, "a"), draw("a", 11, "p"), draw("1a", 1, "p"), draw("a", 1, "p1"), draw("a", -1, "p"),
    }  # fmt: skip
    assert len(drawn) == 10


def test_a_herd_is_spread():
    """A thousand tasks that fail together come back at close to a thousand different times, none heaped up."""
    policy = Policy(Fixed(minutes(1)), jitter=jitter.full)
    delays = [policy.delay(1, f"task-{n}") for n in range(1000)]
    assert len(set(delays)) > 990
    assert max(Counter(int(delay.total_seconds()) for delay in delays).values()) < 40


BOUNDS = [
    (jitter.none, 60, 60),
    (jitter.full, 0, 60),
    (jitter.equal, 30, 60),
    (jitter.percent(0), 60, 60),
    (jitter.percent(10), 54, 60),
    (jitter.percent(100), 0, 60),
    (jitter.plus_minus(0), 60, 60),
    (jitter.plus_minus(10), 54, 66),
    (jitter.additive(seconds(30)), 60, 90),
]


@pytest.mark.parametrize(("spread", "least", "most"), BOUNDS)
def test_each_jitter_fills_its_own_range(spread, least, most):
    """Delays lie within the range that the jitter is named after, come near both ends, and centre in the middle."""
    policy = Policy(Fixed(minutes(1)), jitter=spread)
    delays = [policy.delay(1, f"task-{n}").total_seconds() for n in range(2000)]
    slack = (most - least) / 100
    assert least <= min(delays) <= least + slack
    assert most - slack <= max(delays) <= most
    assert abs(sum(delays) / len(delays) - (least + most) / 2) <= 3 * slack


@given(KEYS, st.integers(min_value=1, max_value=20), st.sampled_from(BACKOFFS))
def test_each_jitter_is_its_formula(key, failures, backoff):
    """The delay is the formula of the docstring over the wait and the draw."""
    wait, drawn = backoff.wait(failures) / TICK, draw(key, failures, "default")

    def delay(spread: Jitter) -> float:
        return Policy(backoff, jitter=spread).delay(failures, key) / TICK

    near = {"rel": 1e-12, "abs": 1.0}
    assert delay(jitter.none) == wait
    assert delay(jitter.full) == pytest.approx(wait * drawn, **near)
    assert delay(jitter.equal) == pytest.approx(wait * (1 + drawn) / 2, **near)
    assert delay(jitter.percent(25)) == pytest.approx(wait * (1 - 0.25 * drawn), **near)
    assert delay(jitter.plus_minus(25)) == pytest.approx(wait * (1 + 0.25 * (2 * drawn - 1)), **near)
    assert delay(jitter.additive(seconds(30))) == pytest.approx(wait + 30e6 * drawn, **near)


@given(KEYS)
def test_decorrelated_grows_from_the_delay_before(key):
    """Each decorrelated delay lies between the first wait and three times the one before, at most at the cap."""
    policy = Policy(Exponential(seconds(1), hours(10)), jitter=jitter.decorrelated)
    delays = [policy.delay(n, key) for n in range(1, DECORRELATED_MEMORY)]
    assert seconds(1) <= delays[0] <= seconds(3)
    for before, after in pairwise(delays):
        assert seconds(1) <= after <= min(hours(10), 3 * before + TICK)


def test_decorrelated_work_has_a_limit():
    """However many failures there were, a decorrelated delay looks at a bounded number of draws."""
    numbers: list[int] = []

    def drawn(number: int) -> float:
        numbers.append(number)
        return 0.5

    jitter.decorrelated.delay(Exponential(), 10**6, drawn)
    assert len(numbers) == DECORRELATED_MEMORY + 1
    assert numbers[-1] == 10**6


def test_the_first_decorrelated_delay_is_drawn():
    """Between the first wait and three times that, as all that follow it."""
    assert jitter.decorrelated.delay(Exponential(seconds(2), hours(1)), 1, lambda _: 0.5) == seconds(4)


def test_additive_goes_past_the_cap_and_the_others_do_not():
    """Additive jitter is added after the cap, as flags and relay have it; no other jitter leaves the cap."""
    backoff = Exponential(seconds(2), seconds(60))
    keys = [f"task-{n}" for n in range(200)]

    def longest(spread: Jitter) -> timedelta:
        return max(Policy(backoff, jitter=spread).delay(50, key) for key in keys)

    assert seconds(60) < longest(jitter.additive(seconds(1))) <= seconds(61)
    for spread in (jitter.none, jitter.full, jitter.equal, jitter.decorrelated, jitter.percent(50)):
        assert longest(spread) <= seconds(60)


@pytest.mark.parametrize("amount", [-1, 100.1, float("nan"), float("inf"), True, "10", None, Fraction(1, 2)])
def test_percent_out_of_range_is_refused(amount):
    """A percentage that is not a number from 0 to 100 raises `PolicyError` with that range."""
    with pytest.raises(PolicyError, match="jitter plus_minus must lie between 0 and 100"):
        jitter.plus_minus(amount)
    with pytest.raises(PolicyError, match="jitter percent must lie between 0 and 100"):
        jitter.percent(amount)


@pytest.mark.parametrize("most", ["soon", None, timedelta(seconds=-1), timedelta(days=400)])
def test_additive_out_of_range_is_refused(most):
    """An additive jitter that is no span of time raises `DurationError` under its name."""
    with pytest.raises(DurationError, match=r"^jitter must"):
        jitter.additive(most)


def test_jitters_are_described_in_a_few_words():
    """Explanations call a jitter by the name that users write."""
    described = [each.describe() for each in (jitter.none, jitter.full, jitter.equal, jitter.decorrelated)]
    assert described == ["none", "full", "equal", "decorrelated"]
    assert jitter.percent(12.5).describe() == "percent 12.5"
    assert jitter.additive(seconds(30)).describe() == "additive 30s"


def test_every_backoff_here_is_one():
    """The table above holds real backoffs, so the properties test what policies accept."""
    assert all(isinstance(backoff, Backoff) for backoff in BACKOFFS)


def test_the_longest_wait_of_plus_and_minus():
    """What a wait can come to is the wait and its share on top."""
    assert jitter.plus_minus(20).ceiling(Fixed(seconds(10)), 1) == seconds(12)


@pytest.mark.parametrize("amount", [0, 0.5, 100])
def test_percent_goes_to_its_bounds(amount):
    """Nothing and all of a wait are percentages too."""
    assert jitter.percent(amount).describe() == f"percent {amount:g}"
