"""The published waits of the five systems, and draws that may never change.

`vectors.json` is a promise: previews were shown and delays were planned by these numbers. A change of the draw, of a
formula or of a rounding shows here; it is a breaking change, not a number to be updated.
"""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.core import jitter
from redrive.core.backoff import Exponential, Schedule
from redrive.core.durations import hours, minutes, seconds
from redrive.core.jitter import draw
from redrive.core.policy import Policy

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))
TICK = timedelta(microseconds=1)

SYSTEMS = {
    "flags": Policy(
        Exponential(minutes(2), minutes(60)), retries=3, jitter=jitter.additive(seconds(30)), name="flags",
    ),
    "webhooks": Policy(Exponential(seconds(10), seconds(300)), attempts=5, jitter=jitter.none, name="webhooks"),
    "commands": Policy(Schedule([seconds(60), seconds(300)]), attempts=3, jitter=jitter.none, name="commands"),
    "triggers": Policy(
        Schedule([seconds(60), seconds(300), seconds(900)]), retries=3, jitter=jitter.none, name="triggers",
    ),
    "relay": Policy(Exponential(seconds(2), seconds(60)), retries=3, jitter=jitter.additive(seconds(1)), name="relay"),
}  # fmt: skip
JITTERS = {
    "none": jitter.none,
    "full": jitter.full,
    "equal": jitter.equal,
    "decorrelated": jitter.decorrelated,
    "percent 10": jitter.percent(10),
    "additive 30s": jitter.additive(seconds(30)),
}


def test_the_file_covers_what_is_promised():
    """There are vectors for each of the five systems and for each jitter."""
    assert set(VECTORS["systems"]) == set(SYSTEMS)
    assert set(VECTORS["jitters"]["delays_microseconds"]) == set(JITTERS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_waits_of_a_system(system):
    """Each system makes as many tries as its spec says, with these waits between them, and these if it went on."""
    policy, published = SYSTEMS[system], VECTORS["systems"][system]
    assert policy.failures_max == published["tries"]
    assert len(published["waits_seconds"]) == published["tries"] - 1
    waits = published["waits_seconds"] + published["waits_beyond_seconds"]
    assert [policy.backoff.wait(n).total_seconds() for n in range(1, len(waits) + 1)] == waits


@pytest.mark.parametrize("system", SYSTEMS)
def test_delays_of_a_system(system):
    """For fixed keys the delays, jitter included, are these to the microsecond, each within the spec's range."""
    policy, published = SYSTEMS[system], VECTORS["systems"][system]
    for key, delays in published["delays_microseconds"].items():
        assert [policy.delay(n, key) // TICK for n in range(1, policy.failures_max)] == delays
        for wait, delay in zip(published["waits_seconds"], delays, strict=True):
            assert wait <= delay / 1e6 <= wait + published["jitter_seconds_max"]


@pytest.mark.parametrize("spread", JITTERS)
def test_delays_of_a_jitter(spread):
    """Over one backoff and one key every jitter gives these delays to the microsecond."""
    policy = Policy(Exponential(seconds(1), hours(1)), jitter=JITTERS[spread], name=VECTORS["jitters"]["policy"])
    delays = VECTORS["jitters"]["delays_microseconds"][spread]
    assert [policy.delay(n, VECTORS["jitters"]["key"]) // TICK for n in range(1, len(delays) + 1)] == delays


@pytest.mark.parametrize("vector", VECTORS["draws"])
def test_draws(vector):
    """The draw for these names, numbers and keys is this number, bit for bit."""
    assert draw(vector["key"], vector["failures"], vector["policy"]) == float.fromhex(vector["draw_hex"])
    assert draw(vector["key"], vector["failures"], vector["policy"]) == vector["draw"]
