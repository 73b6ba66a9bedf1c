"""Claiming: a message says which head to look at, and whoever got it takes what is due there.

| the head | what is done |
| --- | --- |
| parts are due | they are claimed as far as their gates let them through, and the others parked; if there are more than were asked for, another message is sent |
| a holder's lease is over | its parts are taken over, to be settled as lost |
| nothing is due, but a part waits for the instant of the message | a hop: sent anew with the rest of the delay |
| it cannot be read, and neither can a message | the message is left alone: after some receipts the queue puts it among the dead letters |
| anything else, or no head | the message is forgotten |

What was taken is answered, whatever becomes of the messages afterwards: one that was not deleted comes again and finds nothing to do.

What is parked is found by no message: it stands in the line of its gate (`gate_items`), and whoever claims looks at the lines of gates
that may let something through, before it looks for messages.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from redrive.core.durations import ZERO
from redrive.core.task import Claim, ClaimLost, Unwritten
from redrive.errors import LedgerAwayError, LedgerError
from redrive.ledgers.aws.attributes import from_micros, to_micros
from redrive.ledgers.aws.changes import revise, taken_over
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Update, query
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.gate_items import seen_of
from redrive.ledgers.aws.heads import (
    SHARDS,
    Head,
    due_parts,
    fence_in,
    head_ids,
    head_key,
    lost_parts,
    said_of,
    split_id,
    task_of,
    waiting_parts,
)
from redrive.ledgers.aws.passing import ItemPassing
from redrive.ledgers.aws.queue import BATCH_MAX, ReceivedMessage

ROUNDS_MAX = 100
"""How many batches of messages one claim looks at, where most of what they lead to is parked."""
AT_ONCE_MAX = 32
"""How many calls of one batch are under way at once."""
DUE_LOOKED_AT = 10
"""How many heads of each shard are looked at for the next due time."""


class ItemClaiming(ItemPassing):
    """The part of the ledger that hands tasks out."""

    async def claim(
        self,
        limit: int,
        lease: timedelta,
        *,
        kinds: Sequence[str] | None = None,
        fence: UUID | None = None,
        held: Callable[[], Iterable[Claim]] = tuple,
        gates: bool = True,
        busy: Sequence[str] | None = None,
    ) -> list[Claim]:
        """See `Ledger.claim`. A queue knows no tenants: nothing is for a reserve of slots."""
        if busy is not None:
            return []
        if not self._handles(kinds):
            self._arrivals.rest()
            return []
        claims: list[Claim] = []
        fence = fence or uuid4()
        try:
            if gates:
                claims += await self._let_through(limit, lease, fence)
            for _ in range(ROUNDS_MAX):
                left = limit - len(claims)
                messages = await self._arrivals.take(min(left, BATCH_MAX)) if left > 0 else ()
                if not messages:
                    break
                taken, some_parked = await self._look(messages, left, lease, fence, held)
                claims += taken
                if claims and some_parked:
                    break  # much may be: what was taken does not wait until all of it is parked
        except LedgerAwayError:
            if not claims:
                raise
            # What was taken is taken; whoever asks next hears of it.
        return claims

    async def _look(
        self,
        messages: Sequence[ReceivedMessage],
        limit: int,
        lease: timedelta,
        fence: UUID,
        held: Callable[[], Iterable[Claim]],
    ) -> tuple[list[Claim], bool]:
        """What these messages lead to, up to `limit`, and whether some of it was parked; those that were heeded are deleted."""
        readable = [(one, one.content) for one in messages if one.content is not None]
        if len(readable) < len(messages):
            self._tell_trouble(
                "a message", LedgerError("a message cannot be read: it is left to the dead-letter queue")
            )
        heads, unreadable = await self._find_heads({content.head_id for _, content in readable})
        now, sent, takes = self._now(), set[tuple[str, datetime]](), dict[str, int]()
        for _, content in readable:
            head = heads.get(content.head_id)
            if head is None or head.id in takes:
                continue
            wanted = len(due_parts(head, now)) + len(lost_parts(head, now, self._grace))
            if wanted:
                takes[head.id] = min(wanted, limit)
                limit -= takes[head.id]
                if takes[head.id] < wanted:
                    sent.add((head.id, now))
            else:
                hops = [part.due_at for part in waiting_parts(head).values() if part.due_at]
                sent |= {(head.id, hop) for hop in hops if to_micros(hop) == content.due}
        taking = [heads[id_] for id_, most in takes.items() if most]
        due = {head.id: due_parts(head, now)[: takes[head.id]] for head in taking}
        passes = await self._ask_gates(heads, due, fence, lease)
        taken = await asyncio.gather(
            *(self._take(head, takes[head.id], lease, fence, passes, held) for head in taking), return_exceptions=True
        )
        failed = {head.id: end for head, end in zip(taking, taken, strict=True) if isinstance(end, BaseException)}
        kept = {*unreadable, *failed}
        if not await self._send(sent):
            kept |= {id_ for id_, _ in sent}
        with suppress(LedgerError):
            await self.queue.delete([one for one, content in readable if content.head_id not in kept])
        claims = [claim for some in taken if not isinstance(some, BaseException) for claim in some]
        for id_, error in failed.items():
            if not isinstance(error, Exception) or (isinstance(error, LedgerAwayError) and not claims):
                raise error
            if not isinstance(error, LedgerAwayError):
                self._tell_trouble(id_, error)  # one head's failure: its message ends among the dead letters
        return claims, bool(passes.parked)

    async def recall(self, fence: UUID, lease: timedelta) -> list[Claim]:
        """See `Ledger.recall`. No index finds fences, but this process knows at which heads it has tried one."""
        heads = await self.heads(self._fences.get(fence, set()))
        now = self._now()

        def plan(seen: Head) -> Change | None:
            mine = [number for number, part in seen.parts.items() if part.fence == fence]
            if not mine:
                return None
            parts = taken_over(seen, mine, now, lease, fence)
            return revise(seen, parts, self._follower, now, self._slack, keep_look=True)

        changes = await self._each(self._change(head, plan, lambda _: True) for head in heads.values())
        claims = [
            Claim(
                task_of(change.after, number, self.name),
                fence,
                part.claimed_at or now,
                suspect=part.lost,
                unreadable=said_of(change.after, number),
            )
            for change in changes
            if change is not None
            for number, part in change.after.parts.items()
            if part.fence == fence
        ]
        gates = await self._extend_slots(claims, now + lease + self._grace, as_known=False)
        return [
            claim if claim.task.gate not in gates else claim._replace(seen=seen_of(gates[claim.task.gate], fence))
            for claim in claims
        ]

    async def next_due(self, *, kinds: Sequence[str] | None = None) -> timedelta | None:
        """See `Ledger.next_due`: among the first heads of each shard, and the lines of gates."""
        if not self._handles(kinds):
            return None
        asked = [query(("due_shard", f"due#{shard}"), index="DueIndex", limit=DUE_LOOKED_AT) for shard in range(SHARDS)]
        found = await asyncio.gather(*(self.dynamo.query(one, items_max=DUE_LOOKED_AT) for one in asked))
        heads = await self.heads(head_ids(item for items in found for item in items))
        waiting = [part for head in heads.values() for part in waiting_parts(head).values()]
        looks = [part.due_at for part in waiting if part.due_at is not None]
        looks += [self._now()] if self._woken else [from_micros(at) for _, at in await self._shelf(None, 1)]
        return max(min(looks) - self._now(), ZERO) if looks else None

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
            if fence_in(error.reasons[0].item, number) != str(alone.claim_id):
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
        await self._extend_slots(
            (claim for claim, held in zip(claims, kept, strict=True) if held), from_micros(until) + self._grace
        )
        return [ClaimLost(claim) for claim, held in zip(claims, kept, strict=True) if not held]
