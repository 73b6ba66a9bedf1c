"""A filter for a part of the error matches what people are shown of it: who could find what is hidden could guess it.

Errors that redrive writes are redacted before they are stored. Those that others wrote into their own tables are not, and a database
cannot redact: it finds candidates by their stored text, and each is looked at again here before anybody hears of it.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from redrive.core.failure import redact
from redrive.errors import TooSlowError

T = TypeVar("T")

CANDIDATES_AT_ONCE = 100


def shows(error: str | None, text: str) -> bool:
    """Whether people who see this error see the text; in upper or lower case, as databases differ in that."""
    return text.lower() in redact(error or "").lower()


async def sifted(
    look: Callable[[T | None, int], Awaitable[Sequence[T]]],
    fitting: Callable[[Sequence[T]], Awaitable[Sequence[T]]],
    after: T | None,
    limit: int,
    within: timedelta | None,
) -> list[T]:
    """The next candidates behind `after` that fit, as many as asked for unless there are no more.

    A short answer would tell of candidates that did not fit: therefore the next ones are looked at until there are enough.
    """
    found: list[T] = []
    ends = None if within is None else time.monotonic() + within.total_seconds()
    while True:
        some = await look(after, max(limit, CANDIDATES_AT_ONCE))
        found += await fitting(some)
        if len(found) >= limit or len(some) < max(limit, CANDIDATES_AT_ONCE):
            return found[:limit]
        if ends is not None and time.monotonic() > ends:
            raise TooSlowError(f"fewer than {limit} of those looked at in time show this text")
        after = some[-1]
