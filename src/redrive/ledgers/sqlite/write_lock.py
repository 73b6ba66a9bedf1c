"""The one write lock of a SQLite file: who here holds it, and since when this process waits for it.

A lock that stays is nobody's error until it has stayed for a minute. It is told long before that, in the log and to `/health`:
reads go on meanwhile, so nothing else would show it.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from redrive.core.durations import format_duration
from redrive.errors import UsageError
from redrive.ledgers.own_transaction import is_inside, own_transaction

LONG_SECONDS = 5.0
"""A wait of this length is told."""
FORGOTTEN_SECONDS = 10.0
"""A lock that nobody has asked for since is not waited for any more."""

_log = logging.getLogger("redrive")


class WriteLock:
    """What is known here of the lock of one file."""

    def __init__(self, file: Path) -> None:
        self._name = file.name
        self._file = str(file)
        self.held_here = 0
        """How many transactions of this process are open; one of them holds it, the others wait."""
        self.since: float | None = None
        """Since when it could not be had; None while it can. A monotonic time."""
        self._missed_at = -math.inf
        self._told = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """The code in this block is in a transaction that holds the lock."""
        self.held_here += 1
        try:
            with own_transaction(self._file):
                yield
        finally:
            self.held_here -= 1

    def check_free(self) -> None:
        """Refuse what would wait for its own caller."""
        if is_inside(self._file):
            raise UsageError(
                f"this runs in a transaction that holds the write lock of {self._name}, and would wait for itself: pass "
                "within=context.connection (commands take connection=), or do it when the transaction is over"
            )

    def missed(self) -> None:
        """Note that it was asked for and is taken."""
        now = time.monotonic()
        if self.since is None or now - self._missed_at > FORGOTTEN_SECONDS:
            self.since, self._told = now, False
        self._missed_at = now
        if not self._told and (trouble := self.trouble()) is not None:
            self._told = True
            _log.warning("%s: `fuser %s` shows who has the file open", trouble, self._file)

    def taken(self) -> None:
        """Note that it was to be had."""
        since, self.since = self.since, None
        if since is not None and self._told:
            _log.warning("the write lock of %s is free again after %s", self._name, _span(since))

    def trouble(self) -> str | None:
        """How long this process has been waiting for it and who holds it, where that is long."""
        since, now = self.since, time.monotonic()
        if since is None or now - self._missed_at > FORGOTTEN_SECONDS or now - since < LONG_SECONDS:
            return None
        holder = "a transactional handler of this process" if self.held_here else "another process"
        return f"waiting for the write lock of {self._name} for {_span(since)}: {holder} holds it"


def _span(since: float) -> str:
    return format_duration(timedelta(seconds=round(time.monotonic() - since)))
