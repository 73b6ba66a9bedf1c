"""Gates over items: their limits, their slots, what settlements say of them, and what people do to them.

A gate's item is read, asked, and written where nobody has changed it meanwhile; whoever is refused gets it as it is and asks again. It
is never part of the transaction that claims or settles: a slot is taken before the claim and given back after the settlement, and
comes back by its own lease if that never happens. Gates and limits are read again after half a second, so a change of either is obeyed
by every process within a second.
"""

import asyncio
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from redrive.core.decide import Settlement
from redrive.core.durations import Span, read_span
from redrive.core.gate_rules import UNLIMITED, GateRule, fits, most_specific
from redrive.core.gates import Gate, fence_of, paused, resumed, room
from redrive.core.pauses import is_of_kinds, pausing
from redrive.core.task import GATE_CHARS_MAX, Claim, check_text
from redrive.errors import LedgerAwayError, StaleError, UsageError
from redrive.ledgers.aws.attributes import Item, from_item
from redrive.ledgers.aws.base import TRIES_MAX, ItemBase
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Action, Delete, Update, query
from redrive.ledgers.aws.gate_items import (
    GateItem,
    RuleItem,
    answered,
    board_of,
    check_limits,
    deed_of,
    deeds_key,
    entered,
    extended,
    forgets_line,
    gate_action,
    gate_from,
    gate_key,
    is_noted,
    left,
    lined_up,
    look_of,
    rule_action,
    rule_from,
    shelf_of,
    shown,
    slot_name,
)
from redrive.ledgers.aws.heads import look_text
from redrive.ledgers.aws.history import audit_action
from redrive.ports import Actor

CODE = "code"
"""Who has set a rule that stands in code: it may be changed by code, and what a person has set may not."""
NO_REASON = "say why: whoever finds the gate like this will ask"
KNOWN_GATES_MAX = 10_000
"""How many gates are remembered as they were last seen."""
SHELF_LOOKED_AT = 100
"""How many gates with a line one look finds."""
WOKEN_MAX = 1_000
"""How many gates with a line are looked at because their limits have changed; the others by their time."""
AT_ONCE_MAX = 32
GATES_FRESH = timedelta(seconds=0.5)
TELL_WITHIN = timedelta(seconds=0.2)
"""Enough for a thousand gates, at 5 ms and 32 at once."""

GatePlan = Callable[[GateItem, GateRule, datetime], GateItem | None]
"""From a gate, its limits and the instant to what it is then; None where nothing is to be written."""


