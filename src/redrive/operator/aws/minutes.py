"""What each minute counted, over items: written by workers, folded here, and read as rows.

A worker adds to an item of its own, one of eight for each minute, which is on a list until it is folded: then it is gone, and what it
counted is added to two items of its ledger, one for the minute and one for the hour. The minutes of two days are kept, and the hours of
four hundred. So whatever range is asked for, it is a few queries.

What is being folded is neither missed nor counted twice: an item is deleted in the transaction that adds it elsewhere, and whoever finds
one gone that was on the list a moment ago looks again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from redrive.ledgers.aws.attributes import Item, Key, from_iso, from_item, to_iso
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Delete, Update, put, query
from redrive.ledgers.aws.history import MINUTES
from redrive.ledgers.aws.on_table import OnTable
from redrive.ledgers.aws.table import TTL
from redrive.operator.figures import FOLD_MINUTES_AFTER, FOLD_WORKERS_AFTER, FORGET_AFTER, HOUR, SUMMED

LOOKS_MAX = 3
"""How often what is being folded is looked for again; an index may list for a second what is gone."""
FOLDED_MAX = 2_000
"""How many items one call folds; the next one goes on."""
TOGETHER_MAX = 90
"""How many items one transaction folds, of the hundred actions that it may have."""
LEDGERS = "RL"
AHEAD = timedelta(days=1)
"""Clocks differ, and one of them may begin the next day."""


class Row(NamedTuple):
    """What was counted in a minute, or in an hour that is long ago."""

    at: datetime
    ledger: str
    values: Mapping[str, Any]


class Span(NamedTuple):
    """Kept for so long, in partitions of so many characters of an instant."""

    letter: str
    width: int
    kept: timedelta


BY_MINUTE, BY_HOUR = Span("M", 10, FOLD_MINUTES_AFTER + AHEAD), Span("H", 7, FORGET_AFTER)
"""Minutes in a partition for each day, hours in one for each month."""


class Rows(OnTable):
    """Items by ledger and time: those of the minutes of late, and those of all hours."""

    async def _rows(self, kind: str, ledgers: Sequence[str], start: datetime, *, by_hour: bool) -> list[Row]:
        """What is kept since `start`. Minutes are read as such only where they still are, and only if hours will not do."""
        now = self._now()
        cut, first = whole_hour(now) - FOLD_MINUTES_AFTER, whole_hour(start + HOUR - timedelta(microseconds=1))
        asked = [(BY_MINUTE, max(start, cut), first if by_hour else now + AHEAD)]
        asked.append((BY_HOUR, max(first, now - FORGET_AFTER), now + AHEAD if by_hour else cut))
        found = await asyncio.gather(
            *(
                self._dynamo.query(query(("pk", place), ("sk", "between", (to_iso(since), to_iso(before - TICK)))))
                for span, since, before in asked
                for ledger in ledgers
                for place in _partitions(f"{kind}{span.letter}#{ledger}", since, before, span.width)
            )
        )
        return [_row(item) for items in found for item in items]


TICK = timedelta(microseconds=1)


class ItemMinutes(Rows):
    """The minutes of one table."""

    async def rows(self, ledgers: Sequence[str], start: datetime, *, by_hour: bool) -> list[Row]:
        """What these ledgers counted since `start`."""
        for _ in range(LOOKS_MAX):
            listed = [key for key in await self._listed(">=", start) if key[1].startswith(tuple(map(_of, ledgers)))]
            folded = await self._rows("R", ledgers, start, by_hour=by_hour)
            items = await self._dynamo.get_many(listed)
            if len(items) == len(listed):
                break
        return [*folded, *(_unfolded(item) for item in items.values())]

    async def sums(self, ledgers: Sequence[str], start: datetime) -> dict[str, float]:
        """All that these ledgers counted since `start`, added up."""
        return add_up(await self.rows(ledgers, start, by_hour=True), SUMMED)

    async def ledgers(self) -> list[str]:
        """Every ledger in which anything was counted."""
        known = {item["sk"]["S"] for item in await self._dynamo.query(query(("pk", LEDGERS)))}
        return sorted(known | {sk.partition("#")[0] for _, sk in await self._listed(">=", self._now() - FORGET_AFTER)})

    async def fold(self, now: datetime) -> int:
        """Fold the minutes that nobody adds to any more; how many items went."""
        before = now.replace(second=0, microsecond=0) - FOLD_WORKERS_AFTER
        found = await self._dynamo.get_many((await self._listed("<", before))[:FOLDED_MAX])
        groups: dict[tuple[str, datetime], list[Item]] = defaultdict(list)
        for item in found.values():
            row = _unfolded(item)
            groups[row.ledger, row.at].append(item)
        folded = 0
        for ledger in {ledger for ledger, _ in groups}:
            await self._dynamo.write([put((LEDGERS, ledger), {})])
        for (ledger, minute), items in sorted(groups.items()):
            for start in range(0, len(items), TOGETHER_MAX):
                folded += await self._fold_some(ledger, minute, items[start : start + TOGETHER_MAX])
        return folded

    async def _fold_some(self, ledger: str, minute: datetime, items: Sequence[Item]) -> int:
        sums = add_up((_unfolded(item) for item in items), SUMMED)
        actions = []
        for span, at in ((BY_MINUTE, minute), (BY_HOUR, whole_hour(minute))):
            update = Update(row_place("R", span, ledger, at)).set("ledger", ledger)
            update.set(TTL, int((at + span.kept).timestamp()))
            for name, amount in sums.items():
                if amount:
                    update.add(name, amount)
            actions.append(update.action())
        for item in items:
            raw = Delete((item["pk"]["S"], item["sk"]["S"])).require("adds", "=", from_item(item)["adds"])
            actions.append(raw.action())
        try:
            await self._dynamo.write(actions)
        except RefusedError:  # somebody else has folded some of them, or added to one: the next call sees to it
            return 0
        return len(items)

    async def _listed(self, comparison: str, minute: datetime) -> list[Key]:
        """The items that are not folded yet, of the minutes since or before."""
        asked = query(("listing", MINUTES), ("listing_at", comparison, to_iso(minute)), index="ListIndex")
        return [(item["pk"]["S"], item["sk"]["S"]) for item in await self._dynamo.query(asked)]


def _of(ledger: str) -> str:
    return f"{ledger}#"


def row_place(kind: str, span: Span, ledger: str, at: datetime) -> Key:
    """Where a row is kept."""
    return f"{kind}{span.letter}#{ledger}#{to_iso(at)[: span.width]}", to_iso(at)


def _partitions(prefix: str, since: datetime, before: datetime, width: int) -> Iterator[str]:
    """The partitions that hold rows from one instant on to before another."""
    days = range((before - since) // AHEAD + 2) if since < before else ()
    names = dict.fromkeys(to_iso(since + day * AHEAD)[:width] for day in days)
    return (f"{prefix}#{name}" for name in names if name <= to_iso(before)[:width])


def _row(item: Item) -> Row:
    values = from_item(item)
    return Row(from_iso(values["sk"]), values["ledger"], values)


def _unfolded(item: Item) -> Row:
    values = from_item(item)
    return Row(from_iso(values["rolled_minute"]), values["ledger"], values)


def add_up(rows: Iterable[Row], names: Sequence[str]) -> dict[str, float]:
    """The rows, added up. Pure."""
    sums = dict.fromkeys(names, 0.0)
    for row in rows:
        for name in names:
            sums[name] += row.values.get(name, 0)
    return sums


def whole_hour(instant: datetime) -> datetime:
    """The hour that an instant lies in."""
    return instant.replace(minute=0, second=0, microsecond=0)
