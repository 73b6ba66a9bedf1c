"""Passing gates: what is due is claimed as far as its gate lets it through, and parked otherwise; and lines are let through.

First the gate is asked, which takes slots and writes down that something is going to be parked; then the head is written, with what
is claimed and what is parked in one write. Who dies in between leaves slots that come back by their lease, and a line that is looked at
for nothing. All that is due of one gate among the heads of a batch is one write of the gate.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from redrive.core.gates import room, shut_for
from redrive.core.states import State
from redrive.core.task import Abandoned, Claim
from redrive.errors import LedgerAwayError
from redrive.ledgers.aws.attributes import Item, decode
from redrive.ledgers.aws.changes import claimed, parked, revise, taken_over
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Delete, Update, query
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.gate_items import GateItem, seen_of
from redrive.ledgers.aws.gates import ItemGating
from redrive.ledgers.aws.heads import (
    PARKED,
    Head,
    head_id,
    line_of,
    look_text,
    lost_parts,
    parked_key,
    said_of,
    task_id,
    task_of,
)

FENCES_MAX = 256
"""How many claims can be recalled."""
LINES_AT_ONCE = 8
"""How many lines are let through at once."""
SET_ASIDE = timedelta(hours=1)
"""When a parked part is looked at again whose head cannot be read: somebody may have corrected it."""

Numbers = Mapping[str, Sequence[str]]
"""Numbers of parts, by their heads."""


@dataclass(slots=True)
class Passes:
    """What gates say of parts that are due."""

    let_through: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The numbers of those that may go, by their heads."""
    parked: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    gates: dict[str, GateItem] = field(default_factory=dict)