class ItemGating(ItemBase):
    """The part of the ledger that keeps its gates."""

    has_gates = True
    _shelf_at = -math.inf
    _board_at = -math.inf
    recorded_at = -math.inf
    """When somebody in this process last wrote down what gates do."""

    def __init__(
        self, *given: Any, gates_fresh: timedelta = GATES_FRESH, tell_within: timedelta = TELL_WITHIN, **more: Any
    ) -> None:
        """`gates_fresh` is how long a gate, or the limits, may be gone by without reading them again, and `tell_within` how long whoever
        settles waits until gates are told."""
        super().__init__(*given, **more)
        self._gates_fresh = gates_fresh
        self._tell_within = tell_within
        self._telling: set[asyncio.Future[None]] = set()
        self._gates_known: OrderedDict[str, tuple[Item | None, float]] = OrderedDict()
        self._rules_known: Mapping[str, RuleItem] = {}
        self._board_asked: asyncio.Future[Any] | None = None
        self._rule_names: dict[str, GateRule] = {}
        self._woken: dict[str, None] = {}

    async def uses_gates(self, *, anew: bool = False) -> bool:  # noqa: ARG002
        """See `Ledger.uses_gates`: each target is a gate."""
        return True

    async def discover(self, *, lately: bool = False) -> int:  # noqa: ARG002
        """See `Ledger.discover`: a gate needs no row before it is limited."""
        return 0

    async def keep_gates(self, *, recount: bool) -> int:  # noqa: ARG002
        """See `Ledger.keep_gates`: no task here has a deadline of its own, and slots have leases."""
        return 0

    # --- reading --------------------------------------------------------------------------------------------------------

    async def rules(self, *, anew: bool = False) -> Mapping[str, RuleItem]:
        """All limits, by their patterns."""
        if anew:
            await self.kind_pauses()
        elif time.monotonic() - self._board_at >= self._gates_fresh.total_seconds():
            # Many ask at once when a batch is settled: one of them asks for all.
            if self._board_asked is None or self._board_asked.get_loop() is not asyncio.get_running_loop():
                self._board_asked = asyncio.ensure_future(self.kind_pauses())
                self._board_asked.add_done_callback(self._board_answered)
            await asyncio.shield(self._board_asked)
        return self._rules_known

    def _board_answered(self, asked: "asyncio.Future[Any]") -> None:
        self._board_asked = None
        if not asked.cancelled():
            asked.exception()  # whoever waits for it hears of it

    async def kind_pauses(self) -> dict[str, GateItem]:
        """The pauses of kinds, also those that are over; the same question answers what limits there are."""
        at, now = time.monotonic(), self._now()
        items = {item["sk"]["S"]: item for item in await self.dynamo.query(query(("pk", board_of(self.name))))}
        rules = {name: rule_from(item) for name, item in items.items() if not is_of_kinds(name)}
        if rules != self._rules_known:
            self._rules_known = rules
            self._rule_names.clear()
        self._board_at = at
        return {name: gate_from(item, name, now) for name, item in items.items() if is_of_kinds(name)}

    async def rule_of(self, name: str) -> GateRule:
        """The limits of a gate."""
        rules = await self.rules()
        rule = self._rule_names.get(name)
        if rule is None:
            pattern = most_specific(rules, name)
            rule = UNLIMITED if pattern is None else rules[pattern].rule
            if len(self._rule_names) >= KNOWN_GATES_MAX:
                self._rule_names.clear()
            self._rule_names[name] = rule
        return rule

    async def gate_rules(self) -> dict[str, GateRule]:
        """The limits of this ledger's gates, by their patterns."""
        return {pattern: one.rule for pattern, one in (await self.rules(anew=True)).items()}

    async def gate_items(self, names: Iterable[str], *, anew: bool = False) -> dict[str, GateItem]:
        """These gates, read strongly unless they were just seen; one that has no item lets everything through."""
        wanted, now = list(dict.fromkeys(names)), time.monotonic()
        fresh = self._gates_fresh.total_seconds()
        old = [name for name in wanted if anew or now - self._gates_known.get(name, (None, -math.inf))[1] >= fresh]
        found = await self.dynamo.get_many([gate_key(self.name, name) for name in old]) if old else {}
        for name in old:
            self._know_gate(name, found.get(gate_key(self.name, name)), now)
        at = self._now()
        return {name: gate_from(self._gates_known[name][0], name, at) for name in wanted}

    def _last_seen(self, name: str) -> GateItem:
        """A gate as this process last saw it."""
        return gate_from(self._gates_known.get(name, (None, 0.0))[0], name, self._now())

    def _know_gate(self, name: str, item: Item | None, at: float) -> None:
        known = self._gates_known.get(name, (None, 0.0))[0]
        if known and item and int(item["ver"]["N"]) < int(known["ver"]["N"]):
            return  # it was read before a write of ours
        self._gates_known[name] = (item, at)
        self._gates_known.move_to_end(name)
        while len(self._gates_known) > KNOWN_GATES_MAX:
            self._gates_known.popitem(last=False)

    async def gates(self, names: Sequence[str]) -> list[tuple[Gate, GateRule]]:
        """Those of these gates that there are, with their limits."""
        items = await self.gate_items(names, anew=True)
        now = self._now()
        there = [(item, await self.rule_of(name)) for name, item in items.items() if item.gate.version]
        return [(shown(item, rule, now), rule) for item, rule in there]

    async def gate(self, name: str) -> tuple[Gate, GateRule] | None:
        """A gate with its limits; None where there is none."""
        return next(iter(await self.gates([name])), None)

    async def paused_kinds(self) -> list[str]:
        """See `Ledger.paused_kinds`: in one question for all of them."""
        now = self._now()
        items = await self.kind_pauses()
        return [name for name, item in items.items() if item.gate.is_paused(now)]

    async def is_paused(self) -> bool:
        """Whether a person has paused all that is kept here."""
        return pausing(await self.paused_kinds(), self.name) is not None

    # --- changing -------------------------------------------------------------------------------------------------------

    async def _change_gate(
        self, name: str, plan: GatePlan, *, hurried: bool = False, as_known: bool = False, anew: bool = False
    ) -> GateItem:
        """Change a gate as planned; how it is then. If it is `hurried`, everybody looks at its line at once.

        Whoever only writes down what has happened begins with the gate `as_known` here, however old: a refusal brings the one that is there.
        """
        known = as_known and name in self._gates_known
        before = self._last_seen(name) if known else (await self.gate_items([name], anew=anew))[name]
        for _ in range(TRIES_MAX):
            now, rule = self._now(), await self.rule_of(name)
            after = plan(before, rule, now)
            if after is None:
                return before
            after = self._marked(after, rule, now, hurried=hurried)
            fresh = await self._put_gate(gate_action(self.name, before, after), name, after.mark)
            if fresh is None:
                return after._replace(gate=_raised(before, after))
            before = fresh
        raise LedgerAwayError(f"gate {name!r} was changed by others {TRIES_MAX} times in a row: try again")

    def _marked(self, after: GateItem, rule: GateRule, now: datetime, *, hurried: bool = False) -> GateItem:
        look_at = look_of(after, rule, now)
        return after._replace(mark=uuid4().hex, look_at=look_at if look_at is None or not hurried else now)

    async def _put_gate(self, action: Action, name: str, mark: str) -> GateItem | None:
        """Write a gate; None if it was written, else how it is."""
        at = time.monotonic()
        try:
            await self.dynamo.write([action])
        except RefusedError as error:
            item = error.reasons[0].item or await self.dynamo.get(gate_key(self.name, name))
            self._know_gate(name, item, at)
            fresh = gate_from(item, name, self._now())
            return None if error.uncertain and fresh.mark == mark else fresh
        self._know_gate(name, action["Put"]["Item"], at)
        return None

    async def _enter(
        self, name: str, wanted: int, fence: UUID, until: datetime, *, from_line: bool = False
    ) -> tuple[int, GateItem]:
        """Take up to so many slots of a gate; how many there were, and how it is then.

        What finds no slot is going to be parked, and that is written down in the same write. Where others stand in the line, what does
        not come from there joins it.
        """
        granted = 0

        def plan(item: GateItem, rule: GateRule, now: datetime) -> GateItem | None:
            nonlocal granted
            granted = 0 if item.has_line and not from_line else room(item.gate, rule, now, wanted)
            after = item
            if granted and is_noted(item, rule, now):
                after = entered(item, rule, now, fence, granted, until)
            if granted < wanted and not from_line:
                after = lined_up(after, now) or after
            return None if after is item else after

        after = await self._change_gate(name, plan)
        return granted, after

    async def _leave(self, name: str, fence: UUID, amount: int) -> None:
        """Give slots back that nothing was claimed for. If it cannot be written, their lease ends."""

        def plan(item: GateItem, *_: Any) -> GateItem | None:
            return left(item, {slot_name(fence): amount}) if slot_name(fence) in item.slots else None

        with suppress(LedgerAwayError):
            self._heed_gate(await self._change_gate(name, plan, as_known=True))

    async def _found_empty(self, name: str) -> None:
        def plan(item: GateItem, _: GateRule, now: datetime) -> GateItem | None:
            return forgets_line(item, now) if item.lined_up_at is not None else None

        await self._change_gate(name, plan)

    async def _settle_gates(self, settlements: Sequence[Settlement]) -> None:
        """Tell gates what became of their claims. The settlements are written: with many gates, they do not wait for all of them."""
        telling = asyncio.ensure_future(self._tell_gates(settlements))
        self._telling.add(telling)
        telling.add_done_callback(self._told_gates)
        for told in (await asyncio.wait({telling}, timeout=self._tell_within.total_seconds()))[0]:
            told.result()

    def _told_gates(self, told: "asyncio.Future[None]") -> None:
        self._telling.discard(told)
        if not told.cancelled() and (error := told.exception()) is not None:
            self._tell_trouble("gates that were not told of settlements", error)

    async def _tell_gates(self, settlements: Sequence[Settlement]) -> None:
        """One write for each gate. If it cannot be written, that is no error of the settlements: a slot comes back by its lease."""
        by_gate: dict[str, list[Settlement]] = defaultdict(list)
        for one in settlements:
            if one.claim.task.gate is not None:
                by_gate[one.claim.task.gate].append(one)
        places = asyncio.Semaphore(AT_ONCE_MAX)

        async def tell(name: str, some: Sequence[Settlement]) -> None:
            async with places:
                with suppress(LedgerAwayError):
                    # Whoever claims behind a gate has just seen it. Where it need not know, it is not even read.
                    rule, known = await self.rule_of(name), self._last_seen(name)
                    lost = any(one.claim.abandoned is not None for one in some)
                    holders = {slot_name(fence_of(one.claim)) for one in some}
                    unseen = lost or (rule.concurrency is not None and not holders <= known.slots.keys())
                    if unseen or answered(known, rule, self._now(), some):
                        self._heed_gate(
                            await self._change_gate(
                                name,
                                lambda item, rule, now: answered(item, rule, now, some),
                                as_known=not unseen,
                                anew=unseen,
                            )
                        )

        await asyncio.gather(*(tell(name, some) for name, some in by_gate.items()))

    async def _extend_slots(
        self, claims: Iterable[Claim], until: datetime, *, as_known: bool = True
    ) -> dict[str, GateItem]:
        """Give the slots of claims as much time as the claims have; their gates. Not `as_known` where the claim itself may not have been heard of."""
        holders: dict[str, set[str]] = defaultdict(set)
        for claim in claims:
            if claim.task.gate is not None:
                holders[claim.task.gate].add(slot_name(fence_of(claim)))
        found: dict[str, GateItem] = {}

        async def extend(name: str) -> None:
            with suppress(LedgerAwayError):
                found[name] = await self._change_gate(
                    name, lambda item, *_: extended(item, holders[name], until), as_known=as_known
                )

        await asyncio.gather(*map(extend, holders))
        return found

    # --- lines ----------------------------------------------------------------------------------------------------------

    def _heed_gate(self, item: GateItem) -> None:
        """Look at the line of a gate soon, if it has one: it may let something through."""
        if item.has_line:
            self._woken[item.gate.name] = None
            self._arrivals.wake()

    async def _gates_to_look_at(self) -> list[str]:
        """The gates whose lines are to be looked at now: those that were heard of, and those whose time has come."""
        names, self._woken = dict(self._woken), {}
        if time.monotonic() >= self._shelf_at:
            # Twice as often as a change must be seen by everybody.
            self._shelf_at = time.monotonic() + self._gates_fresh.total_seconds()
            names |= dict.fromkeys(await self._on_shelf(self._now(), SHELF_LOOKED_AT))
        return list(names)

    async def _on_shelf(self, until: datetime | None, limit: int) -> list[str]:
        """The gates with a line, the first to be looked at first."""
        return [name for name, _ in await self._shelf(until, limit)]

    async def _shelf(self, until: datetime | None, limit: int) -> list[tuple[str, int]]:
        sort = None if until is None else ("look_at", "<=", look_text(until))
        asked = query(("due_shard", shelf_of(self.name)), sort, index="DueIndex", limit=limit)
        prefix = gate_key(self.name, "")[0]
        items = await self.dynamo.query(asked, items_max=limit)
        return [(item["pk"]["S"].removeprefix(prefix), int(item["look_at"]["S"])) for item in items]

    # --- limits ---------------------------------------------------------------------------------------------------------

    async def set_rule(
        self,
        pattern: str,
        rule: GateRule | None,
        actor: Actor,
        *,
        by_code: bool = False,
        version: int | None = None,
    ) -> bool:
        """See `OperatorLedger.set_rule`."""
        check_text("pattern", pattern, GATE_CHARS_MAX)
        if is_of_kinds(pattern):
            raise UsageError(f"{pattern!r} can only be paused: limits are for gates, which are endpoints here")
        if not (by_code or actor.reason):
            raise UsageError(NO_REASON)
        if rule is not None:
            check_limits(self.name, rule)

        async def plan() -> Action | None:
            there = (await self.rules(anew=True)).get(pattern)
            if by_code and there is not None and there.set_by != CODE:
                return None
            if rule is None:
                gone = Delete((board_of(self.name), pattern))
                return None if there is None else gone.require("mark", "=", there.mark).action()
            if there is not None and there.rule == rule:
                return None
            who = CODE if by_code else actor.name
            return rule_action(self.name, pattern, there, RuleItem(rule, who, actor.reason, self._now(), uuid4().hex))

        if by_code:
            changed = await self._set_by_code(plan)
        else:
            act = "limits set" if rule is not None else "limits removed"
            changed = await self._act_on_gate(pattern, act, actor, version, plan)
        if changed:
            await self.rules(anew=True)
            await self._wake_lines(pattern)
        return changed

    async def _set_by_code(self, plan: Callable[[], Any]) -> bool:
        for _ in range(TRIES_MAX):
            action = await plan()
            if action is None:
                return False
            try:
                await self.dynamo.write([action])
            except RefusedError:
                continue  # another process has set it, or we ourselves: then it is as it is to be
            return True
        return False

    async def _wake_lines(self, pattern: str) -> None:
        """Have the lines of those gates looked at that a pattern fits: other limits may let something through."""
        names = [name for name in await self._on_shelf(None, WOKEN_MAX) if fits(pattern, name)]
        for name in names:
            await self._change_gate(name, lambda item, *_: item, hurried=True)

    # --- people ---------------------------------------------------------------------------------------------------------

    async def pause_gate(
        self, name: str, actor: Actor, *, span: Span | None = None, version: int | None = None
    ) -> bool:
        """See `OperatorLedger.pause_gate`."""
        lasts = None if span is None else read_span("span", span)

        def pause(gate: Gate, now: datetime) -> Gate | None:
            until = None if lasts is None else now + lasts
            return paused(gate, now, by=actor.name, reason=actor.reason, until=until)

        return await self._change_pause(name, "paused", actor, version, pause)

    async def resume_gate(self, name: str, actor: Actor, *, version: int | None = None) -> bool:
        """See `OperatorLedger.resume_gate`."""

        def resume(gate: Gate, now: datetime) -> Gate | None:
            return resumed(gate) if gate.is_paused(now) else None

        return await self._change_pause(name, "resumed", actor, version, resume)

    async def _change_pause(
        self,
        name: str,
        act: str,
        actor: Actor,
        version: int | None,
        change: Callable[[Gate, datetime], Gate | None],
    ) -> bool:
        check_text("gate", name, GATE_CHARS_MAX)
        if not actor.reason:
            raise UsageError(NO_REASON)

        async def plan() -> Action | None:
            before = (await self.gate_items([name], anew=True))[name]
            now = self._now()
            gate = change(before.gate, now)
            if gate is None:
                return None
            rule = await self.rule_of(name)
            after = self._marked(before._replace(gate=gate, look_at=None), rule, now, hurried=True)
            return gate_action(self.name, before, after)

        changed = await self._act_on_gate(name, act, actor, version, plan)
        if changed and not is_of_kinds(name):
            self._heed_gate((await self.gate_items([name], anew=True))[name])
        return changed

    async def last_deeds(self, names: Iterable[str]) -> dict[str, int]:
        """The numbers of the last deeds to gates or patterns; 0 where there was none."""
        keys = {deeds_key(self.name, name): name for name in names}
        found = await self.dynamo.get_many(keys)
        return {name: from_item(found[key])["deeds"] if key in found else 0 for key, name in keys.items()}

    async def _act_on_gate(
        self, name: str, act: str, actor: Actor, version: int | None, plan: Callable[[], Any]
    ) -> bool:
        """Do what a person wants, with who did it and why in the same write, once: whoever saw an older number is told so."""
        place, deed, act = deeds_key(self.name, name), uuid4().hex, f"gate {act}"
        for _ in range(TRIES_MAX):
            item = await self.dynamo.get(place)
            last = {} if item is None else from_item(item)
            if last.get("deed") == deed:
                return True  # the answer was lost, the write was made
            number = last.get("deeds", 0)
            if version is not None and version != number:
                said = f"{last['actor']} was quicker ({last['act']})" if last else "somebody else acted"
                raise StaleError(f"{said} on {name!r} since you looked: look again, then decide")
            action = await plan()
            if action is None:
                if version is None or (await self.last_deeds([name]))[name] == number:
                    return False
                continue  # there is nothing to do since somebody was quicker
            count = Update(place).set("deeds", number + 1).set("deed", deed).set("actor", actor.name).set("act", act)
            count = count.require("deeds", "=", number) if number else count.require_absent("deeds")
            told = audit_action(
                (place[0], f"H#{number + 1:010}#{deed}"),
                self.name,
                deed_of(name),
                deed,
                act,
                actor,
                self._now(),
            )
            try:
                await self.dynamo.write([action, count.action(), told])
            except RefusedError:
                continue
            return True
        raise LedgerAwayError(f"{name!r} was changed by others {TRIES_MAX} times in a row: try again")


def _raised(before: GateItem, after: GateItem) -> Gate:
    """The gate with the number of the version that was just written."""
    return replace(after.gate, version=before.gate.version + 1)
