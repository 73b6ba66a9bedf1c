"""`redrive preview`: published policies, options, and the very times that will happen."""

from collections.abc import Callable

import pytest

from redrive.cli.preview import PUBLISHED, PublishedPolicy

from .said import Said

Run = Callable[..., Said]


START = ("--start", "2026-01-31T09:00:00Z")


@pytest.mark.parametrize(
    ("policy", "waits", "spread"),
    [
        ("flags", [120, 240, 480], 30),
        ("webhooks", [10, 20, 40, 80], 0),
        ("commands", [60, 300], 0),
        ("triggers", [60, 300, 900], 0),
        ("relay", [2, 4, 8], 1),
    ],
)
def test_published_policies(redrive: Run, policy: str, waits: list[int], spread: int):
    """Each of the five waits as its specification says."""
    said = redrive("preview", "--policy", policy, *START, "--json").json
    delays = [one["delay_seconds"] for one in said["tries"][1:]]
    assert len(delays) == len(waits)
    for delay, wait in zip(delays, waits, strict=True):
        assert wait <= delay <= wait + spread
    assert said["attempts"] == len(waits) + 1


def test_published_names_are_the_policies():
    """Every published policy can be asked for, under its own name."""
    assert {each.value for each in PublishedPolicy} == set(PUBLISHED)
    assert all(policy.name == name for name, policy in PUBLISHED.items())


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        (["--first", "2s", "--cap", "5s", "--retries", "3", "--jitter", "none"], [2, 4, 5]),
        (["--first", "1s", "--factor", "10", "--attempts", "3", "--jitter", "none"], [1, 10]),
        (["--schedule", "10s,1m,5m", "--retries", "4", "--jitter", "none"], [10, 60, 300, 300]),
        (["--fixed", "30s", "--retries", "2", "--jitter", "percent:0"], [30, 30]),
    ],
)
def test_policy_by_options(redrive: Run, options: list[str], delays: list[float]):
    """Every backoff can be asked for."""
    said = redrive("preview", *options, *START, "--json").json
    assert [one["delay_seconds"] for one in said["tries"][1:]] == delays
    assert said["tries"][0]["at"] == "2026-01-31T09:00:00.000000Z"


def test_preview_draws(redrive: Run):
    """A table with a row for each try, and the last mark stands at the end of the line."""
    said = redrive("preview", "--policy", "triggers", *START)
    assert said.code == 0
    assert said.out.count("●") == 4
    assert "2026-01-31 09:21:00Z" in said.out
    assert "dead after 21m" in said.out


def test_preview_is_the_same_for_the_same_key(redrive: Run):
    """Draws are not random; another key draws otherwise."""
    one, same, other = (
        redrive("preview", "--jitter", "full", "--key", key, *START, "--json").json["tries"] for key in ("a", "a", "b")
    )
    assert one == same != other


@pytest.mark.parametrize(
    "options",
    [
        ["--policy", "flags", "--first", "1s"],
        ["--fixed", "1s", "--schedule", "1s"],
        ["--retries", "1", "--attempts", "2"],
        ["--jitter", "sometimes"],
        ["--jitter", "percent:much"],
        ["--jitter", "additive:"],
        ["--first", "soon"],
        ["--first", "1h", "--cap", "1m"],
        ["--start", "tomorrow"],
        ["--factor", "nan"],
        ["--app", "examples.sample:app"],
        ["--kind", "x"],
        ["--policy", "none"],
    ],
)
def test_impossible_policies_are_usage_errors(redrive: Run, options: list[str]):
    """And never a traceback."""
    said = redrive("preview", *options)
    assert (said.code, said.out) == (2, "")
    assert said.err


def test_preview_of_a_handlers_own_policy(redrive: Run):
    """An application's policy is found by the kind, patterns included."""
    said = redrive("preview", "--app", "examples.sample:app", "--kind", "flaky.x", "--json").json
    assert (said["policy"], said["attempts"]) == ("sample", 4)
