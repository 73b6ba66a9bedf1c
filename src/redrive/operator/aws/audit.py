"""The audit log over items: an index lists the deeds of each month, and what is shown is read from the table.

A page goes back month by month. The cursor says where in which month it ended, by the whole key of the entry: the many deeds of one act
have one instant.
"""

import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from redrive.errors import UsageError
from redrive.ledgers.aws.attributes import Item, from_iso, from_item
from redrive.ledgers.aws.expressions import query
from redrive.ledgers.aws.history import audit_listing
from redrive.ledgers.aws.on_table import OnTable, fits_key
from redrive.operator.audit import AuditEntry
from redrive.ports import Page

LOOKED_AT_MAX = 2_000
"""Entries of other ledgers that one page looks past."""
READ_AT_ONCE = 100
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
            for place in places:
                item = items.get((place.pk, place.sk))
                entry = None if item is None else _entry(item)
                if entry is not None and ledger in (None, entry.ledger):
                    if len(found) == limit:
                        return Page(items=found, cursor=_write_cursor(last))
                    found.append(entry)
                last = place
            looked_at += len(places)
        return Page(items=found)

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
                    yield [_Place(name, *(item[one]["S"] for one in ("listing_at", "pk", "sk"))) for item in items]
            if month <= EARLIEST:
                return
            month = month.replace(day=1) - AHEAD


def _index_key(listing: str, place: _Place) -> Item:
    named = {"listing": listing, "listing_at": place.at, "pk": place.pk, "sk": place.sk}
    return {name: {"S": value} for name, value in named.items()}


def _entry(item: Item) -> AuditEntry:
    values = from_item(item)
    return AuditEntry(
        id=f"{values['pk']}/{values['sk']}",
        ledger=values["ledger"],
        task_id=values["task_id"],
        at=from_iso(values["done_at"]),
        act=values["act"],
        actor=values["actor"],
        reason=values.get("reason", ""),
    )


def _write_cursor(place: _Place | None) -> str | None:
    if place is None:
        return None
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> _Place:
    try:
        told = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        place = _Place(*told)
        assert all(isinstance(one, str) and fits_key(one) for one in place)
        assert re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", place.month)
        assert place.month[:3] != "000"
    except (ValueError, TypeError, AssertionError, RecursionError):
        raise UsageError("the cursor is not one of ours: begin again without it") from None
    return place
