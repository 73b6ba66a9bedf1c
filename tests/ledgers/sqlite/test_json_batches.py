"""Batches as JSON text: quicker than Python's own, and the same."""

import json
import math
from typing import Any

import pytest

from redrive.core.states import State
from redrive.ledgers.sqlite.json_batches import from_json, to_json


@pytest.mark.parametrize(
    "value",
    [
        [1, -(2**63), 2**64 - 1, 2**70, 0.1, 1e300, None, True, "a'\"\\\n\x7f ü 😀", ""],
        [(1, "a"), (2, None)],
        {1: "a", 2: 0.5},
        {"a": 1},
        [],
        [State.DONE, State.WAITING],
        "\ud800",
    ],
    ids=["values", "rows", "numbers as names", "names", "nothing", "words", "half a character"],
)
def test_a_text_says_what_pythons_own_says(value: Any) -> None:
    """Whatever it is: what is read from either text is the same, and so is what either reader makes of it."""
    text = to_json(value)
    assert json.loads(text) == json.loads(json.dumps(value)) == from_json(json.dumps(value))


def test_what_is_no_json_is_refused() -> None:
    """Nothing that a column has not turned into what SQLite stores gets into a batch."""
    with pytest.raises(TypeError):
        to_json([b"bytes"])
    with pytest.raises(ValueError, match="Expecting"):
        from_json("[1,")


def test_infinity_is_read_as_sqlite_writes_it() -> None:
    """As a number beyond all others, which orjson refuses."""
    assert from_json("[9.0e+999]") == [math.inf]
