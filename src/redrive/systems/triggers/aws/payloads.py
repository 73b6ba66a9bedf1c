"""Where payloads are kept: in an item beside the head, and large ones in a bucket, where there is one.

The object comes first, then the event that names it: an event is never without its payload. Whoever is killed in between leaves an object
that no event names. Names sort by the time of their making, so one look at each name, when it is an hour old, finds those objects. A rule
that deletes by age could not: failed events are kept until somebody deletes them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from redrive.errors import LedgerAwayError
from redrive.items import NAMES_MAX, Dynamo, Item, Key, Objects, decode, from_iso, head_key, put, to_iso
from redrive.systems.triggers.aws import places

IN_ITEM_MAX = 8_000
"""From here on S3 is cheaper: 16 write units cost more than one PUT and one GET."""
ITEM_BYTES_MAX = 400_000
"""An item holds 400 KiB with its keys."""
OBJECT_BYTES_MAX = 1 << 20
"""As much as a request may have, and less than a function may answer."""
AT_ONCE_MAX = 16
TAKING_MAX = timedelta(minutes=5)
"""Whoever has kept a payload has so long to store its event."""
STRAY_AFTER = timedelta(hours=1)
"""An object that has no event by then will never have one."""
LOOK_EVERY = timedelta(minutes=10)
PAGES_MAX = 10
"""How many thousand names one look goes through; the next one goes on."""
_LOOK: Key = ("T#payloads", "T")


class Payloads:
    """Payloads of events, by the ids of these."""

    def __init__(self, dynamo: Dynamo, objects: Objects | None) -> None:
        self._dynamo = dynamo
        self._objects = objects

    @property
    def bytes_max(self) -> int:
        """How large one may be."""
        return ITEM_BYTES_MAX if self._objects is None else OBJECT_BYTES_MAX

    async def keep(self, event_id: str, payload: str) -> dict[str, Any]:
        """Keep a payload; what its item says."""
        if self._objects is None or len(payload) <= IN_ITEM_MAX:
            return {"payload": payload}
        await self._objects.put(event_id, payload)
        return {"bucket": self._objects.bucket}

    async def read(self, items: Mapping[Key, Item], ids: Iterable[str]) -> dict[str, str]:
        """The payloads of these events, from their items; one that is not there is left out."""
        room = asyncio.Semaphore(AT_ONCE_MAX)

        async def read_one(event_id: str) -> tuple[str, str | None]:
            item = items.get(places.payload_key(event_id), {})
            if "bucket" not in item:
                return event_id, item["payload"]["S"] if item else None
            if self._objects is None or self._objects.bucket != decode(item["bucket"]):
                raise LedgerAwayError(
                    f"the payload of event {event_id} is in the bucket {decode(item['bucket'])}: set PAYLOAD_BUCKET to it"
                )
            async with room:
                return event_id, await self._objects.get(event_id)

        found = await asyncio.gather(*map(read_one, dict.fromkeys(ids)))
        return {event_id: payload for event_id, payload in found if payload is not None}

    async def discard(self, event_id: str) -> None:
        """Forget the payload of an event that was not stored. Where that fails, it is found later."""
        with suppress(LedgerAwayError):
            if self._objects is not None:
                await self._objects.delete(event_id)

    async def clear_strays(self, now: datetime) -> int:
        """Delete objects whose event was never stored; how many there were. Every name is looked at once, now and then by somebody."""
        if self._objects is None:
            return 0
        look = await self._dynamo.get(_LOOK) or {}
        if "looked_at" in look and now - LOOK_EVERY < from_iso(decode(look["looked_at"])) <= now:
            return 0
        after, strays = decode(look["after"]) if "after" in look else "", list[str]()
        for _ in range(PAGES_MAX):
            names = await self._objects.names(after)
            old = [name for name in names if _made_at(name) < now - STRAY_AFTER]
            known = await self._dynamo.get_many(head_key(name) for name in old)
            strays += [name for name in old if head_key(name) not in known]
            after = old[-1] if old else after
            if len(old) < NAMES_MAX:
                break
        for name in strays:
            await self._objects.delete(name)
        await self._dynamo.write([put(_LOOK, {"looked_at": to_iso(now), "after": after})])
        return len(strays)


def _made_at(name: str) -> datetime:
    """When the event of this name was made; the end of time for a name that is none of ours."""
    try:
        return datetime.fromtimestamp((UUID(name).int >> 80) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)
