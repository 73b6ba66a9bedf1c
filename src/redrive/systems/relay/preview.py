"""A payload as people can read it: JSON or text where it is that, else base64; bounded, and without what looks like a secret."""

import codecs
import json
from base64 import b64encode
from dataclasses import dataclass

from redrive.extend import redact
from redrive.operator.json_views import redacted

READ_BYTES_MAX = 65_536
"""So much of a payload is read to be shown."""
TEXT_CHARS_MAX = 16_384
BINARY_BYTES_MAX = 4096
_LAYOUT = frozenset("\t\n\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What is shown of a payload."""

    format: str
    """`json`, `text`, `base64` or `empty`."""
    text: str
    bytes: int
    """How long the payload is."""
    whole: bool
    """Whether all of it is shown, secrets aside."""


def preview(head: bytes, size: int) -> Preview:
    """The preview of a payload of so many bytes, of which this is the beginning."""
    if not size:
        return Preview(format="empty", text="", bytes=0, whole=True)
    is_all = len(head) == size
    text = _text(head, is_all=is_all)
    if text is None:
        # What looks like a secret is hidden in bytes as well: a protobuf holds its texts as they are.
        shown = redact(head.decode("latin-1")).encode("latin-1")
        whole = is_all and len(shown) <= BINARY_BYTES_MAX
        return Preview(format="base64", text=b64encode(shown[:BINARY_BYTES_MAX]).decode(), bytes=size, whole=whole)
    written = _json(text) if is_all else None
    format_, text = ("text", redact(text)) if written is None else ("json", written)
    return Preview(format=format_, text=text[:TEXT_CHARS_MAX], bytes=size, whole=is_all and len(text) <= TEXT_CHARS_MAX)


def _text(head: bytes, *, is_all: bool) -> str | None:
    """The text, if it is one; its last letter may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=is_all)
    except UnicodeDecodeError:
        return None
    return None if any(letter < " " and letter not in _LAYOUT for letter in text) else text


def _json(text: str) -> str | None:
    """The same, indented and redacted member by member, if it is JSON."""
    try:
        written = json.dumps(redacted(json.loads(text)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return written.encode("utf-8", "replace").decode()  # half a surrogate can be written in JSON, but not sent
