"""Which kinds a worker asks for: those it has handlers for, looked up in the ledger where a handler is a pattern."""

import math
import time

from redrive.engine.handlers import Handlers
from redrive.ports import Ledger

FRESH_SECONDS = 0.25
"""How long a look into the ledger holds while there is work."""


class Kinds:
    """The kinds of one ledger that have handlers here. Others are left waiting for a worker that knows them."""

    def __init__(self, ledger: Ledger, handlers: Handlers) -> None:
        self._ledger = ledger
        self._handlers = handlers
        self._found: list[str] = []
        self._found_at = -math.inf

    async def to_claim(self) -> list[str]:
        """The kinds to ask for."""
        known = self.known()
        if known is None:
            known = self._found = self._handlers.among(await self._ledger.open_kinds())
            self._found_at = time.monotonic()
        return known

    def known(self) -> list[str] | None:
        """The kinds to ask for, as far as that is known without asking the ledger; None if it must be looked up again."""
        if not self._handlers.has_patterns:
            return self._handlers.exact_kinds
        return self._found if time.monotonic() - self._found_at < FRESH_SECONDS else None

    def forget(self) -> None:
        """Look again next time: nothing came of what was known."""
        self._found_at = -math.inf
