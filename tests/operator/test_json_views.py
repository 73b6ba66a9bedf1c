"""What people see of a payload: everything but what looks like a secret."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from redrive.operator.json_views import HIDDEN, SHOWN_CHARS_MAX, redacted


@pytest.mark.parametrize(
    "payload",
    [
        {"password": "hunter2"},
        {"password": ["hunter2", "x"]},
        {"api_key": {"value": "hunter2"}},
        {"nested": [{"deeper": {"client_secret": "hunter2"}}]},
        {"credentials": {"user": "ada", "pass": "hunter2"}},
        {"headers": {"Authorization": "Bearer hunter2hunter2"}},
        {"authorization": ["Bearer", "hunter2"]},
        {"note": "password=hunter2"},
        {"url": "https://ada:hunter2@example.com/"},
        ["token: hunter2"],
        {"token: hunter2": 1},
        {"pwd": 4711, "other": "hunter"},
    ],
)
def test_secrets_are_hidden(payload: Any):
    """By the name of a member, in lists and objects under it, and by their own look."""
    shown = str(redacted(payload))
    assert "hunter2" not in shown
    assert "4711" not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "payload",
    [
        {"order": 7, "name": "Ada", "tags": ["a", "b"]},
        {"tokens": 12},
        {"password": None},
        {"password": []},
        "text",
        1.5,
        None,
        [],
    ],
)
def test_everything_else_is_shown(payload: Any):
    """As it is."""
    assert redacted(payload) == payload


def test_depth_has_a_limit():
    """A hostile payload costs no more than a deep one."""
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    assert "…" in str(redacted(deep))


@pytest.mark.parametrize(
    "make",  # made in the test: a million objects that live as long as the suite would slow all of it down
    [
        lambda: {"text": "x" * (4 << 20), "more": 1},
        lambda: [{"a": number, "b": "text"} for number in range(250_000)],
        lambda: {f"k{number}": [number] for number in range(250_000)},
    ],
    ids=["one text", "a list", "an object"],
)
def test_of_a_large_payload_the_beginning_is_shown(make: Callable[[], Any]):
    """As much as can be looked through while others wait; then an ellipsis says that there is more."""
    payload = make()
    shown = json.dumps(redacted(payload), ensure_ascii=False)
    assert 100_000 < len(shown) < 20 * SHOWN_CHARS_MAX
    assert "…" in shown
    assert shown[:50] == json.dumps(payload)[:50]


def test_no_secret_comes_out_by_the_cut():
    """A long secret is hidden by its name, and what stands at the cut is left out."""
    assert redacted({"password": "h" * (2 << 20)}) == {"password": "[redacted]"}
    text = "x" * (SHOWN_CHARS_MAX - 20) + " password=hunter2hunter2"
    assert "hunt" not in redacted([text])[0]
