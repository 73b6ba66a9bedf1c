"""How many requests a key may make in a minute, held by all processes together without a write per request.

Each process takes tokens of a key's minute from the store in blocks and hands them out from memory. The first few of a
minute it hands out on its own, and tells the store of them when it takes its first block: most keys ask seldom, and cost
no write at all. What a process has not used of its block when the minute ends is lost, which is why blocks are small:
with the default limit of 1,000 each process may leave or overdraw 2 % of it. Where there are many copies of a process, as
of a function, none hands out anything on its own: then no more than the limit passes, and each may leave 1 % of it.

Whoever only reads does not wait for that write: where the store does not take it, as SQLite does not while a stranger has locked the
file, reads go on without a limit, and what they used is told later.
"""

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime

from redrive.errors import LedgerAwayError
from redrive.systems.triggers.hosting import Hosting
from redrive.systems.triggers.ports import RateLimits, StoreClock

MINUTE_SECONDS = 60
READS_WAIT_SECONDS = 0.1
"""A request that only reads waits so long for a block, and passes then."""
KEYS_REMEMBERED_MAX = 100_000


class _Share:
    """What this process knows of one key's minute."""

    __slots__ = ("asking", "free", "late", "left", "minute", "spent", "used")

    def __init__(self, minute: int, free: int) -> None:
        self.minute = minute
        self.free = free
        self.used = 0
        self.left = 0
        self.spent = False
        self.asking: asyncio.Task[None] | None = None
        """However many wait for it, one block is taken."""
        self.late = False
        """Whether somebody has waited for it in vain: the others need not."""


class Limiter:
    """The limit of requests per key and minute."""

    def __init__(self, limits: RateLimits, clock: StoreClock, per_minute: int, hosting: Hosting = Hosting()) -> None:
        self._limits = limits
        self._clock = clock
        self._per_minute = per_minute
        self._block = max(1, per_minute // hosting.limit_shares)
        # Whole blocks only: a limit too small to be shared is asked for from the start.
        self._free = self._block if hosting.first_share_free and self._block > 1 else 0
        self._shares: dict[str, _Share] = {}

    async def wait_for(self, key_id: str, *, reads: bool = False) -> int | None:
        """Count a request of the key; None if it may be made, else the seconds until it may. `reads` says that it changes nothing."""
        now = self._clock.now()
        minute = _minute(now)
        share = self._shares.get(key_id)
        if share is None or share.minute != minute:
            share = self._new(key_id, minute)
        if share.used < share.free:
            share.used += 1
            return None
        while share.left <= 0 and not share.spent:  # again where others who waited too were quicker
            if not await self._asked(share, key_id, reads=reads):
                share.used += 1  # told with the next block
                return None
        if share.left <= 0:
            return _seconds_left(now)
        share.left -= 1
        return None

    async def _asked(self, share: _Share, key_id: str, *, reads: bool) -> bool:
        """Wait for the next block; False where a reader has waited long enough."""
        if share.asking is None or share.asking.done():
            share.late = False
            # A task of its own: one who stops waiting must not take the block away from the others.
            share.asking = asyncio.create_task(self._ask(share, key_id))
            share.asking.add_done_callback(_noted)
        if not reads:
            await asyncio.shield(share.asking)
            return True
        if not share.late:
            await asyncio.wait([share.asking], timeout=READS_WAIT_SECONDS)
        share.late = not share.asking.done()
        if share.late:
            return False
        try:
            share.asking.result()
        except LedgerAwayError:
            return False
        return True

    async def _ask(self, share: _Share, key_id: str) -> None:
        # The first block settles for what was handed out freely, which from then on stands in the store.
        told, share.used, share.free = share.used, 0, 0
        try:
            used = await self._limits.add(key_id, share.minute, told + self._block)
        except BaseException:
            share.used += told  # told again with the next block: better counted twice than not at all
            raise
        granted = max(0, min(self._block, self._per_minute - (used - self._block)))
        share.left += granted
        share.spent = granted < 1

    def _new(self, key_id: str, minute: int) -> _Share:
        if len(self._shares) >= KEYS_REMEMBERED_MAX:
            self._shares = {id_: share for id_, share in self._shares.items() if share.minute == minute}
        self._shares[key_id] = share = _Share(minute, self._free)
        return share


class Quota:
    """How many deliveries the events of a user may make in a minute, in all processes together.

    How many an event makes is known when it is taken in. So they are counted afterwards, told to the store in blocks, and whoever has made
    as many takes no more events in before the next minute: one request may go beyond.
    """

    def __init__(self, limits: RateLimits, clock: StoreClock, per_minute: int, hosting: Hosting = Hosting()) -> None:
        self.per_minute = per_minute
        self._limits = limits
        self._clock = clock
        self._block = max(1, per_minute // hosting.limit_shares)
        self._made: dict[str, _Made] = {}

    def wait_for(self, user_id: str) -> int | None:
        """None if more events of the user may be taken in, else the seconds until they may."""
        made = self._made.get(user_id)
        now = self._clock.now()
        if made is None or made.minute != _minute(now) or made.told + made.untold < self.per_minute:
            return None
        return _seconds_left(now)

    async def made(self, user_id: str, deliveries: int) -> None:
        """Count deliveries that were made."""
        if not deliveries:
            return
        minute = _minute(self._clock.now())
        made = self._made.get(user_id)
        if made is None or made.minute != minute:
            if len(self._made) >= KEYS_REMEMBERED_MAX:
                self._made = {id_: one for id_, one in self._made.items() if one.minute == minute}
            self._made[user_id] = made = _Made(minute)
        made.untold += deliveries
        if made.untold >= self._block:
            telling, made.untold = made.untold, 0
            made.told += telling  # at once: another request may come in while it is told
            try:
                made.told = max(made.told, await self._limits.add(f"deliveries:{user_id}", minute, telling))
            except LedgerAwayError:
                # The events are taken in: that this cannot be told now is no reason to refuse them.
                made.told -= telling
                made.untold += telling


@dataclass(slots=True)
class _Made:
    """What this process knows of the deliveries of a user's minute."""

    minute: int
    told: int = 0
    """By all processes, as far as this one has heard."""
    untold: int = 0


def _noted(asked: asyncio.Task[None]) -> None:
    if not asked.cancelled():
        asked.exception()  # whoever waits for it hears of it; readers have not waited


def _seconds_left(now: datetime) -> int:
    ends = datetime.fromtimestamp((_minute(now) + 1) * MINUTE_SECONDS, UTC)
    return math.ceil((ends - now).total_seconds())  # rounded up: whoever comes back then is let in


def _minute(now: datetime) -> int:
    return int(now.timestamp()) // MINUTE_SECONDS
