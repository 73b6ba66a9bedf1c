"""How much one statement carries, where what is stored may be large."""

from collections.abc import Iterable, Iterator

CHARS_PER_STATEMENT = 8_000_000
"""How much of payloads one insert carries. A thousand of 1 MB are more than SQLite takes in one text; on PostgreSQL they took 65 s
and 4 GB of memory at once, and take 18 s and 1 GB in portions."""


def portions(sizes: Iterable[int]) -> Iterator[slice]:
    """Rows of these sizes in portions that one statement can carry; most often one."""
    start = chars = end = 0
    for position, size in enumerate(sizes):
        chars += size
        if chars > CHARS_PER_STATEMENT and position > start:
            yield slice(start, position)
            start, chars = position, size
        end = position + 1
    yield slice(start, end)
