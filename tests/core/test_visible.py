"""Text of strangers on a terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.visible import visible, visible_json

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ä, 漢, 🙂", "plain text, ä, 漢, 🙂"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (CLIPBOARD, "\\x1b]52;c;ZXZpbA==\\x07"),
        ("\x9b31mred", "\\x9b31mred"),
        ("over\rwritten", "over\\x0dwritten"),
        ("abc\u202edef", "abc\\u202edef"),
        ("\x9f", "\\x9f"),
    ],
)
def test_controls_are_spelled_out(text: str, shown: str):
    """What a terminal would act on is shown instead; everything else stays as it is."""
    assert visible(text) == shown


@given(st.text())
def test_nothing_is_left_to_act_on(text: str):
    """Whatever the text, no control character but new lines and tabs comes through."""
    shown = visible(text)
    assert all(letter in "\n\t" or ord(letter) >= 32 for letter in shown)
    assert not any(0x7F <= ord(letter) <= 0x9F for letter in shown)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_means_the_same(value: object):
    """Escaped JSON reads as what it was."""
    assert json.loads(visible_json(json.dumps(value, ensure_ascii=False, indent=2))) == value


def test_json_is_escaped_as_json_has_it() -> None:
    """There is no short form in JSON."""
    assert visible_json('"\x7f\u202e"') == '"\\u007f\\u202e"'
