"""How much of what is due can start: transactional handlers need a connection each, and a ledger has only so many.

A task that is claimed and then waits for a connection is kept from every other worker. So no more tasks of transactional kinds are
claimed than have a place. Where that is less than the free slots, those kinds and the others are claimed in turn, and neither waits
for the other.
"""

from redrive.engine.handlers import Handlers
from redrive.ports import Ledger


class Places:
    """The places for transactional handlers of one worker, which may share those of its ledger with others in the process."""

    def __init__(self, handlers: Handlers, ledger: Ledger, sharers: int = 1) -> None:
        self._handlers = handlers
        self._ledger = ledger
        self._sharers = sharers
        self._taken = 0
        self._short = False
        self._in_turns = False
        self._turn = False

    @property
    def counted(self) -> bool:
        """Whether there are transactional handlers at all; for others nothing here costs anything."""
        return self._handlers.has_transactional

    def portion(self, free: int, kinds: list[str]) -> tuple[int, list[str]]:
        """How many tasks of which kinds to claim next, of those that have handlers, where so many slots are free."""
        self._short = self._in_turns = False
        if not self.counted:
            return free, kinds
        left = max(1, self._ledger.transactions_max // self._sharers) - self._taken
        if left >= free:
            return free, kinds
        transactional, others = self._split(kinds)
        if not transactional:
            return free, kinds
        if left <= 0:
            self._short = True
            return (free if others else 0), others
        if not others:
            return left, transactional
        self._in_turns, self._turn = True, not self._turn
        return (left, transactional) if self._turn else (free, others)

    @property
    def is_half(self) -> bool:
        """Whether the last portion was the first half of the kinds."""
        return self._in_turns and self._turn

    def others_left(self) -> bool:
        """Whether nothing came of one half of the kinds, and the other half has not been asked since."""
        again, self._in_turns = self.is_half, False
        return again

    def startable(self, kinds: list[str]) -> list[str]:
        """The kinds whose tasks could start now: what waits for a place is not what an idle worker waits for."""
        return self._split(kinds)[1] if self._short else kinds

    def take(self) -> None:
        """A transactional handler starts."""
        self._taken += 1

    def give_back(self) -> bool:
        """One has ended; whether somebody may wait for its place."""
        self._taken -= 1
        return self._short

    def _split(self, kinds: list[str]) -> tuple[list[str], list[str]]:
        transactional: list[str] = []
        others: list[str] = []
        for kind in kinds:
            handler = self._handlers.find(kind)
            (transactional if handler is not None and handler.transactional else others).append(kind)
        return transactional, others
