"""The numbers of charts, over items: minutes, samples, the census and the causes that it counts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from redrive.core.states import State
from redrive.ledgers.aws.attributes import EPOCH, Item, from_iso, from_item
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.expressions import put, query
from redrive.ledgers.aws.history import cause_partition
from redrive.ledgers.aws.reader import CENSUS
from redrive.ledgers.aws.table import TTL
from redrive.operator.aws.minutes import BY_HOUR, BY_MINUTE, ItemMinutes, Row, Rows, add_up, row_place, whole_hour
from redrive.operator.figures import HOUR, SUMMED, Depth, Group, Point, States, carried_on, flows_from
from redrive.ports import Clock

CAUSES_MAX = 1000
"""Groups looked at for each ledger."""


class ItemFigures(Rows):
    """The numbers of one table; see `Figures`."""

    def __init__(self, dynamo: Dynamo, *, clock: Clock | None = None) -> None:
        super().__init__(dynamo, clock=clock)
        self._minutes = ItemMinutes(dynamo, clock=clock)

    async def states(self) -> dict[str, States]:
        """See `Figures.states`."""
        found = {}
        for item in await self._dynamo.query(query(("pk", CENSUS))):
            counted = from_item(item)
            ledger, at = counted["sk"], from_iso(counted["counted_at"])
            flows = await self._minutes.sums([ledger], flows_from(at))
            changed = {name: int(flows[name]) - base for name, base in counted["base"].items()}
            found[ledger] = States(
                amounts=carried_on(_amounts(counted["amounts"]), changed),
                counted_at=at,
                oldest_due=_span(counted.get("oldest_due_seconds")),
            )
        return found

    async def ledgers(self) -> list[str]:
        """See `Figures.ledgers`."""
        return await self._minutes.ledgers()

    async def series(
        self, ledgers: Sequence[str], start: datetime, step: timedelta, names: Sequence[str] = SUMMED
    ) -> list[Point]:
        """See `Figures.series`."""
        rows = await self._minutes.rows(ledgers, start, by_hour=not step % HOUR)
        return [Point(start=begin, sums=add_up(some, names)) for begin, some in _steps(rows, step).items()]

    async def sums(self, ledgers: Sequence[str], start: datetime) -> Mapping[str, float]:
        """See `Figures.sums`."""
        return await self._minutes.sums(ledgers, start)

    async def depths(self, ledgers: Sequence[str], start: datetime, step: timedelta) -> list[Depth]:
        """See `Figures.depths`."""
        rows = await self._rows("S", ledgers, start, by_hour=not step % HOUR)
        depths = []
        for begin, some in _steps(rows, step).items():
            last = list({row.ledger: row.values for row in sorted(some)}.values())
            ages = [age for one in last if (age := one.get("oldest_due_seconds")) is not None]
            amounts = {state: sum(_amounts(one["amounts"])[state] for one in last) for state in State}
            depths.append(Depth(start=begin, amounts=amounts, oldest_due=_span(max(ages, default=None))))
        return depths

    async def groups(self, ledgers: Sequence[str], *, limit: int = 100) -> list[Group]:
        """See `Figures.groups`."""
        groups = []
        for ledger in ledgers:
            items = await self._dynamo.query(query(("pk", cause_partition(ledger))), items_max=CAUSES_MAX)
            groups += [group_of(ledger, item) for item in items]
        return sorted((one for one in groups if one.amount), key=lambda one: (-one.amount, one.id))[:limit]

    async def sample(self, ledger: str, amounts: Mapping[State, int], oldest_due: timedelta | None) -> None:
        """See `Figures.sample`. The last one of an hour is kept for long."""
        now = self._now()
        values = {
            "ledger": ledger,
            "amounts": {state.value: amounts.get(state, 0) for state in State},
            "oldest_due_seconds": None if oldest_due is None else oldest_due.total_seconds(),
        }
        minute = now.replace(second=0, microsecond=0)
        for span, at in ((BY_MINUTE, minute), (BY_HOUR, whole_hour(minute))):
            expires = {TTL: int((at + span.kept).timestamp())}
            await self._dynamo.write([put(row_place("S", span, ledger, at), values | expires)])

    async def fold(self, now: datetime) -> int:
        """See `Figures.fold`. What is older than it is kept goes by itself."""
        return await self._minutes.fold(now)


def group_of(ledger: str, item: Item) -> Group:
    """The group that an item stands for."""
    values = from_item(item)
    return Group(
        ledger=ledger,
        id=values["sk"],
        text=values["cause_text"],
        sample=values["cause_sample"],
        first_seen=from_iso(values["first_seen"]),
        last_seen=from_iso(values["last_seen"]),
        amount=values.get("amount", 0),
    )


def _steps(rows: Sequence[Row], step: timedelta) -> dict[datetime, list[Row]]:
    """The rows by the step of time that they lie in, in order."""
    found: dict[datetime, list[Row]] = defaultdict(list)
    for row in rows:
        found[EPOCH + (row.at - EPOCH) // step * step].append(row)
    return dict(sorted(found.items()))


def _amounts(written: Mapping[str, Any]) -> dict[State, int]:
    return {state: int(written.get(state.value, 0)) for state in State}


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
