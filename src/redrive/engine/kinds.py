"""Which kinds a worker asks for: those it has handlers for, looked up in the ledger where a handler is a pattern."""

import math
import time

from redrive.engine.handlers import Handlers
from redrive.engine.pauses import Pauses
from redrive.ports import Ledger

FRESH_SECONDS = 0.25
"""How long a look into the ledger holds while there is work."""
PAGES_PER_LOOK = 3
"""How many pages of kinds a look turns to find one with a handler: each costs some milliseconds."""


class Kinds:
    """The kinds of one ledger that have handlers here. Others are left waiting for a worker that knows them."""

    def __init__(self, ledger: Ledger, handlers: Handlers, pauses: Pauses | None = None) -> None:
        """With `pauses` those are left out that a person has paused; whoever keeps house asks for all."""
        self._ledger = ledger
        self._handlers = handlers
        self._pauses = pauses
        self._found: list[str] = []
        self._found_at = -math.inf
        self._page_ended: str | None = None

    async def to_claim(self) -> list[str]:
        """The kinds to ask for."""
        if self._pauses is not None and not self._pauses.fresh:
            await self._pauses.look()
        known = self._known()
        if known is None:
            known = self._found = await self._look()
            self._found_at = time.monotonic()
        return known if self._pauses is None else self._pauses.without(known)

    async def _look(self) -> list[str]:
        """The kinds in the ledger that have handlers. Where there are more than it lists at once, some in each look.

        A kind that is named in full, or that begins as a pattern does, is in every look. Those of patterns that begin with a
        star come in turn, page after page; so do those with a prefix, in case the ledger sorts them apart.
        """
        first = await self._ledger.list_kinds()
        if first.cursor is None:
            return self._handlers.among(first.items)
        found = [*self._handlers.exact_kinds, *first.items]
        for prefix in self._handlers.prefixes:
            found += (await self._ledger.list_kinds(prefix=prefix)).items
        for _ in range(PAGES_PER_LOOK if self._handlers.has_open_patterns else 1):
            page = await self._ledger.list_kinds(after=self._page_ended or str(first.cursor))
            self._page_ended = None if page.cursor is None else str(page.cursor)
            found += page.items
            if self._page_ended is None or self._handlers.among(page.items):
                break
        return self._handlers.among(dict.fromkeys(found))

    def known(self) -> list[str] | None:
        """The kinds to ask for, as far as that is known without asking the ledger; None if it must be looked up again."""
        if self._pauses is None:
            return self._known()
        known = self._known() if self._pauses.fresh else None
        return None if known is None else self._pauses.without(known)

    def _known(self) -> list[str] | None:
        """The kinds with handlers, paused or not."""
        if not self._handlers.has_patterns:
            return self._handlers.exact_kinds
        return self._found if time.monotonic() - self._found_at < FRESH_SECONDS else None

    def forget(self) -> None:
        """Look again next time: nothing came of what was known."""
        self._found_at = -math.inf
