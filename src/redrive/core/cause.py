"""Why tasks died, in groups: tasks of one kind whose errors have one class and came from one line of the user's code.

Where no line of theirs was involved, two errors that differ only in numbers, ids, names in quotes or addresses have one cause.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

CAUSE_CHARS_MAX = 300
UNKNOWN = "no error was recorded"

# In this order: what is longer and more special goes first. Each pattern is linear.
_REPLACED = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        (r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>]+", "<url>"),
        (r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+", "<email>"),
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b", "<address>"),
        (r"'[^'\n]{1,200}'|\"[^\"\n]{1,200}\"|`[^`\n]{1,200}`", "<text>"),
        (r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "<id>"),
        (r"\d+(?:\.\d+)?", "<number>"),
        (r"\s+", " "),
    )
)


@dataclass(frozen=True, slots=True)
class Cause:
    """A group of errors: a short id, and a text without what varies in them."""

    id: str
    text: str


@lru_cache(maxsize=4096)
def cause_of(error: str | None, *, kind: str | None = None, at: str | None = None) -> Cause:
    """The cause of an error as it is stored, of a task of this kind, that came from this line. Pure and total."""
    text = (error or "").strip()[: CAUSE_CHARS_MAX * 4]
    for pattern, shown in _REPLACED:
        text = pattern.sub(shown, text)
    text = text[:CAUSE_CHARS_MAX] or UNKNOWN
    same = text
    if at is not None:  # some systems store the message alone
        name = text.partition(":")[0]
        same = f"{name if name.isidentifier() else ''} at {at}"
    named = same if kind is None else f"{kind}\n{same}"
    return Cause(hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16], text)
