"""What the owner of heads does to them beside their tasks: changing facts, ending what waits, and forgetting a head for good.

Forgetting takes two steps. In one transaction the head becomes a tombstone, which is as good as nothing for everybody; then what is
left of it is deleted, the tombstone last. An index lists tombstones, so that somebody finishes what a crash cut short, and heads that
may be forgotten once they are old enough (`Followed.kept`). Deeds stay: they are the audit log.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from redrive.core.states import State
from redrive.errors import LedgerAwayError
from redrive.ledgers.aws.attributes import Item, to_iso
from redrive.ledgers.aws.base import TRIES_MAX, ItemBase
from redrive.ledgers.aws.changes import buried, revise
from redrive.ledgers.aws.client import ACTIONS_MAX, RefusedError
from redrive.ledgers.aws.expressions import Action, delete, query
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.heads import KEPT, SHARDS, TOMB, Head, head_from, head_key
from redrive.ledgers.aws.history import failure_action

AT_ONCE_MAX = 16
"""How many deletions are under way at once."""
BESIDE_MAX = ACTIONS_MAX - 2
"""How many actions go with those of the head and of a counter."""


class Amendment(NamedTuple):
    """What the owner wants of a head: other facts, and an end of some parts that wait."""

    facts: Mapping[str, Any]
    cancelled: Sequence[str] = ()


class Farewell(NamedTuple):
    """What goes in the same transaction as a head, and what is no longer counted."""

    beside: Sequence[Action]
    counts: Mapping[str, int]


class ItemOwning(ItemBase):
    """The part of the ledger that the owner of its heads acts through."""

    async def amend(self, id: str, plan: Callable[[Head, datetime], Amendment | None]) -> Head | None:
        """Change a head as planned; how it is then, None if there is no such head. The plan may be asked several times."""
        head = (await self.heads([id])).get(id)
        if head is None:
            return None
        now, last, late = self._now(), [head], list[Action]()

        def revised(seen: Head) -> Change | None:
            last[0] = seen
            wanted = plan(seen, now)
            if wanted is None:
                return None
            parts = {
                number: seen.parts[number]._replace(state=State.CANCELLED, due_at=None, updated_at=now)
                for number in wanted.cancelled
            }
            noted = [failure_action(seen, number, part, now) for number, part in parts.items()]
            actions = [action for action in noted if action is not None]
            late[:] = actions[BESIDE_MAX:]
            change = revise(seen, parts, self._follower, now, self._slack, beside=actions, facts=wanted.facts)
            # What does not fit comes after it. Whoever lets a line through takes out what does not belong there any more.
            return change._replace(actions=change.actions[: BESIDE_MAX + 1])

        change = await self._change(head, revised, lambda _: False)
        if change is None:
            # Either the plan has found nothing to do at the head as it is, or the head is gone.
            return last[0] if plan(last[0], now) is None else None
        with suppress(
            LedgerAwayError
        ):  # lists of what failed may show what has ended; whoever acts on it reads the head
            for action in late:
                await self.dynamo.write([action])
        return change.after

    async def forget(self, id: str, plan: Callable[[Head], Farewell | None]) -> bool:
        """Forget a head with all that belongs to it, if the plan says so; whether it was there and is forgotten."""
        head = (await self.heads([id])).get(id)
        for _ in range(TRIES_MAX):
            wanted = None if head is None else plan(head)
            if head is None or wanted is None:
                return False
            change = buried(head, self._now(), wanted.counts)
            try:
                await self.dynamo.write([*change.actions, *wanted.beside], {head.user_id: change.counts})
            except RefusedError as error:
                item = error.reasons[0].item
                fresh = None if item is None else head_from(item)
                if fresh is not None and not fresh.tombstone:
                    head = fresh
                    continue
                if not error.uncertain:  # somebody else has deleted it
                    return False
            self._known.pop(id, None)
            with suppress(LedgerAwayError):  # a tombstone is found again
                await self._clear(id)
            return True
        raise LedgerAwayError(f"{id!r} was changed by others {TRIES_MAX} times in a row: try again")

    async def clear_tombstones(self, before: datetime, limit: int) -> int:
        """Delete what is left of heads that were forgotten before an instant; how many there were."""
        ids = await self._shelved(TOMB, before, limit)
        for id_ in ids:
            await self._clear(id_)
        return len(ids)

    async def kept(self, before: datetime, limit: int) -> list[Head]:
        """Heads that may be forgotten, of which that was said before an instant."""
        return list((await self.heads(await self._shelved(KEPT, before, limit))).values())

    async def _shelved(self, shelf: str, before: datetime, limit: int) -> list[str]:
        asked = [
            query(("due_shard", f"{shelf}#{shard}"), ("look_at", "<", to_iso(before)), index="DueIndex", limit=limit)
            for shard in range(SHARDS)
        ]
        found = await asyncio.gather(*(self.dynamo.query(one, items_max=limit) for one in asked))
        return [item["pk"]["S"].removeprefix("E#") for items in found for item in items][:limit]

    async def _clear(self, id: str) -> None:
        key = head_key(id)
        room = asyncio.Semaphore(AT_ONCE_MAX)

        async def deleted(item: Item) -> None:
            async with room:
                await self.dynamo.write([delete((item["pk"]["S"], item["sk"]["S"]))])

        async for items in self.dynamo.pages(query(("pk", key[0]))):
            await asyncio.gather(*(deleted(item) for item in _belongings(items)))
        if self._objects is not None:
            await self._objects.delete(id)
        await self.dynamo.write([delete(key)])


def _belongings(items: Iterable[Item]) -> list[Item]:
    """What goes with a head: not the head itself, which goes last, nor its deeds, which stay."""
    return [item for item in items if item["sk"]["S"] != "E" and not item["sk"]["S"].startswith("H#")]
