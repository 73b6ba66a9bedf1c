"""Text of strangers on a terminal: what would move the cursor, change colours, reach the clipboard or turn the line around is spelled out."""

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with control characters written as `\x1b` or `\u202e`; new lines and tabs stay."""
    return _HIDDEN.sub(lambda found: _spelled(found[0], short=True), text)


def visible_json(text: str) -> str:
    r"""JSON text with these characters, which can only be inside of strings, escaped: it means the same as before."""
    return _HIDDEN.sub(lambda found: _spelled(found[0], short=False), text)


def _spelled(letter: str, *, short: bool) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if short and code < 256 else f"\\u{code:04x}"
