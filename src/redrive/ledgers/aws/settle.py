"""Settling: what tries came to, with their attempts and all that follows, in as few transactions as possible.

Up to forty settlements share a transaction. If it is refused because some heads have changed, these are planned again as they are now;
what was lost is left out, and the rest is tried again, at last each head alone. Each settlement stands for itself: an error may leave
some of them written, and whoever repeats it learns which (`settled_by`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from redrive.core.cause import cause_of
from redrive.core.decide import Settlement
from redrive.core.states import Act, State, check_transition
from redrive.core.task import Claim, ClaimLost, Unwritten
from redrive.errors import LedgerAwayError, UsageError
from redrive.ledgers.aws.base import TRIES_MAX, FoundHeads, refuse_within
from redrive.ledgers.aws.changes import revise, settled
from redrive.ledgers.aws.client import ACTIONS_MAX, RefusedError
from redrive.ledgers.aws.expressions import query
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.gates import ItemGating
from redrive.ledgers.aws.heads import Head, UnreadableHeadError, head_from, split_id, task_id
from redrive.ledgers.aws.history import cause_action, stack_action
from redrive.ledgers.rollup import rolled_up
from redrive.ports import Within

SETTLEMENTS_MAX = 40
"""How many settlements share a transaction, if there is room: each needs up to two actions, and one each head and each owner."""
TOGETHER_MAX = 3
"""How often a group is tried before each head goes alone."""
CAUSES_MAX = 1_000
"""How many causes are remembered as written down."""

Group = dict[str, list[Settlement]]
"""Settlements by their heads."""


class ItemSettling(ItemGating):
    """The part of the ledger that writes settlements."""

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        within: Within | None = None,
        wait: timedelta | None = None,  # noqa: ARG002 - nothing is ever locked here
    ) -> list[Unwritten]:
        """See `Ledger.settle`."""
        refuse_within(within)
        _check(settlements)
        await self._note_stacks(settlements)
        written, lost = list[Settlement](), list[Settlement]()
        for wave in _waves(settlements):
            heads, unreadable = await self._known_heads({id_: some for group in wave for id_, some in group.items()})
            ends = await asyncio.gather(
                *(self._settle_group(group, heads, unreadable, worker) for group in wave), return_exceptions=True
            )
            for end in ends:
                if not isinstance(end, BaseException):
                    written += end[0]
                    lost += end[1]
            errors: list[BaseException] = [end for end in ends if isinstance(end, BaseException)]
            errors += unreadable.values()
            if errors:
                await self._settle_gates(written)
                await self._roll_up(written, worker)
                raise errors[0]
        await self._settle_gates([*written, *lost])
        await self._roll_up(written, worker)
        return [ClaimLost(one.claim) for one in lost]

    async def _known_heads(self, group: Group) -> FoundHeads:
        """These heads as they were left; those are read that are not remembered, or not as held under these claims."""
        known = {id_: self._known[id_] for id_, some in group.items() if _holds(self._known.get(id_), some)}
        read = await self._find_heads([id_ for id_ in group if id_ not in known])
        return FoundHeads(known | read.heads, read.unreadable)

    async def _settle_group(
        self,
        group: Group,
        heads: Mapping[str, Head],
        unreadable: dict[str, UnreadableHeadError],
        worker: str,
    ) -> tuple[list[Settlement], list[Settlement]]:
        """Write a group; which were written and which were lost. Those of heads that cannot be read are neither."""
        seen: dict[str, Head | None] = {id_: heads.get(id_) for id_ in group}
        for tries in range(TRIES_MAX):
            group = {id_: some for id_, some in group.items() if id_ not in unreadable}
            if tries == TOGETHER_MAX and len(group) > 1:
                known = {id_: head for id_, head in seen.items() if head is not None}
                ends = await asyncio.gather(
                    *(self._settle_group({id_: some}, known, unreadable, worker) for id_, some in group.items())
                )
                return [one for end in ends for one in end[0]], [one for end in ends for one in end[1]]
            changes, written, lost = self._planned(group, seen, unreadable, worker)
            if not changes:
                return written, lost
            counts: dict[str, dict[str, int]] = defaultdict(dict)
            for change in changes:
                for name, amount in change.counts.items():
                    counts[change.after.user_id][name] = counts[change.after.user_id].get(name, 0) + amount
            try:
                await self.dynamo.write([action for change in changes for action in change.actions], counts)
            except RefusedError as error:
                if not (error.uncertain and await self._is_ours(written[0].claim, worker)):
                    await self._look_anew(error, changes, seen, unreadable)
                    continue
            self._written(changes)
            await self._send_due(changes)
            return written, lost
        raise LedgerAwayError(f"settlements were refused {TRIES_MAX} times in a row: try again")

    def _planned(
        self,
        group: Group,
        seen: Mapping[str, Head | None],
        unreadable: dict[str, UnreadableHeadError],
        worker: str,
    ) -> tuple[list[Change], list[Settlement], list[Settlement]]:
        now, changes, written, lost = self._now(), list[Change](), list[Settlement](), list[Settlement]()
        for id_, some in group.items():
            head = seen[id_]
            made = settled(head, some, worker, now, self.table.count_to_store)
            if head is not None and made.parts:
                try:
                    change = revise(
                        head, made.parts, self._follower, now, self._slack, failures=made.failures, beside=made.beside
                    )
                except UnreadableHeadError as error:
                    unreadable[id_] = error
                    continue
                changes.append(change)
            written += made.written
            lost += made.lost
        return changes, written, lost

    async def _look_anew(
        self,
        error: RefusedError,
        changes: Sequence[Change],
        seen: dict[str, Head | None],
        unreadable: dict[str, UnreadableHeadError],
    ) -> None:
        """Take the heads that were refused as they are now: they come with the refusal."""
        place, unknown = 0, []
        for change in changes:
            mine = error.reasons[place : place + len(change.actions)]
            place += len(change.actions)
            if not any(reason.refused for reason in mine):
                continue
            if mine[0].item is None:
                unknown.append(change.after.id)
                continue
            try:
                head = head_from(mine[0].item)
            except UnreadableHeadError as bad:
                unreadable[bad.id] = bad
            else:
                seen[change.after.id] = None if head.tombstone else head
        if unknown:
            fresh = await self._find_heads(unknown)
            unreadable.update(fresh.unreadable)
            seen.update({id_: fresh.heads.get(id_) for id_ in unknown})

    async def _is_ours(self, claim: Claim, worker: str) -> bool:
        """Whether a transaction whose answer was lost was written: all of it was, if one of its attempts is ours."""
        return bool(await self.settled_by([claim], worker))

    async def settled_by(self, claims: Sequence[Claim], worker: str) -> list[Claim]:
        """See `Ledger.settled_by`."""
        ours = await asyncio.gather(*(self._attempts_by(claim, worker) for claim in claims))
        return [claim for claim, fences in zip(claims, ours, strict=True) if claim.claim_id in fences]

    async def _attempts_by(self, claim: Claim, worker: str) -> set[UUID]:
        place = split_id(claim.task.id)
        if place is None:
            return set()
        items = await self.dynamo.query(query(("pk", f"E#{place[0]}"), ("sk", "begins_with", f"A#{place[1]}#")))
        return {UUID(one["claim_id"]["S"]) for one in items if one["worker"]["S"] == worker}

    async def _roll_up(self, written: Sequence[Settlement], worker: str) -> None:
        """After the commit: in it, the minute would be the one item that all settlements fight for."""
        if written:
            await self._add_to_minute(worker, rolled_up(written))
            await self._note_causes(written)

    async def _note_stacks(self, settlements: Sequence[Settlement]) -> None:
        """Write down where errors came from, each stack once for a process, before the first attempt that names it."""
        new = self._stacks.among(settlements)
        for id_, frames in new.items():
            await self.dynamo.write([stack_action(id_, frames, self._now())])
            self._stacks.written([id_])

    async def _note_causes(self, written: Sequence[Settlement]) -> None:
        """Write down what tasks died of, each cause once for a process. What a kill loses here a census finds."""
        errors = {cause_of(one.error).id: one.error for one in written if one.state is State.DEAD and one.error}
        for cause, error in errors.items():
            if cause in self._causes:
                continue
            try:
                await self.dynamo.write([cause_action(self.name, error, self._now())])
            except RefusedError:
                pass  # somebody else has
            except LedgerAwayError:
                continue
            self._causes[cause] = None
            while len(self._causes) > CAUSES_MAX:
                self._causes.popitem(last=False)


def _holds(head: Head | None, settlements: Sequence[Settlement]) -> bool:
    """Whether a head holds the claims of all of these."""
    if head is None:
        return False
    held = {task_id(head.id, number): part.fence for number, part in head.parts.items()}
    return all(held.get(str(one.claim.task.id)) == one.claim.claim_id for one in settlements)


def _check(settlements: Sequence[Settlement]) -> None:
    for state in {one.state for one in settlements}:
        check_transition(Act.SETTLE, State.CLAIMED, state)
    for one in settlements:
        if (one.delay is None) is (one.state is State.WAITING):
            raise UsageError(
                f"a settlement has a delay if its task waits again, and only then, not {one.delay} and {one.state}"
            )


def _waves(settlements: Sequence[Settlement]) -> list[list[Group]]:
    """Settlements in groups that fit a transaction, and the groups in waves, so that no two of a wave touch one head. Pure."""
    by_head: dict[str, list[Settlement]] = defaultdict(list)
    for one in settlements:
        place = split_id(one.claim.task.id)
        by_head["" if place is None else place[0]].append(one)
    waves: list[list[Group]] = []
    for id_, some in by_head.items():
        for depth, start in enumerate(range(0, len(some), SETTLEMENTS_MAX)):
            if depth == len(waves):
                waves.append([])
            _add_to_group(waves[depth], id_, some[start : start + SETTLEMENTS_MAX])
    return waves


def _add_to_group(groups: list[Group], id: str, some: list[Settlement]) -> None:
    together = {**groups[-1], id: some} if groups else {}
    all_of_them = [one for each in together.values() for one in each]
    owners = {one.claim.task.payload["user_id"] for one in all_of_them}
    actions = 2 * len(all_of_them) + len(together) + len(owners)
    if not groups or len(all_of_them) > SETTLEMENTS_MAX or actions > ACTIONS_MAX:
        groups.append({id: some})
    else:
        groups[-1] = together
