"""The audit over items: an index lists the acts of each month, and what is shown is read from the table.

An act on one thing is its deed. One on several is an item of its own, and its deeds are on a list of its own. A page goes back month by
month. The cursor says where in which month it ended, by the whole key of the entry: several acts may have one instant.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from redrive.ledgers.aws.attributes import Item, Key, from_iso, from_item
from redrive.ledgers.aws.expressions import query
from redrive.ledgers.aws.history import act_listing, audit_listing
from redrive.ledgers.aws.on_table import OnTable, fits_key
from redrive.operator.audit import THINGS_NAMED_MAX, AuditEntry
from redrive.operator.cursors import decode_cursor, encode_cursor
from redrive.ports import Page

LOOKED_AT_MAX = 2_000
"""Entries of other ledgers that one page looks past."""
READ_AT_ONCE = 100
COUNTED_MAX = 10_000
"""What an act on more has changed is counted up to here."""
THINGS = "0001-01"
"""The month in a cursor of what one act has changed: it has none."""
EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""No deed over items is older than this code."""
AHEAD = timedelta(days=1)
"""Another process may have a clock that is ahead of ours, and begin the next month."""


class _Place(NamedTuple):
    """An entry of the index: its month, its place there, and its key in the table."""

    month: str
    at: str
    pk: str
    sk: str


class ItemAudit(OnTable):
    """The audit log of one table; see `Audit`."""

    async def page(self, ledger: str | None = None, *, cursor: str | None = None, limit: int = 100) -> Page[AuditEntry]:
        """See `Audit.page`."""
        found: list[AuditEntry] = []
        last, looked_at = None if cursor is None else _read_cursor(cursor), 0
        async for places in self._behind(last):
            if looked_at >= LOOKED_AT_MAX:
                return Page(items=found, cursor=_write_cursor(last))
            items = await self._dynamo.get_many((place.pk, place.sk) for place in places)
            entries = await self._entries(items)
            for place in places:
                entry = entries.get((place.pk, place.sk))
                if entry is not None and entry.amount and ledger in (None, entry.ledger):
                    if len(found) == limit:
                        return Page(items=found, cursor=_write_cursor(last))
                    found.append(entry)
                last = place
            looked_at += len(places)
        return Page(items=found)

    async def get(self, id: str) -> AuditEntry | None:
        """See `Audit.get`."""
        item = await self._item(id)
        return None if item is None else (await self._entries({_key_of(item): item}))[_key_of(item)]

    async def things(self, id: str, *, cursor: str | None = None, limit: int = 100) -> Page[str]:
        """See `Audit.things`."""
        item = await self._item(id)
        if item is None or "whole" not in item:
            return Page(items=[] if item is None else [item["task_id"]["S"]])
        return await self._of_act(item["whole"]["S"], cursor, limit)

    async def _of_act(self, whole: str, cursor: str | None, limit: int) -> Page[str]:
        """What is on the list of an act."""
        listing = act_listing(whole)
        start = None if cursor is None else _index_key(listing, _read_cursor(cursor))
        asked = query(("listing", listing), index="ListIndex", limit=limit + 1, start=start)
        places = [_place(THINGS, one) for one in await self._dynamo.query(asked, items_max=limit + 1)]
        found = await self._dynamo.get_many((place.pk, place.sk) for place in places[:limit])
        named = [found[place.pk, place.sk]["task_id"]["S"] for place in places[:limit] if (place.pk, place.sk) in found]
        return Page(items=named, cursor=_write_cursor(places[limit - 1]) if len(places) > limit else None)

    async def _item(self, id: str) -> Item | None:
        """The item that an id names, if it is one of the audit."""
        pk, slash, sk = id.rpartition("/")
        item = await self._dynamo.get((pk, sk)) if slash and fits_key(pk) and fits_key(sk) else None
        return item if item is not None and "act" in item and "done_at" in item else None

    async def _entries(self, items: Mapping[Key, Item]) -> dict[Key, AuditEntry]:
        """What items say, each act with how many things it has changed."""

        async def entry(item: Item) -> AuditEntry:
            if "whole" not in item:
                return _entry(item, 1, [item["task_id"]["S"]])
            whole = item["whole"]["S"]
            amount = await self._dynamo.count(
                query(("listing", act_listing(whole)), index="ListIndex"), counted_max=COUNTED_MAX
            )
            few = 0 < amount <= THINGS_NAMED_MAX
            return _entry(item, amount, (await self._of_act(whole, None, amount)).items if few else [])

        return dict(zip(items, await asyncio.gather(*map(entry, items.values())), strict=True))

    async def _behind(self, last: _Place | None) -> AsyncIterator[list[_Place]]:
        """The places behind this one, some at a time."""
        month = self._now() + AHEAD
        if last is not None:
            month = min(month, datetime.fromisoformat(f"{last.month}-01T00:00:00Z"))
        while True:
            listing = audit_listing(month)
            name = listing.partition("#")[2]
            start = None if last is None or last.month != name else _index_key(listing, last)
            asked = query(("listing", listing), index="ListIndex", backwards=True, limit=READ_AT_ONCE, start=start)
            async for items in self._dynamo.pages(asked):
                if items:
                    yield [_place(name, item) for item in items]
            if month <= EARLIEST:
                return
            month = month.replace(day=1) - AHEAD


def _place(month: str, item: Item) -> _Place:
    return _Place(month, *(item[one]["S"] for one in ("listing_at", "pk", "sk")))


def _key_of(item: Item) -> Key:
    return item["pk"]["S"], item["sk"]["S"]


def _index_key(listing: str, place: _Place) -> Item:
    named = {"listing": listing, "listing_at": place.at, "pk": place.pk, "sk": place.sk}
    return {name: {"S": value} for name, value in named.items()}


def _entry(item: Item, amount: int, things: Sequence[str]) -> AuditEntry:
    values = from_item(item)
    return AuditEntry(
        id="/".join(_key_of(item)),
        ledger=values["ledger"],
        at=from_iso(values["done_at"]),
        act=values["act"],
        actor=values["actor"],
        reason=values.get("reason", ""),
        origin=values.get("origin", ""),
        amount=amount,
        things=things,
        asked=json.loads(values.get("asked") or "{}"),
    )


def _write_cursor(place: _Place | None) -> str | None:
    return None if place is None else encode_cursor(place)


def _read_cursor(text: str) -> _Place:
    return decode_cursor(text, _checked)


def _checked(said: Any) -> _Place:
    place = _Place(*said)
    assert all(isinstance(one, str) and fits_key(one) for one in place)
    assert re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", place.month)
    assert place.month[:3] != "000"
    return place
