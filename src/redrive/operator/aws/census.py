"""How many deliveries are in which state, and why the dead ones died, counted in the background.

What is open and what has ended is the sum of all users' counters, which is exact: no item of a delivery is read for it. Which of the
open ones are held is seen in their heads, up to a limit. The dead are counted by cause in an index. In between the minutes tell what has
changed since, as for every other ledger; deliveries that were taken in are found here, and counted as added.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from redrive.core.states import State
from redrive.ledgers.aws.attributes import from_iso, from_item, to_iso
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Update, query
from redrive.ledgers.aws.heads import split_id
from redrive.ledgers.aws.history import (
    MINUTE_SHARDS,
    OPEN_COUNTER,
    cause_action,
    cause_partition,
    ended_counts,
    failure_key,
    minute_action,
)
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.reader import CENSUS
from redrive.ledgers.rollup import FLOWS
from redrive.operator.aws.figures import CAUSES_MAX, ItemFigures, group_of
from redrive.operator.aws.minutes import ItemMinutes
from redrive.operator.aws.turns import ItemTurns
from redrive.operator.census_pace import rest_after, turn_lasts
from redrive.operator.figures import Group, States, flows_from
from redrive.operator.kinds import WaitingKind

HEADS_MAX = 10_000
"""So many open events are looked at for deliveries that are held."""
CAUSES_AT_ONCE = 8
LISTED_MAX = 1_000
"""So many of the dead one census goes through for a cause that nobody has written down."""


class ItemCensus:
    """Counts one ledger; see `Census`."""

    def __init__(self, ledger: DynamoLedger, *, rest: Callable[[timedelta], timedelta] = rest_after) -> None:
        """`rest` tells how long nobody counts after a census that took so long."""
        self._ledger = ledger
        self._rest = rest
        self._dynamo = ledger.dynamo
        self._turns = ItemTurns(ledger.dynamo, clock=ledger)
        self._minutes = ItemMinutes(ledger.dynamo, clock=ledger)
        self._figures = ItemFigures(ledger.dynamo, clock=ledger)
        self._place = CENSUS, ledger.name

    async def take_if_due(self) -> bool:
        """See `Census.take_if_due`."""
        last, now = await self._last(), self._ledger.now()
        took = timedelta(seconds=0 if last is None else last["seconds"])
        if last is not None and timedelta(0) <= now - from_iso(last["counted_at"]) < self._rest(took):
            return False
        turn = f"census {self._ledger.name}"
        until = await self._turns.take(turn, turn_lasts(took))
        if until is None:
            return False
        try:
            return await self.take()
        finally:
            await self._turns.give_back(turn, until)

    async def take(self) -> bool:
        """See `Census.take`."""
        started, last = time.monotonic(), await self._last()
        counters = await self._ledger.all_counters()
        amounts = await self._amounts(counters)
        oldest = await self._ledger.oldest_due()
        mark = await self._store(last, amounts, counters, oldest, time.monotonic() - started)
        if mark is None:
            return False
        await self._figures.sample(self._ledger.name, amounts, oldest)
        walked = await self._count_groups(amounts[State.DEAD], None if last is None else last.get("walked"))
        took = Update(self._place).require("mark", "=", mark).set("seconds", time.monotonic() - started)
        await self._write(took.set("walked", walked))
        return True

    async def counters(self) -> dict[str, int]:
        """All users' counters as the last census saw them, which is taken now if it is due. Before the first they are added up."""
        await self.take_if_due()
        last = await self._last()
        return await self._ledger.all_counters() if last is None else dict(last["counters"])

    async def hurry(self) -> None:
        """See `Census.hurry`."""
        await self._write(Update(self._place).require_there().set("seconds", 0))

    async def amounts_now(self, counted: States) -> dict[State, int]:
        """See `Census.amounts_now`. Which ones are held is as the census saw it: no index tells."""
        return dict(counted.amounts)

    async def waiting(self, kinds: Sequence[str]) -> Mapping[str, WaitingKind]:  # noqa: ARG002
        """See `Census.waiting`: no index tells."""
        return {}

    # --- states -----------------------------------------------------------------------------------------------------

    async def _last(self) -> dict[str, Any] | None:
        item = await self._dynamo.get(self._place)
        return None if item is None else from_item(item)

    async def _amounts(self, counters: Mapping[str, int]) -> dict[State, int]:
        is_open = max(0, counters.get(OPEN_COUNTER, 0))
        held = (await self._ledger.open_counts(HEADS_MAX))[State.CLAIMED] if is_open else 0
        held = min(held, is_open)
        return {State.WAITING: is_open - held, State.CLAIMED: held, **ended_counts(counters)}

    async def _store(
        self,
        last: Mapping[str, Any] | None,
        amounts: Mapping[State, int],
        counters: Mapping[str, int],
        oldest: timedelta | None,
        seconds: float,
    ) -> str | None:
        """Write down what was counted; the mark of that, or None if somebody else has counted meanwhile."""
        name, now, mark = self._ledger.name, self._ledger.now(), uuid4().hex
        flows = await self._minutes.sums([name], flows_from(now))
        base = {flow: int(flows[flow]) for flow in FLOWS}
        others = await self._others(last, amounts, now)
        base["added"] += others  # they are in the amounts already
        update = Update(self._place)
        if last is None:
            update.require_absent("mark")
        else:
            update.require("mark", "=", last["mark"])
        values = {
            "counted_at": to_iso(now),
            "seconds": seconds,
            "oldest_due_seconds": None if oldest is None else oldest.total_seconds(),
            "amounts": {state.value: amount for state, amount in amounts.items()},
            "base": base,
            "counters": dict(counters),
            "mark": mark,
        }
        for one, value in values.items():
            update.set(one, value)
        actions = [update.action()]
        if others:
            minute = now.replace(second=0, microsecond=0)
            shard = random.randrange(MINUTE_SHARDS)
            actions.append(minute_action(minute, shard, name, "census", {"added": others}))
        try:
            await self._dynamo.write(actions)
        except RefusedError as error:
            item = error.reasons[0].item
            if not (error.uncertain and item is not None and from_item(item)["mark"] == mark):
                return None
        return mark

    async def _others(self, last: Mapping[str, Any] | None, amounts: Mapping[State, int], now: datetime) -> int:
        """How many tasks there are that nobody has counted as added since the last census; after a clock went back, none."""
        if last is None or now < from_iso(last["counted_at"]):
            return 0
        since = await self._minutes.sums([self._ledger.name], flows_from(from_iso(last["counted_at"])))
        ours = (since["added"] - last["base"]["added"]) - (since["pruned"] - last["base"]["pruned"])
        grown: int = sum(amounts.values()) - sum(last["amounts"].values())
        return max(0, grown - int(ours))

    async def _write(self, update: Update) -> None:
        with suppress(RefusedError):
            await self._dynamo.write([update.action()])

    # --- the dead ---------------------------------------------------------------------------------------------------

    async def _count_groups(self, dead: int, walked: str | None) -> str | None:
        """Count the dead by their causes; where one is missing, go through some of the dead. Returns where to go on."""
        known = await self._causes()
        if await self._count(known.values()) >= dead:
            return walked
        places = await self._ledger.dead_after(walked, LISTED_MAX)
        named = [place for place in map(split_id, places) if place is not None]
        for item in (await self._dynamo.get_many(failure_key(*place) for place in named)).values():
            failure = from_item(item)
            if failure.get("cause", "") not in known and "last_error" in failure:
                with suppress(RefusedError):
                    since = from_iso(failure["since"])
                    await self._dynamo.write([cause_action(self._ledger.name, failure["last_error"], since)])
        found = await self._causes()
        await self._count(group for id_, group in found.items() if id_ not in known)
        return places[-1] if len(places) == LISTED_MAX else None

    async def _causes(self) -> dict[str, Group]:
        asked = query(("pk", cause_partition(self._ledger.name)))
        items = await self._dynamo.query(asked, items_max=CAUSES_MAX)
        return {group.id: group for group in (group_of(self._ledger.name, item) for item in items)}

    async def _count(self, groups: Iterable[Group]) -> int:
        every, counted = list(groups), 0
        for start in range(0, len(every), CAUSES_AT_ONCE):
            counted += sum(await asyncio.gather(*map(self._count_group, every[start : start + CAUSES_AT_ONCE])))
        return counted

    async def _count_group(self, group: Group) -> int:
        places = await self._ledger.caused(group.id)
        times = [from_iso(place.partition("#")[0]) for place in (*places[:1], *places[-1:])]
        first, last = min([group.first_seen, *times]), max([group.last_seen, *times])
        if (len(places), first, last) != (group.amount, group.first_seen, group.last_seen):
            update = Update((cause_partition(self._ledger.name), group.id)).require_there()
            update.set("amount", len(places)).set("first_seen", to_iso(first)).set("last_seen", to_iso(last))
            await self._write(update)
        return len(places)
