"""Gates of a ledger over items, as people see them.

Two lists have the gates by their names: those that hold, return or are paused, and the others. An index only says which there are: what is
shown is read from the table. When gates held is written down by whoever keeps the books, a few times in a minute.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from redrive.core.gate_rules import UNLIMITED, GateRule, most_specific
from redrive.core.pauses import is_of_kinds, pausing
from redrive.core.states import State
from redrive.core.task import GATE_CHARS_MAX, Task, check_text
from redrive.ledgers.aws.attributes import EPOCH, Item, from_iso, from_item, to_iso
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Delete, put, put_new, query
from redrive.ledgers.aws.gate_items import GateItem, RuleItem, gate_key, listing_of
from redrive.ledgers.aws.heads import line_of, look_text
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.operator.gates import (
    PAGE_MAX,
    PARKED_MAX,
    GateDoes,
    GateSpan,
    GateSums,
    GateView,
    ParkedMinute,
    ParkedTask,
    RuleView,
    began_at,
    changed_spans,
    does_of,
    read_gate_cursor,
    view_of,
    write_gate_cursor,
)
from redrive.ports import Page, check_limit

LOOKED_AT_MAX = 2_000
"""Gates that one page looks past when it asks for those that do one thing."""
SUMMED_MAX = 10_000
RECORDED_MAX = 1_000
"""Gates whose changes are recorded at once, and changes that are drawn at once."""
RECORD_EVERY_SECONDS = 5.0
FORGET_SPANS_AFTER = timedelta(days=2)


class ItemGates:
    """The gates of one ledger; see `Gates`."""

    def __init__(self, ledger: DynamoLedger) -> None:
        self._ledger = ledger

    # --- reading --------------------------------------------------------------------------------------------------------

    async def page(
        self, *, does: GateDoes | None = None, prefix: str = "", cursor: str | None = None, limit: int = 50
    ) -> Page[GateView]:
        """See `Gates.page`."""
        check_limit(limit, PAGE_MAX)
        if prefix:
            check_text("prefix", prefix, GATE_CHARS_MAX)
        (group, name), looked = (0, "") if cursor is None else read_gate_cursor(cursor), 0
        found = await self._paused_kinds(prefix, does) if cursor is None else []
        while len(found) < limit:
            names = await self._listed(group, name, prefix, limit + 1)
            for item in (await self._ledger.gate_items(names, anew=True)).values():
                if len(found) == limit:
                    break
                name, looked = item.gate.name, looked + 1
                if does is None or await self._does(item) is does:
                    found.append(item)
            else:
                if len(names) <= limit and group == 1:
                    return Page(items=await self._views(found))
                if len(names) <= limit:
                    group, name = 1, ""
                elif looked >= LOOKED_AT_MAX:
                    break
        return Page(items=await self._views(found[:limit]), cursor=write_gate_cursor(group, name))

    async def holding(self, *, limit: int = 20) -> list[GateView]:
        """See `Gates.holding`."""
        found = [*await self._paused_kinds(), *await self._holding()]
        return await self._views(found[:limit])

    async def one(self, name: str) -> GateView | None:
        """See `Gates.one`."""
        check_text("gate", name, GATE_CHARS_MAX)
        items = (await self._ledger.gate_items([name], anew=True)).values()
        return next(iter(await self._views([item for item in items if item.gate.version])), None)

    async def rules(self) -> list[RuleView]:
        """See `Gates.rules`."""
        rules = await self._ledger.rules(anew=True)
        versions = await self._ledger.last_deeds(rules)
        return [_rule_view(pattern, rules[pattern], versions) for pattern in sorted(rules)]

    async def rule_for(self, pattern: str) -> tuple[GateRule, int]:
        """See `Gates.rule_for`."""
        check_text("pattern", pattern, GATE_CHARS_MAX)
        rules = await self._ledger.rules(anew=True)
        version = (await self._ledger.last_deeds([pattern]))[pattern]
        holds = most_specific(rules, pattern)
        return UNLIMITED if holds is None else rules[holds].rule, version

    async def parked(self, task: Task) -> ParkedTask | None:
        """See `Gates.parked`."""
        if task.state is not State.WAITING:
            return None
        paused = pausing(await self._ledger.paused_kinds(), task.kind)
        if paused is not None:
            view = await self.one(paused)
            return None if view is None else ParkedTask(gate=view, before=None)
        view = None if task.gate is None else await self.one(task.gate)
        if view is None or view.waits_for is None:
            return None
        if task.due_at is not None and task.due_at > view.at and view.until is not None and task.due_at >= view.until:
            return None  # its own time comes later than that of its gate
        sooner = ("look_at", "<", look_text(task.due_at or EPOCH))
        asked = query(("due_shard", line_of(view.name)), sooner, index="DueIndex")
        before = await self._ledger.dynamo.count(asked, counted_max=PARKED_MAX + 1)
        return ParkedTask(gate=view, before=before)

    async def sums(self) -> GateSums:
        """See `Gates.sums`. What is held by those that let tasks through is not summed up: each of them would have to be read."""
        amounts = dict.fromkeys(GateDoes, 0)
        through = query(("listing", listing_of(self._ledger.name, holds=False)), index="ListIndex")
        amounts[GateDoes.LETTING_THROUGH] = await self._ledger.dynamo.count(through, counted_max=SUMMED_MAX)
        items = await self._holding(every=True)
        for item in [*await self._paused_kinds(), *items]:
            amounts[await self._does(item)] += 1
        return GateSums(amounts=amounts, held=sum(item.gate.held for item in items))

    async def _listed(self, group: int, after: str, prefix: str, limit: int) -> list[str]:
        listing = listing_of(self._ledger.name, holds=group == 0)
        sort = ("listing_at", "begins_with", prefix) if prefix else None
        start: Item | None = None
        if after:
            pk, sk = gate_key(self._ledger.name, after)
            places = {"listing": listing, "listing_at": after, "pk": pk, "sk": sk}
            start = {name: {"S": value} for name, value in places.items()}
        asked = query(("listing", listing), sort, index="ListIndex", limit=limit, start=start)
        return [item["listing_at"]["S"] for item in await self._ledger.dynamo.query(asked, items_max=limit)]

    async def _holding(self, *, every: bool = False) -> list[GateItem]:
        """The gates of the first list that hold, return or are paused; with `every`, also those for which that is over."""
        names = await self._listed(0, "", "", RECORDED_MAX)
        items = (await self._ledger.gate_items(names, anew=True)).values() if names else ()
        return [item for item in items if every or await self._does(item) is not GateDoes.LETTING_THROUGH]

    async def _paused_kinds(self, prefix: str = "", does: GateDoes | None = None) -> list[GateItem]:
        """The pauses of kinds that hold: one that is over is not a gate."""
        if does not in (None, GateDoes.PAUSED):
            return []
        pauses, now = await self._ledger.kind_pauses(), self._ledger.now()
        return [one for name, one in pauses.items() if name.startswith(prefix) and one.gate.is_paused(now)]

    async def _does(self, item: GateItem) -> GateDoes:
        return does_of(item.gate, await self._ledger.rule_of(item.gate.name), self._ledger.now())

    async def _views(self, items: Sequence[GateItem]) -> list[GateView]:
        if not items:
            return []
        rules, now, ledger = await self._ledger.rules(), self._ledger.now(), self._ledger.name
        patterns = {
            item.gate.name: None if is_of_kinds(item.gate.name) else most_specific(rules, item.gate.name)
            for item in items
        }
        named = {*patterns, *(pattern for pattern in patterns.values() if pattern is not None)}
        versions = await self._ledger.last_deeds(named)
        views = []
        for item in items:
            name, pattern = item.gate.name, patterns[item.gate.name]
            rule = None if pattern is None else _rule_view(pattern, rules[pattern], versions)
            gate = replace(item.gate, kinds=(ledger,), rule=pattern)
            parked = await self._parked(item)
            views.append(view_of(ledger, gate, rule, now, parked=parked, version=versions[name]))
        return views

    async def _parked(self, item: GateItem) -> int | None:
        if is_of_kinds(item.gate.name):
            return None
        if item.lined_up_at is None:
            return 0
        return await self._ledger.count_line(item.gate.name, counted_max=PARKED_MAX + 1)

    # --- over time ------------------------------------------------------------------------------------------------------

    @property
    def _spans(self) -> str:
        return f"GS#{self._ledger.name}"

    async def spans(self, names: Sequence[str], since: datetime) -> list[GateSpan]:
        """See `Gates.spans`."""
        if not names:
            return []
        asked = query(
            ("pk", self._spans), ("sk", "between", (f"E#{to_iso(since)}", "E$")), backwards=True, limit=RECORDED_MAX
        )
        ended = [_span_from(item) for item in await self._ledger.dynamo.query(asked, items_max=RECORDED_MAX)]
        spans = [*ended, *(await self._lasting()).values()]
        return sorted((one for one in spans if one.name in names), key=lambda one: one.began_at)

    async def _lasting(self) -> dict[str, GateSpan]:
        asked = query(("pk", self._spans), ("sk", "begins_with", "L#"), limit=RECORDED_MAX)
        found = map(_span_from, await self._ledger.dynamo.query(asked, items_max=RECORDED_MAX))
        return {one.name: one for one in found}

    async def parked_over(self, names: Sequence[str], since: datetime) -> Mapping[str, Sequence[ParkedMinute]]:  # noqa: ARG002
        """See `Gates.parked_over`. Nobody counts that here: each minute of each gate would be an item to write and to pay for."""
        return {}

    async def record(self) -> int:
        """See `Gates.record`. What is asked more often than every few seconds is answered with nothing."""
        if time.monotonic() - self._ledger.recorded_at < RECORD_EVERY_SECONDS:
            return 0
        self._ledger.recorded_at = time.monotonic()
        return await self.record_now()

    async def record_now(self) -> int:
        """The same, however lately somebody asked."""
        lasting, found = await self._lasting(), [*await self._paused_kinds(), *await self._holding()]
        gates = {item.gate.name: item for item in found}
        missing = [name for name in lasting if name not in gates]
        gates |= await self._ledger.gate_items(missing, anew=True) if missing else {}
        now, changes = self._ledger.now(), 0
        for name, item in gates.items():
            if name not in lasting and len(lasting) >= RECORDED_MAX:
                continue  # of more, nobody knows whether they are recorded already
            rule = await self._ledger.rule_of(name)
            does = does_of(item.gate, rule, now)
            seen = (does, began_at(item.gate, does), item.gate.paused_until)
            for one in changed_spans(name, seen, lasting.get(name), now):
                changes += await self._write(one, now)
        return changes

    async def _write(self, span: GateSpan, now: datetime) -> bool:
        """Write down the beginning of a span, or its end; whether nobody else has."""
        values = {"gate": span.name, "does": span.does.value, "began_at": to_iso(span.began_at)}
        lasts = self._spans, f"L#{span.name}"
        if span.ended_at is None:
            actions = [put_new(lasts, values)]
        else:
            expires = int((now + FORGET_SPANS_AFTER).timestamp())
            ended = {**values, "ended_at": to_iso(span.ended_at), "expires_at": expires}
            actions = [
                Delete(lasts).require("began_at", "=", to_iso(span.began_at)).action(),
                put((self._spans, f"E#{to_iso(span.ended_at)}#{span.name}"), ended),
            ]
        try:
            await self._ledger.dynamo.write(actions)
        except RefusedError as error:
            return error.uncertain
        return True


def _span_from(item: Item) -> GateSpan:
    values = from_item(item)
    ended = values.get("ended_at")
    return GateSpan(
        name=values["gate"], does=GateDoes(values["does"]), began_at=from_iso(values["began_at"]),
        ended_at=None if ended is None else from_iso(ended),
    )  # fmt: skip


def _rule_view(pattern: str, rule: RuleItem, versions: Mapping[str, int]) -> RuleView:
    return RuleView(
        pattern=pattern, rule=rule.rule, set_by=rule.set_by, reason=rule.reason, set_at=rule.set_at,
        version=versions.get(pattern, 0),
    )  # fmt: skip
