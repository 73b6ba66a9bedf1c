"""Which transactions the running code is itself in: whoever waits for a lock that they hold waits for itself.

A context variable tells, so that tasks and threads which that code starts are in them too: it may well be waiting for what they do.
Each entry says by itself when its transaction is over; a task that outlives it is in nothing any more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class _Inside:
    """One open transaction, and the one around it."""

    __slots__ = ("is_open", "of", "outer")

    def __init__(self, of: str, outer: "_Inside | None") -> None:
        self.of = of
        self.outer = outer
        self.is_open = True


_innermost: ContextVar[_Inside | None] = ContextVar("redrive_own_transaction", default=None)


@contextmanager
def own_transaction(of: str) -> Iterator[None]:
    """What runs in this block is in a transaction of this name."""
    outer = _innermost.get()
    while outer is not None and not outer.is_open:  # not to be kept for ever
        outer = outer.outer
    inside = _Inside(of, outer)
    _innermost.set(inside)
    try:
        yield
    finally:
        inside.is_open = False


def is_inside(of: str) -> bool:
    """Whether the running code is in an open transaction of this name."""
    inside = _innermost.get()
    while inside is not None:
        if inside.is_open and inside.of == of:
            return True
        inside = inside.outer
    return False


def step_out() -> None:
    """For a task that works for many callers: it is in the transaction of none, whoever happened to start it."""
    _innermost.set(None)