class ItemPassing(ItemGating):
    """The part of the ledger that claims what gates let through."""

    async def _ask_gates(
        self, heads: Mapping[str, Head], due: Numbers, fence: UUID, lease: timedelta, *, from_line: bool = False
    ) -> Passes:
        """Ask the gates of parts that are due which of them may go, the first before the others."""
        passes, by_gate = Passes(), defaultdict[str, list[tuple[str, str]]](list)
        for id_, numbers in due.items():
            for number in numbers:
                by_gate[heads[id_].parts[number].target].append((id_, number))
        for id_, number in by_gate.pop("", ()):  # nobody can read where it is to go: it is claimed, and dead
            passes.let_through[id_].append(number)
        until = self._now() + lease + self._grace
        await self.gate_items(by_gate)  # all of them at once
        asked = [self._enter(name, len(places), fence, until, from_line=from_line) for name, places in by_gate.items()]
        for (name, places), (granted, item) in zip(by_gate.items(), await asyncio.gather(*asked), strict=True):
            passes.gates[name] = item
            for place, (id_, number) in enumerate(places):
                (passes.let_through if place < granted else passes.parked)[id_].append(number)
            if granted < len(places) and shut_for(item.gate, await self.rule_of(name), self._now()) is None:
                self._heed_gate(item)
        return passes

    async def _take(
        self,
        head: Head,
        most: int,
        lease: timedelta,
        fence: UUID,
        passes: Passes,
        held: Callable[[], Iterable[Claim]] = tuple,
    ) -> list[Claim]:
        """Claim what gates let through of a head, park what they keep back, and take over what was lost, up to `most` in all."""
        now = self._now()
        own = {(claim.task.id, claim.claim_id) for claim in held()}
        wanted, kept_back = passes.let_through.get(head.id, []), passes.parked.get(head.id, [])

        def plan(seen: Head) -> Change | None:
            due = [number for number in wanted if _is_due(seen, number, now)]
            back = [n for n in kept_back if _is_due(seen, n, now) and not seen.parts[n].parked]
            lost = [
                number
                for number in lost_parts(seen, now, self._grace)
                if (task_id(seen.id, number), seen.parts[number].fence) not in own
            ][: max(0, most - len(due))]
            parts = claimed(seen, due, fence, now, lease) | taken_over(seen, lost, now, lease, fence)
            parts |= parked(seen, back)
            return revise(seen, parts, self._follower, now, self._slack, keep_look=True) if parts else None

        self._note_fence(fence, head.id)
        change = await self._change(head, plan, lambda seen: any(part.fence == fence for part in seen.parts.values()))
        claims = [] if change is None else self._claims_of(change, passes.gates)
        await self._give_back(head, wanted, claims, fence, passes)
        return claims

    async def _give_back(
        self, head: Head, wanted: Iterable[str], claims: Sequence[Claim], fence: UUID, passes: Passes
    ) -> None:
        """Give back the slots of parts that somebody else was quicker to claim."""
        taken = {claim.task.id for claim in claims if claim.abandoned is None}
        missed = Counter(head.parts[number].target for number in wanted if task_id(head.id, number) not in taken)
        for name, amount in missed.items():
            if name in passes.gates:
                await self._leave(name, fence, amount)

    def _claims_of(self, change: Change, gates: Mapping[str, GateItem] | None = None) -> list[Claim]:
        """The claims that a change made, those that only bury a lost one marked."""
        claims = []
        for number, part in change.after.parts.items():
            before = change.before.parts[number]
            if part == before or part.state is not State.CLAIMED or part.fence is None:
                continue
            task = task_of(change.after, number, self.name)
            if before.state is State.WAITING:
                unreadable, gate = said_of(change.after, number), (gates or {}).get(part.target)
                seen = None if gate is None else seen_of(gate, part.fence)
                claims.append(Claim(task, part.fence, change.at, suspect=part.lost, unreadable=unreadable, seen=seen))
            else:
                lost = Abandoned(claim_id=part.fence, claimed_at=part.claimed_at, lost_alone=part.lost_alone)
                claims.append(Claim(task, part.fence, change.at, lost))
        return claims

    def _note_fence(self, fence: UUID, head_id: str) -> None:
        self._fences.setdefault(fence, set()).add(head_id)
        self._fences.move_to_end(fence)
        while len(self._fences) > FENCES_MAX:
            self._fences.popitem(last=False)

    # --- lines ----------------------------------------------------------------------------------------------------------

    async def _let_through(self, limit: int, lease: timedelta, fence: UUID) -> list[Claim]:
        """Claim what gates let through of their lines now, up to `limit`."""
        names, claims = await self._gates_to_look_at(), list[Claim]()
        while names and len(claims) < limit:
            some, names = names[:LINES_AT_ONCE], names[LINES_AT_ONCE:]
            most = max(1, (limit - len(claims)) // len(some))
            await self.gate_items(some)
            ends = await asyncio.gather(
                *(self._let_line_through(name, most, lease, fence) for name in some), return_exceptions=True
            )
            claims += [claim for end in ends if not isinstance(end, BaseException) for claim in end]
            for name, end in zip(some, ends, strict=True):
                if isinstance(end, BaseException):
                    self._woken[name] = None
                    if not isinstance(end, LedgerAwayError) or not claims:
                        raise end
        self._woken |= dict.fromkeys(names)
        return claims

    async def _let_line_through(self, name: str, most: int, lease: timedelta, fence: UUID) -> list[Claim]:
        """The same of one gate. Whatever it finds, the gate knows afterwards when to look at its line again."""
        item, rule, now = (await self.gate_items([name]))[name], await self.rule_of(name), self._now()
        amount = room(item.gate, rule, now, most)
        if amount < 1:
            await self._look_later(name)
            return []
        entries = await self.dynamo.query(
            query(("due_shard", line_of(name)), index="DueIndex", limit=amount), items_max=amount
        )
        if not entries:
            await self._found_empty(name)
            return []
        heads, numbers = await self._in_line(entries)
        passes = await self._ask_gates(heads, numbers, fence, lease, from_line=True)
        calls = [self._take(heads[id_], len(some), lease, fence, passes) for id_, some in passes.let_through.items()]
        claims = [claim for some in await self._each(calls) for claim in some]
        if not claims or len(entries) == amount == most:
            await self._look_later(name)
            self._woken[name] = None
        return claims

    async def _look_later(self, name: str) -> None:
        """Note when the line is to be looked at next, if the time that is noted is over."""

        def plan(item: GateItem, _: object, now: datetime) -> GateItem | None:
            return item if item.look_at is not None and item.look_at <= now else None

        await self._change_gate(name, plan)

    async def _in_line(self, entries: Sequence[Item]) -> tuple[dict[str, Head], dict[str, list[str]]]:
        """The heads of a line's entries, and which of their parts stand in it. An entry of a part that does not is taken out."""
        heads, unreadable = await self._find_heads({head_id(entry) for entry in entries})
        numbers: dict[str, list[str]] = defaultdict(list)
        for entry in entries:
            id_, number = head_id(entry), entry["sk"]["S"].removeprefix(PARKED)
            part = heads[id_].parts.get(number) if id_ in heads else None
            if part is not None and part.parked:
                numbers[id_].append(number)
            else:
                await self._mend_line(entry, number, set_aside=id_ in unreadable)
        return heads, numbers

    async def _mend_line(self, entry: Item, number: str, *, set_aside: bool) -> None:
        """Take an entry out of a line, or put it off where its head cannot be read. One that was written anew is left alone."""
        key, look_at = parked_key(head_id(entry), number), decode(entry["look_at"])
        later = look_text(self._now() + SET_ASIDE)
        gone = (
            Update(key).require("look_at", "=", look_at).set("look_at", later)
            if set_aside
            else Delete(key).require("look_at", "=", look_at)
        )
        with suppress(RefusedError):  # the index was behind
            await self.dynamo.write([gone.action()])


def _is_due(head: Head, number: str, now: datetime) -> bool:
    part = head.parts.get(number)
    return part is not None and part.state is State.WAITING and (part.due_at is None or part.due_at <= now)
