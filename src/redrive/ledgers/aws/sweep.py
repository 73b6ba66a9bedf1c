"""The sweep: it looks at heads whose message should have come long ago, whatever became of it.

| the head | what is done |
| --- | --- |
| a part is long due | the next look is put off, and another message is sent |
| a holder's lease is over | its parts are taken over, to be settled as lost |
| it cannot be read | the next look is put off by an hour, and it is told in the log |

Every step is a conditional write or an extra message, so two sweeps at once are one. An index is always a little behind, so each head is
read strongly, and one whose look was put off meanwhile is left alone. All processes take turns: the turn's item says until when nobody
else need sweep, and with which shard to go on where a round left work.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from redrive.core.task import Claim
from redrive.errors import LedgerAwayError, LedgerError
from redrive.ledgers.aws.attributes import Item, Key, decode, from_micros, to_micros
from redrive.ledgers.aws.changes import revise, taken_over
from redrive.ledgers.aws.claim import AT_ONCE_MAX, ItemClaiming
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Update, query
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.heads import (
    SHARDS,
    Head,
    UnreadableHeadError,
    due_parts,
    head_id,
    head_ids,
    head_key,
    look_text,
    lost_parts,
)

SWEPT_MAX = 100
"""How many heads of a shard one round looks at."""
ROUND_MAX = 400
"""How many heads one round looks at before it leaves the rest to the next, which follows at once."""
LOOK_AGAIN = timedelta(seconds=120)
"""When a sweep looks again at what it has just sent another message for."""
SET_ASIDE = timedelta(hours=1)
"""When it looks again at what cannot be read: somebody may have corrected it."""


class ItemSweeping(ItemClaiming):
    """The part of the ledger that finds what was lost."""

    _sweep_at = -math.inf

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """See `Ledger.reclaim`. It also sends another message for what is long due, and looks only when it is its turn."""
        if limit < 1 or not self._handles(kinds) or time.monotonic() < self._sweep_at:
            return []
        self._sweep_at = time.monotonic() + self._sweep_every.total_seconds()
        first = await self._take_turn()
        return [] if first is None else await self._sweep_round(first, limit, lease)

    async def _sweep_round(self, first: int, limit: int, lease: timedelta) -> list[Claim]:
        now, found, looked, full = self._now(), list[Claim](), 0, list[int]()
        for shard in ((first + step) % SHARDS for step in range(SHARDS)):
            if looked >= ROUND_MAX or len(found) >= limit:
                full.append(shard)
                break
            asked = query(
                ("due_shard", f"due#{shard}"), ("look_at", "<=", look_text(now)), index="DueIndex", limit=SWEPT_MAX
            )
            items = await self.dynamo.query(asked, items_max=SWEPT_MAX)
            looked += len(items)
            if len(items) == SWEPT_MAX:
                full.append(shard)
            if items:
                found += await self._sweep_shard(items, limit - len(found), lease, now)
        if full:
            await self._leave_turn(full[0])
        return found

    async def _sweep_shard(self, items: Sequence[Item], limit: int, lease: timedelta, now: datetime) -> list[Claim]:
        heads, unreadable = await self._find_heads(head_ids(items))
        room = asyncio.Semaphore(AT_ONCE_MAX)

        async def swept(head: Head, most: int) -> Change | None:
            async with room:
                return await self._sweep(head, most, lease, now)

        await self._each(self._set_aside(item, now) for item in items if head_id(item) in unreadable)
        calls = []
        for head in heads.values():
            most = min(len(lost_parts(head, now, self._grace)), limit)
            limit -= most
            calls.append(swept(head, most))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        changes = [end for end in ends if isinstance(end, Change)]
        if not await self.is_paused():  # while a person holds all of it, more messages would only wait
            await self._send((one.after.id, now) for one in changes if due_parts(one.after, now - self._slack))
        claims = [claim for change in changes for claim in self._claims_of(change)]
        for head, end in zip(heads.values(), ends, strict=True):
            if isinstance(end, UnreadableHeadError):
                await self._set_aside(_due_entry(head), now)
            if isinstance(end, BaseException):
                if not isinstance(end, Exception) or (isinstance(end, LedgerAwayError) and not claims):
                    raise end
                if not isinstance(end, LedgerAwayError):
                    self._tell_trouble(head.id, end)
        return claims

    async def _sweep(self, head: Head, most: int, lease: timedelta, now: datetime) -> Change | None:
        """Take over what was lost at a head, and put off the next look at it."""
        fence = uuid4()

        def plan(seen: Head) -> Change | None:
            if seen.look_at is None or seen.look_at > now:
                return None  # somebody was here before; the index has not heard of it yet
            lost = lost_parts(seen, now, self._grace)
            parts = taken_over(seen, lost[:most], now, lease, fence)
            if len(parts) < len(lost) and not parts:
                return None  # for the next sweep
            change = revise(seen, parts, self._follower, now, self._slack, swept=LOOK_AGAIN)
            return change if parts or change.after.look_at != seen.look_at else None

        return await self._change(head, plan, lambda _: False)

    async def _set_aside(self, item: Item, now: datetime) -> None:
        """Look again at a head that cannot be read when somebody may have corrected it. Nothing else of it is touched."""
        look_at = decode(item["look_at"])
        update = Update(head_key(head_id(item))).require("look_at", "=", look_at)
        try:
            await self.dynamo.write([update.set("look_at", look_text(now + SET_ASIDE)).action()])
        except RefusedError:
            pass  # somebody was quicker
        except LedgerAwayError:
            raise
        except LedgerError as error:
            self._tell_trouble(head_id(item), error)

    # --- the turn -----------------------------------------------------------------------------------------------------

    @property
    def _turn_key(self) -> Key:
        return f"T#sweep#{self.name}", "T"

    async def _take_turn(self) -> int | None:
        """The shard to begin with, if it is our turn. If the answer was lost it may be another's: two at once are one."""
        turn = await self.dynamo.get(self._turn_key) or {}
        now, until = self._now(), decode(turn["held_until"]) if "held_until" in turn else None
        if until is not None and now < from_micros(until) <= now + 2 * self._sweep_every:
            return None  # whoever says that it lasts longer has a clock that is wrong
        update = Update(self._turn_key).set("held_until", to_micros(now + self._sweep_every))
        update = update.require_absent("held_until") if until is None else update.require("held_until", "=", until)
        try:
            await self.dynamo.write([update.action()])
        except RefusedError as error:
            if not error.uncertain:
                return None
        return int(decode(turn["shard"])) % SHARDS if "shard" in turn else 0

    async def _leave_turn(self, shard: int) -> None:
        """There is more: whoever sweeps next goes on at this shard, at once."""
        self._sweep_at = -math.inf
        update = Update(self._turn_key).set("shard", shard).set("held_until", to_micros(self._now()))
        await self.dynamo.write([update.action()])


def _due_entry(head: Head) -> Item:
    """What the index of what is due holds of a head."""
    assert head.look_at is not None
    return {"pk": {"S": head_key(head.id)[0]}, "sk": {"S": "E"}, "look_at": {"S": look_text(head.look_at)}}
