"""Acts of people and systems: redriving, cancelling, resolving, returning; each with who did it and why."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from redrive.core.states import Act, State, check_transition
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.ledgers.aws.base import ItemBase, refuse_within
from redrive.ledgers.aws.changes import ActedParts, acted, returned, revise
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.follow import Change
from redrive.ledgers.aws.heads import Head, split_id, task_id
from redrive.ledgers.aws.history import act_action
from redrive.ports import Actor, Return, WholeAct, Within

TOGETHER_MAX = 32
"""How many parts of a head one act changes at once: each needs up to three actions of the hundred of a transaction."""
ENDING_ACTS = {Act.CANCEL: "cancelled", Act.BURY: "dead"}
"""Acts that end waiting tasks, and the column of the minute that counts them as settlements do."""


class ItemActing(ItemBase):
    """The part of the ledger that people and systems act through."""

    async def redrive(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `Ledger.redrive`."""
        return await self._act(Act.REDRIVE, State.WAITING, ids, actor)

    async def cancel(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """See `Ledger.cancel`."""
        return await self._act(Act.CANCEL, State.CANCELLED, ids, actor)

    async def resolve(self, ids: Sequence[TaskId], state: State, actor: Actor) -> list[TaskId]:
        """See `Ledger.resolve`."""
        check_transition(Act.RESOLVE, State.DEAD, state)
        return await self._act(Act.RESOLVE, state, ids, actor)

    async def bury(self, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        """Waiting tasks end as dead, because the system that owns them gives them up. Returns those that changed."""
        return await self._act(Act.BURY, State.DEAD, ids, actor)

    async def return_(self, returns: Sequence[Return], actor: Actor, *, within: Within | None = None) -> list[TaskId]:
        """See `Ledger.return_`. Each head stands for itself; a count goes up to the task's own maximum."""
        refuse_within(within)
        largest = {str(one.id): one for one in sorted(returns, key=lambda one: one.failures)}

        def act(head: Head, numbers: Sequence[str], deed: str) -> ActedParts:
            named = {number: largest[task_id(head.id, number)] for number in numbers}
            return returned(self.name, head, named, actor, deed, self._now())

        return await self._act_on(largest, act)

    async def prune(self, states: Sequence[State], older_than: timedelta, *, limit: int = 1000) -> int:  # noqa: ARG002
        """See `Ledger.prune`: refused."""
        if not states:
            return 0
        raise UsageError("events are pruned by their retention: set it, and the sweep deletes what is older")

    async def _act(self, act: Act, state: State, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        def change(head: Head, numbers: Sequence[str], deed: str) -> ActedParts:
            return acted(self.name, head, numbers, act, state, actor, deed, self._now())

        if len(ids) > 1 and actor.whole is None:
            actor = replace(actor, whole=WholeAct(id=uuid4().hex))
        if actor.whole is not None:
            await self._begin(act, actor, actor.whole)
        changed = await self._act_on(map(str, ids), change)
        if changed and act in ENDING_ACTS:
            await self._add_to_minute(f"act:{uuid4()}", {ENDING_ACTS[act]: len(changed)})
        return changed

    async def _begin(self, act: Act, actor: Actor, whole: WholeAct) -> None:
        """Write down the act before its first deed. One that changes nothing is shown to nobody."""
        with suppress(RefusedError):  # it goes on
            await self.dynamo.write([act_action(self.name, act.value, actor, whole, self._now())])

    async def _act_on(self, ids: Iterable[str], act: Callable[[Head, Sequence[str], str], ActedParts]) -> list[TaskId]:
        numbers: dict[str, set[str]] = defaultdict(set)
        for place in map(split_id, ids):
            if place is not None:
                numbers[place[0]].add(place[1])
        heads = await self.heads(numbers)
        done = await self._each(self._act_on_head(head, sorted(numbers[id_]), act) for id_, head in heads.items())
        return [id_ for some in done for id_ in some]

    async def _act_on_head(
        self, head: Head, numbers: Sequence[str], act: Callable[[Head, Sequence[str], str], ActedParts]
    ) -> list[TaskId]:
        """Act on parts of a head, some at a time. The deed that a part shows is the mark by which we know our own write."""
        changed: list[TaskId] = []
        for start in range(0, len(numbers), TOGETHER_MAX):
            some, deed = numbers[start : start + TOGETHER_MAX], uuid4().hex

            def plan(seen: Head, some: Sequence[str] = some, deed: str = deed) -> Change | None:
                made = act(seen, some, deed)
                if not made.parts:
                    return None
                return revise(seen, made.parts, self._follower, self._now(), self._slack, beside=made.beside)

            def ours(seen: Head, deed: str = deed) -> bool:
                return any(part.deed == deed for part in seen.parts.values())

            change = await self._change(head, plan, ours)
            if change is not None:
                head = change.after
                changed += [task_id(head.id, number) for number, part in head.parts.items() if part.deed == deed]
                await self._send_due([change])
        return changed
