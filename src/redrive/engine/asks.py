"""What a worker has sent for: one claim at a time, in a task of its own, and what became of one whose answer was lost."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from uuid import uuid4

from redrive.core.task import Claim
from redrive.errors import LedgerAwayError
from redrive.ports import Ledger


class Asks:
    """The claim of one worker that is under way."""

    def __init__(self, ledger: Ledger, lease: timedelta, held: Callable[[], Iterable[Claim]]) -> None:
        self._ledger = ledger
        self._lease = lease
        self._held = held
        self._fence = uuid4()
        self._asking: asyncio.Task[list[Claim]] | None = None
        self.unheard = False
        """Whether the last claim may have taken something of which nobody has heard."""
        self.for_reserve = False
        """Whether it was for the reserve."""

    @property
    def under_way(self) -> bool:
        """Whether an answer is still to come."""
        return self._asking is not None

    def send(self, limit: int, kinds: Sequence[str], *, gates: bool = True, busy: Sequence[str] | None = None) -> None:
        """Claim up to so many; with `busy` for the reserve."""
        self._fence, self.for_reserve = uuid4(), busy is not None
        # A task of its own: a claim whose answer nobody awaits any more would hold its tasks until the lease ends.
        claiming = self._ledger.claim(
            limit, self._lease, kinds=kinds, fence=self._fence, held=self._held, gates=gates, busy=busy
        )
        self._asking = asyncio.create_task(claiming)

    def send_again(self) -> None:
        """Ask for what a claim may have taken whose answer was lost: it would be held, never run, and charged in the end."""
        self._asking = asyncio.create_task(self._ledger.recall(self._fence, self._lease))

    async def answer(self) -> list[Claim]:
        """What was sent for."""
        asking = self._asking
        assert asking is not None
        try:
            claims = await asyncio.shield(asking)
        except Exception as error:
            self._asking = None
            # Asked until the ledger answers; if it cannot, what was taken comes back by its lease.
            self.unheard = not self.unheard or isinstance(error, LedgerAwayError)
            raise
        self._asking, self.unheard = None, False  # not when cancelled: what comes then must be given back
        return claims

    async def end(self, patience_seconds: float) -> list[Claim]:
        """What the open claim brings in the end; if no answer comes in time, what it took is asked for once more."""
        if self._asking is None and not self.unheard:
            return []
        claims = None if self._asking is None else await self._in_time(patience_seconds)
        if claims is None:
            self.send_again()
            claims = await self._in_time(patience_seconds)
        return claims or []

    async def _in_time(self, seconds: float) -> list[Claim] | None:
        """The answer, if it comes before this process must end."""
        asking = self._asking
        assert asking is not None
        await asyncio.wait([asking], timeout=seconds)
        if asking.done() and not asking.cancelled() and asking.exception() is None:
            return asking.result()
        asking.cancel()
        return None
