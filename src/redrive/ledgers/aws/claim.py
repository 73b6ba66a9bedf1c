"""Claiming: a message says which head to look at, and whoever got it takes what is due there.

| the head | what is done |
| --- | --- |
| parts are due | they are claimed; if there are more than were asked for, another message is sent |
| a holder's lease is over | its parts are taken over, to be settled as lost |
| nothing is due, but a part waits for the instant of the message | a hop: sent anew with the rest of the delay |
| anything else, or no head | the message is forgotten |

`reclaim` is the sweep: it looks at heads whose message should have come long ago, whatever became of it.
"""

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from redrive.core.durations import ZERO
from redrive.core.states import State
from redrive.core.task import Abandoned, Claim, ClaimLost, Unwritten
from redrive.ledgers.aws.attributes import Item, to_micros
from redrive.ledgers.aws.base import ItemBase
from redrive.ledgers.aws.changes import claimed, revise, taken_over
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Update, query
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.heads import (
    SHARDS,
    Head,
    due_parts,
    head_from,
    head_key,
    look_text,
    lost_parts,
    split_id,
    task_id,
    task_of,
)
from redrive.ledgers.aws.queue import BATCH_MAX, ReceivedMessage

FENCES_MAX = 256
"""How many claims can be recalled."""
AT_ONCE_MAX = 32
"""How many calls of one batch are under way at once."""
SWEPT_MAX = 100
"""How many heads of a shard one sweep looks at."""
SWEEP_EVERY = timedelta(seconds=10)
"""How often a process sweeps, however often it is asked to: each sweep asks every shard."""
LOOK_AGAIN = timedelta(seconds=120)
"""When a sweep looks again at what it has just sent another message for."""
DUE_LOOKED_AT = 10
"""How many heads of each shard are looked at for the next due time."""


