"""Bringing tasks back, or ending them, by ids or by filter: seen first, then done, and recorded with who and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from redrive.core.states import Act, State
from redrive.core.task import TaskId
from redrive.errors import UsageError
from redrive.events import Event, TasksChanged
from redrive.ports import Actor, Ledger, LedgerReader, Where

PAGE = 500


class ReadableLedger(Ledger, LedgerReader, Protocol):
    """A ledger that can be looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """How many tasks matched, and which of them changed. A dry run changes none."""

    matched: int
    changed: tuple[TaskId, ...] = ()


class Redriver:
    """Acts on the tasks of one ledger for a person or a system."""

    def __init__(self, ledger: ReadableLedger, tell: Callable[[list[Event]], None]) -> None:
        self._ledger = ledger
        self._tell = tell

    async def redrive(
        self,
        where: Where,
        actor: Actor,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Redriven:
        """Send dead tasks back to waiting, due now, with a fresh budget; their history stays."""
        return await self._act(Act.REDRIVE, State.DEAD, where, actor, dry_run=dry_run, progress=progress)

    async def cancel(
        self,
        where: Where,
        actor: Actor,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Redriven:
        """End waiting tasks as cancelled."""
        return await self._act(Act.CANCEL, State.WAITING, where, actor, dry_run=dry_run, progress=progress)

    async def resolve(self, ids: Sequence[TaskId], state: State, actor: Actor) -> list[TaskId]:
        """End dead tasks as done or cancelled, because a person has dealt with them; those that changed."""
        _check_actor(Act.RESOLVE, actor)
        changed = await self._ledger.resolve(ids, state, actor)
        self._announce(Act.RESOLVE, changed, actor)
        return changed

    async def _act(
        self,
        act: Act,
        before: State,
        where: Where,
        actor: Actor,
        *,
        dry_run: bool,
        progress: Callable[[int], None] | None,
    ) -> Redriven:
        _check_actor(act, actor)
        if where.state not in (None, before):
            raise UsageError(f"{act} takes {before} tasks only, not {where.state}")
        asked = replace(where, state=before)
        matched, changed = 0, list[TaskId]()
        # By increasing id: a task that changes, and even one that fails again meanwhile, is met once.
        after: TaskId | None = None
        while True:
            page = await self._ledger.find(asked, after=after, limit=PAGE)
            matched += len(page.tasks)
            if page.tasks and not dry_run:
                changed += await self._act_on(act, [task.id for task in page.tasks], actor)
            if progress is not None:
                progress(len(page.tasks))
            after = page.after
            if after is None:
                return Redriven(matched=matched, changed=tuple(changed))

    async def _act_on(self, act: Act, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        change = self._ledger.redrive if act is Act.REDRIVE else self._ledger.cancel
        changed = await change(ids, actor)
        self._announce(act, changed, actor)
        return changed

    def _announce(self, act: Act, changed: Sequence[TaskId], actor: Actor) -> None:
        if changed:
            self._tell([TasksChanged(self._ledger.name, act, tuple(changed), actor.name, actor.reason)])


def _check_actor(act: Act, actor: Actor) -> None:
    if not actor.name.strip():
        raise UsageError(f"{act} is recorded with who did it: give the actor a name")
