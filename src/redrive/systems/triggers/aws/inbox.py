"""Events that were taken in, as their owners see them, over items.

A page is one question to the index of statuses, and then the heads and payloads themselves, read strongly: nothing stale is shown, but
what came in less than a second ago may be missing. How many there are stands in counters.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, NamedTuple

from redrive import State
from redrive.items import (
    Amendment,
    DynamoLedger,
    Farewell,
    Head,
    Item,
    delete,
    from_iso,
    from_item,
    head_from,
    head_key,
    query,
    task_id,
    to_iso,
)
from redrive.operator.aws.census import ItemCensus
from redrive.systems.triggers.aws import places
from redrive.systems.triggers.aws.payloads import Payloads
from redrive.systems.triggers.inbox import fitting
from redrive.systems.triggers.ports import StoreClock
from redrive.systems.triggers.status import STATUSES
from redrive.systems.triggers.values import (
    DeadDeliveries,
    DeliveryTry,
    FailedEvents,
    InboxPage,
    ListedEvent,
    StoredEvent,
)

INDEX_PAGE = 1000
INDEX_PAGES_MAX = 10
"""How many pages of the index one look goes through for what a filter leaves over; a short page has a cursor all the same."""
ATTEMPT_SHARDS = 8
FORGOTTEN_AT_ONCE = 100
FORGET_AT_ONCE_MAX = 10
LEFT_BEHIND = timedelta(minutes=2)
"""Whoever deletes an event has so long to finish it before somebody else does."""
OPEN = ("received", "queued")
PAGE_BYTES_MAX = 2 << 20
"""A function may answer 6 MB, in which quotation marks count twice."""


class _Entry(NamedTuple):
    """An event in the index."""

    place: str
    """Where it stands there, without its status: the cursor."""
    event_id: str
    event_type: str
    payload_bytes: int


class ItemInbox:
    """See `Inbox`."""

    def __init__(self, ledger: DynamoLedger, payloads: Payloads, clock: StoreClock) -> None:
        self._ledger = ledger
        self._payloads = payloads
        self._dynamo = ledger.dynamo
        self._clock = clock
        self._census = ItemCensus(ledger)

    # --- looking ----------------------------------------------------------------------------------------------------

    async def get(self, user_id: str, id: str) -> StoredEvent | None:
        """See `Inbox.get`."""
        found = await self._read([id])
        head, payload = found.get(id, (None, None))
        if head is None or payload is None or head.user_id != user_id:
            return None
        return places.read_event(head, payload)

    async def page(
        self, user_id: str, status: str, *, event_type: str | None, after: str | None, limit: int
    ) -> InboxPage:
        """See `Inbox.page`."""
        listed, total = await asyncio.gather(
            self._listed(user_id, status, event_type, after, limit + 1), self._total(user_id, status, event_type)
        )
        entries, looked_at, is_all = listed
        kept = entries[: fitting([entry.payload_bytes for entry in entries[:limit]], PAGE_BYTES_MAX)]
        found = await self._read([entry.event_id for entry in kept])
        events = [
            ListedEvent(head.id, head.facts["event_type"], head.created_at, payload)
            for head, payload in (found.get(entry.event_id, (None, None)) for entry in kept)
            # One that has changed since the index heard of it is shown under its status of now, or not at all.
            if head is not None and payload is not None and head.facts["status"] == status
        ]
        if len(entries) > len(kept):
            return InboxPage(events, kept[-1].place, True, total)
        return InboxPage(events, looked_at, not is_all, total)

    async def _listed(
        self, user_id: str, status: str, event_type: str | None, after: str | None, amount: int
    ) -> tuple[list[_Entry], str, bool]:
        """Events in the index, from behind a place on; how far it was looked at, and whether that is the end."""
        found: list[_Entry] = []
        for _ in range(INDEX_PAGES_MAX):
            asked = amount if event_type is None else INDEX_PAGE
            entries = await self._entries(user_id, status, after, asked)
            found += [entry for entry in entries if event_type in (None, entry.event_type)]
            after = entries[-1].place if entries else after
            if len(entries) < asked:
                return found[:amount], after or "", len(found) <= amount
            if len(found) >= amount:
                break
        return found[:amount], after or "", False

    async def _entries(self, user_id: str, status: str, after: str | None, limit: int) -> list[_Entry]:
        start = None
        if after is not None:
            values = {"user_id": user_id, places.INBOX_KEY: f"{status}#{after}", "pk": f"E#{after.rpartition('#')[2]}"}
            start = {name: {"S": value} for name, value in (values | {"sk": "E"}).items()}
        asked = query(
            ("user_id", user_id), (places.INBOX_KEY, "begins_with", f"{status}#"), index=places.INBOX, limit=limit,
            start=start,
        )  # fmt: skip
        return [_entry(item) for item in await self._dynamo.query(asked, items_max=limit)]

    async def _total(self, user_id: str, status: str, event_type: str | None) -> int | None:
        if event_type is not None:
            return None
        return max(0, (await self._ledger.counters(user_id)).get(status, 0))

    async def attempts(
        self, user_id: str, *, event_id: str | None = None, endpoint_id: str | None = None, limit: int = 100
    ) -> list[DeliveryTry]:
        """See `Inbox.attempts`."""
        if event_id is not None:
            head = (await self._ledger.heads([event_id])).get(event_id)
            if head is None or head.user_id != user_id:
                return []
            asked = query(("pk", places.payload_key(event_id)[0]), ("sk", "begins_with", "A#"))
            tries = [_try(item) for item in await self._dynamo.query(asked)]
            return sorted(tries, key=lambda one: (one.ended_at, one.number), reverse=True)[:limit]
        shards = [
            query(("endpoint_key", f"A#{endpoint_id}#{shard}"), index="EndpointIndex", backwards=True, limit=limit)
            for shard in range(ATTEMPT_SHARDS)
        ]
        found = await asyncio.gather(*(self._dynamo.query(one, items_max=limit) for one in shards))
        newest = merge(*found, key=lambda item: item["endpoint_at"]["S"], reverse=True)
        return [_try(item) for item, _ in zip(newest, range(limit), strict=False)]

    async def totals(self) -> dict[str, int]:
        """See `Inbox.totals`: as the census saw them, in which all processes take turns."""
        counters = await self._census.counters()
        return {word: counters.get(word, 0) for word in STATUSES}

    async def _read(self, ids: Sequence[str]) -> dict[str, tuple[Head, str | None]]:
        """Those of the events that are there, each with its payload: heads and payloads in the same questions."""
        items = await self._dynamo.get_many(key for id_ in ids for key in (head_key(id_), places.payload_key(id_)))
        heads = [head_from(items[head_key(id_)]) for id_ in ids if head_key(id_) in items]
        payloads = await self._payloads.read(items, ids)
        return {head.id: (head, payloads.get(head.id)) for head in heads if not head.tombstone}

    # --- acting -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, user_id: str, id: str) -> str | None:
        """See `Inbox.acknowledge`."""

        def plan(seen: Head, now: datetime) -> Amendment | None:
            if seen.user_id != user_id or seen.facts["status"] not in OPEN:
                return None
            # One that is under way finds the event acknowledged when it is tried again.
            waiting = [number for number, part in seen.parts.items() if part.state is State.WAITING]
            return Amendment({"acknowledged_at": to_iso(now)}, waiting)

        head = await self._ledger.amend(id, plan)
        if head is None or head.user_id != user_id:
            return None
        status: str = head.facts["status"]
        return status

    async def delete(self, user_id: str, id: str) -> bool:
        """See `Inbox.delete`."""
        return await self._ledger.forget(id, lambda seen: _farewell(seen) if seen.user_id == user_id else None)

    async def forget_delivered(self, before: datetime | None) -> int:
        """See `Inbox.forget_delivered`. It also finishes what others have begun to delete and left."""
        now = self._clock.now()
        await self._ledger.clear_tombstones(now - LEFT_BEHIND, FORGOTTEN_AT_ONCE)
        await self._payloads.clear_strays(now)
        if before is None:
            return 0
        room = asyncio.Semaphore(FORGET_AT_ONCE_MAX)

        def plan(seen: Head) -> Farewell | None:
            delivered_at = places.read_standing(seen.facts).delivered_at
            return _farewell(seen) if delivered_at is not None and delivered_at < before else None

        async def forget(head: Head) -> bool:
            async with room:
                return await self._ledger.forget(head.id, plan)

        old = await self._ledger.kept(before, FORGOTTEN_AT_ONCE)
        return sum(await asyncio.gather(*map(forget, old)))

    async def waiting(self, id: str) -> list[tuple[str, datetime | None]]:
        """See `Inbox.waiting`."""
        head = (await self._ledger.heads([id])).get(id)
        parts = [] if head is None else head.parts.values()
        return [(part.target, part.due_at) for part in parts if part.state is State.WAITING]

    async def dead_deliveries(self, user_id: str, id: str) -> DeadDeliveries:
        """See `Inbox.dead_deliveries`."""
        head = (await self._ledger.heads([id])).get(id)
        if head is None or head.user_id != user_id:
            return DeadDeliveries(None, [])
        return DeadDeliveries(head.facts["status"], _dead(head, None))

    async def failed(
        self,
        user_id: str,
        *,
        event_type: str | None,
        endpoint_id: str | None,
        since: datetime | None,
        until: datetime | None,
        limit: int,
    ) -> FailedEvents:
        """See `Inbox.failed`. What a filter leaves over is looked for in so many events; where there are more, it says so."""
        found: dict[str, list[str]] = {}
        after: str | None = None
        for _ in range(INDEX_PAGES_MAX):
            entries = await self._entries(user_id, "failed", after, INDEX_PAGE)
            heads = await self._ledger.heads(
                [entry.event_id for entry in entries if event_type in (None, entry.event_type)]
            )
            for head in sorted(heads.values(), key=lambda head: head.id):
                stands, dead = places.read_standing(head.facts), _dead(head, endpoint_id)
                if stands.failed_at is None or not dead or not _between(stands.failed_at, since, until):
                    continue
                if len(found) == limit:
                    return FailedEvents(found, True)
                found[head.id] = dead
            if len(entries) < INDEX_PAGE:
                return FailedEvents(found, False)
            after = entries[-1].place
        return FailedEvents(found, True)


def _entry(item: Item) -> _Entry:
    values = from_item(item)
    return _Entry(
        values[places.INBOX_KEY].partition("#")[2],
        values["pk"].removeprefix("E#"),
        values.get("event_type", ""),
        values.get("payload_bytes", 0),
    )


def _try(item: Item) -> DeliveryTry:
    values: dict[str, Any] = from_item(item)
    began = values.get("started_at")
    return DeliveryTry(
        event_id=values["pk"].removeprefix("E#"),
        endpoint_id=values["endpoint_id"],
        number=values["try_number"],
        started_at=None if began is None else from_iso(began),
        ended_at=from_iso(values["ended_at"]),
        duration_seconds=float(values["duration_s"]),
        outcome=values["outcome"],
        error_class=values.get("error_class"),
        error=values.get("att_error"),
        delay_seconds=values.get("delay_s"),
    )


def _farewell(head: Head) -> Farewell:
    """What goes with an event, and is no longer counted."""
    beside = [delete(places.payload_key(head.id))]
    if "idem" in head.facts:
        beside.append(delete(places.idempotency_key(head.user_id, head.facts["idem"])))
    return Farewell(beside, {head.facts["status"]: -1})


def _dead(head: Head, endpoint_id: str | None) -> list[str]:
    """The deliveries of an event that can be brought back, to one endpoint or to any."""
    return [
        task_id(head.id, number)
        for number, part in head.parts.items()
        if part.state is State.DEAD and endpoint_id in (None, part.target)
    ]


def _between(at: datetime, since: datetime | None, until: datetime | None) -> bool:
    return (since is None or at >= since) and (until is None or at < until)