class ItemClaiming(ItemBase):
    """The part of the ledger that hands tasks out."""

    _fences: OrderedDict[UUID, set[str]]
    _arrived: list[ReceivedMessage]
    _sweep_every: float
    _swept_at = -math.inf

    async def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        kinds: Sequence[str] | None = None,
        fence: UUID | None = None,
        held: Callable[[], Iterable[Claim]] = tuple,
        gates: bool = True,  # noqa: ARG002 - there are none
    ) -> list[Claim]:
        """See `Ledger.claim`."""
        claims: list[Claim] = []
        fence = fence or uuid4()
        while self._handles(kinds) and len(claims) < limit:
            left = limit - len(claims)
            messages = await self._receive(min(left, BATCH_MAX))
            if not messages:
                break
            claims += await self._look(messages, left, lease, fence, held)
        return claims

    async def _receive(self, limit: int) -> list[ReceivedMessage]:
        arrived = self._arrived[:limit]
        del self._arrived[:limit]  # the very list that a waiter fills
        return arrived or await self.queue.receive(limit, ZERO)

    async def _look(
        self,
        messages: Sequence[ReceivedMessage],
        limit: int,
        lease: timedelta,
        fence: UUID,
        held: Callable[[], Iterable[Claim]],
    ) -> list[Claim]:
        """What these messages lead to, up to `limit`; those that were heeded are deleted."""
        # One that cannot be read is left alone: after some receipts the queue puts it away by itself.
        readable = [(one, one.content) for one in messages if one.content is not None]
        heads = await self.heads({content.head_id for _, content in readable})
        now, sent, takes = self._now(), set[tuple[str, datetime]](), dict[str, int]()
        for _, content in readable:
            head = heads.get(content.head_id)
            if head is None or head.id in takes:
                continue
            due = due_parts(head, now)
            wanted = len(due) + len(lost_parts(head, now, self._grace))
            if wanted:
                takes[head.id] = min(wanted, limit)
                limit -= takes[head.id]
                if takes[head.id] < wanted:
                    sent.add((head.id, now))
            else:
                hops = [part.due_at for part in head.parts.values() if part.state is State.WAITING and part.due_at]
                sent |= {(head.id, hop) for hop in hops if to_micros(hop) == content.due}
        taking = [(heads[id_], most) for id_, most in takes.items() if most]
        taken = await asyncio.gather(
            *(self._take(head, most, lease, fence, held) for head, most in taking), return_exceptions=True
        )
        failed = {
            head.id: error for (head, _), error in zip(taking, taken, strict=True) if isinstance(error, BaseException)
        }
        if sent:
            await self._send(sorted(sent))
        await self.queue.delete([one for one, content in readable if content.head_id not in failed])
        claims = [claim for some in taken if not isinstance(some, BaseException) for claim in some]
        if failed and not claims:
            raise next(iter(failed.values()))
        return claims

    async def _take(
        self, head: Head, most: int, lease: timedelta, fence: UUID, held: Callable[[], Iterable[Claim]]
    ) -> list[Claim]:
        """Claim what is due of a head and take over what was lost, up to `most`."""
        now = self._now()
        own = {(claim.task.id, claim.claim_id) for claim in held()}

        def plan(seen: Head) -> Change | None:
            due = due_parts(seen, now)[:most]
            lost = [
                number
                for number in lost_parts(seen, now, self._grace)
                if (task_id(seen.id, number), seen.parts[number].fence) not in own
            ][: most - len(due)]
            parts = claimed(seen, due, fence, now, lease) | taken_over(seen, lost, now, lease)
            return revise(seen, parts, self._follower, now, self._slack, keep_look=True) if parts else None

        self._note_fence(fence, head.id)
        change = await self._change(head, plan, lambda seen: any(part.fence == fence for part in seen.parts.values()))
        return [] if change is None else self._claims_of(change)

    def _claims_of(self, change: Change) -> list[Claim]:
        """The claims that a change made, those that only bury a lost one marked."""
        claims = []
        for number, part in change.after.parts.items():
            before = change.before.parts[number]
            if part == before or part.state is not State.CLAIMED or part.fence is None:
                continue
            task = task_of(change.after, number, self.name)
            if before.state is State.WAITING:
                claims.append(Claim(task, part.fence, change.at, suspect=part.lost))
            else:
                lost = Abandoned(claim_id=part.fence, claimed_at=part.claimed_at, lost_alone=part.lost_alone)
                claims.append(Claim(task, part.fence, change.at, lost))
        return claims

    def _note_fence(self, fence: UUID, head_id: str) -> None:
        self._fences.setdefault(fence, set()).add(head_id)
        self._fences.move_to_end(fence)
        while len(self._fences) > FENCES_MAX:
            self._fences.popitem(last=False)

    async def recall(self, fence: UUID, lease: timedelta) -> list[Claim]:
        """See `Ledger.recall`. No index finds fences, but this process knows at which heads it has tried one."""
        heads = await self.heads(self._fences.get(fence, set()))
        now = self._now()

        def plan(seen: Head) -> Change | None:
            mine = [number for number, part in seen.parts.items() if part.fence == fence]
            if not mine:
                return None
            return revise(seen, taken_over(seen, mine, now, lease), self._follower, now, self._slack, keep_look=True)

        changes = await asyncio.gather(*(self._change(head, plan, lambda _: True) for head in heads.values()))
        return [
            Claim(task_of(change.after, number, self.name), fence, part.claimed_at or now, suspect=part.lost)
            for change in changes
            if change is not None
            for number, part in change.after.parts.items()
            if part.fence == fence
        ]

    # --- the sweep ----------------------------------------------------------------------------------------------------

    async def reclaim(self, limit: int, lease: timedelta, *, kinds: Sequence[str] | None = None) -> list[Claim]:
        """See `Ledger.reclaim`. It also sends another message for what is long due, and looks every `SWEEP_EVERY` only."""
        if limit < 1 or not self._handles(kinds):
            return []
        if time.monotonic() < self._swept_at + self._sweep_every:
            return []
        self._swept_at = time.monotonic()
        now, found = self._now(), list[Claim]()
        for shard in random.sample(range(SHARDS), SHARDS):
            asked = query(
                ("due_shard", f"due#{shard}"), ("look_at", "<=", look_text(now)), index="DueIndex", limit=SWEPT_MAX
            )
            items = await self.dynamo.query(asked, items_max=SWEPT_MAX)
            for head in (await self.heads(_head_ids(items))).values():
                found += await self._sweep(head, limit - len(found), lease, now)
        return found

    async def _sweep(self, head: Head, limit: int, lease: timedelta, now: datetime) -> list[Claim]:
        """Take over what was lost at a head, and send a message for what should have come."""

        def plan(seen: Head) -> Change | None:
            lost = lost_parts(seen, now, self._grace)
            parts = taken_over(seen, lost[:limit], now, lease)
            if len(parts) < len(lost) and not parts:
                return None  # for the next sweep
            change = revise(seen, parts, self._follower, now, self._slack, swept=LOOK_AGAIN)
            return change if parts or change.after.look_at != seen.look_at else None

        change = await self._change(head, plan, lambda _: False)
        if change is None:
            return []
        if due_parts(change.after, now - self._slack):
            await self._send([(head.id, now)])
        return self._claims_of(change)

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:
        """See `Ledger.next_due`: among the first heads of each shard."""
        if not self._handles(kinds):
            return None
        asked = [query(("due_shard", f"due#{shard}"), index="DueIndex", limit=DUE_LOOKED_AT) for shard in range(SHARDS)]
        found = await asyncio.gather(*(self.dynamo.query(one, items_max=DUE_LOOKED_AT) for one in asked))
        heads = await self.heads(_head_ids(item for items in found for item in items))
        waiting = [part for head in heads.values() for part in head.parts.values() if part.state is State.WAITING]
        first = min((part.due_at for part in waiting if part.due_at is not None), default=None)
        return None if first is None else max(first - self._now(), ZERO)

    # --- holding ------------------------------------------------------------------------------------------------------

    async def run_alone(self, claim: Claim) -> Claim | None:
        """See `Ledger.run_alone`."""
        alone = claim.alone()
        place = split_id(claim.task.id)
        if place is None:
            return None
        head_id, number = place
        update = Update(head_key(head_id)).require(("parts", number, "cl"), "=", str(claim.claim_id))
        try:
            await self.dynamo.write([update.set(("parts", number, "cl"), str(alone.claim_id)).action()])
        except RefusedError as error:
            item = error.reasons[0].item
            part = head_from(item).parts.get(number) if item else None
            if part is None or part.fence != alone.claim_id:
                return None
        self._known.pop(head_id, None)
        return alone

    async def extend(self, claims: Sequence[Claim], lease: timedelta) -> list[Unwritten]:
        """See `Ledger.extend`. It changes nothing that a status follows from, so it raises no version."""
        room, until = asyncio.Semaphore(AT_ONCE_MAX), to_micros(self._now() + lease)

        async def extended(claim: Claim) -> bool:
            place = split_id(claim.task.id)
            if place is None:
                return False
            head_id, number = place
            update = Update(head_key(head_id)).require(("parts", number, "cl"), "=", str(claim.claim_id))
            async with room:
                try:
                    await self.dynamo.write([update.set(("parts", number, "lu"), until).action()])
                except RefusedError:
                    return False
            return True

        kept = await asyncio.gather(*map(extended, claims))
        return [ClaimLost(claim) for claim, held in zip(claims, kept, strict=True) if not held]


def _head_ids(items: Iterable[Item]) -> list[str]:
    return [item["pk"]["S"].removeprefix("E#") for item in items if item["sk"]["S"] == "E"]
