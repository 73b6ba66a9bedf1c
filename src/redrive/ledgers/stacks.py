"""Which tracebacks a ledger has still to write: each process writes each of them once, before the first try that names it."""

from collections.abc import Iterable, Sequence
from time import monotonic

from redrive.core.decide import Settlement

REMEMBERED_SECONDS = 12 * 3600
"""Written again after so long, since those that grow old are forgotten."""
REMEMBERED_MAX = 1000


class NewStacks:
    """Remembers what was written."""

    def __init__(self) -> None:
        self._written: set[str] = set()
        self._forgets_at = monotonic() + REMEMBERED_SECONDS

    def among(self, settlements: Sequence[Settlement]) -> dict[str, str]:
        """The stacks of these settlements that were not written lately, by their ids."""
        if monotonic() > self._forgets_at or len(self._written) > REMEMBERED_MAX:
            self._written.clear()
            self._forgets_at = monotonic() + REMEMBERED_SECONDS
        found = dict[str, str]()
        for one in settlements:
            explained = one.explanation
            if explained is not None and (stack := explained.stack) is not None and stack.id not in self._written:
                found[stack.id] = stack.text
        return found

    def written(self, ids: Iterable[str]) -> None:
        """They are kept now."""
        self._written.update(ids)
