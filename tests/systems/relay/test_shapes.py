"""How messages in review are shown."""

from base64 import b64decode

import pytest

from redrive.systems.relay.desk import READ_BYTES_MAX
from redrive.systems.relay.shapes import TEXT_CHARS_MAX, preview


@pytest.mark.parametrize(
    ("payload", "format_", "text_"),
    [
        (b"", "empty", ""),
        (b'{"a": [1, null]}', "json", '{\n  "a": [\n    1,\n    null\n  ]\n}'),
        (b'{"token": "abcdefgh"}', "json", '{\n  "token": "[redacted]"\n}'),
        (b'"\\ud800"', "json", '"?"'),
        (b"[NaN, 1e999]", "json", "[\n  NaN,\n  Infinity\n]"),
        (b"[" * 100_000, "text", "[" * TEXT_CHARS_MAX),
        ("größe=1\n".encode(), "text", "größe=1\n"),
        (b"password=hunter2 rest", "text", "password=[redacted] rest"),
        (b"\x00\xff", "base64", "AP8="),
        (b"\x1b[2J", "base64", "G1sySg=="),
    ],
)
def test_previews(payload: bytes, format_: str, text_: str) -> None:
    """JSON where it is JSON, text where it is text, else base64; never a fault, never a secret."""
    shown = preview(payload[:READ_BYTES_MAX], len(payload))
    assert (shown.format, shown.text, shown.bytes) == (format_, text_, len(payload))
    assert shown.whole == (len(payload) <= TEXT_CHARS_MAX)


def test_previews_are_bounded_and_cut_between_letters() -> None:
    """However long a payload is, and wherever the beginning ends."""
    long = "ä".encode() * READ_BYTES_MAX
    shown = preview(b"x" + long[: READ_BYTES_MAX - 1], 1 + len(long))
    assert (shown.format, len(shown.text), shown.whole) == ("text", TEXT_CHARS_MAX, False)
    binary = preview(b"\xff" * READ_BYTES_MAX, READ_BYTES_MAX * 2)
    assert (binary.format, binary.whole, len(binary.text) < 6000) == ("base64", False, True)


def test_secrets_in_bytes_are_hidden() -> None:
    """A protobuf holds its texts as they are."""
    shown = preview(payload := b"\x0a\xff\x12password=hunter2 \x00", len(payload))
    assert b"hunter2" not in b64decode(shown.text)
