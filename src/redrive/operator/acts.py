"""What people and systems do to many tasks at once: redrive, cancel, resolve; and the one loop that acts page by page.

What is acted on is frozen first: only tasks that were in the right state at one instant (`until`), and never more than were
shown (`at_most`). So a task that fails again meanwhile is met once. The ledger changes only rows that are still in the right
state: two people who press at once act once. Each act is recorded with who and why.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TypedDict

from redrive.core.effect_mark import EffectMark
from redrive.core.states import Act, State, check_transition
from redrive.core.task import Task, TaskId
from redrive.errors import TooSlowError, UsageError
from redrive.events import Event, TasksChanged
from redrive.operator.names import Names, read_names
from redrive.operator.ports import OperatorLedger, TaskPages
from redrive.operator.whole_acts import as_one_act
from redrive.ports import Actor, Filter, Page, WholeAct

CHUNK = 500
PAST = {Act.REDRIVE: "redriven", Act.CANCEL: "cancelled", Act.RESOLVE: "resolved"}

UNANSWERED = "nobody knows whether its effect happened: answer that first"

Which = Filter | Names
"""The tasks to act on: an id, a key, several of either, or a filter."""
Progress = Callable[[int], None]
"""Is told after each page how many tasks it held."""


class ActOptions(TypedDict, total=False):
    """How an act on many is done."""

    dry_run: bool
    """Only count."""
    until: datetime | None
    """Only what was in the right state at this instant already."""
    at_most: int | None
    progress: Progress | None
    whole: WholeAct | None
    """The larger act that this is a part of, if it is: the audit shows them as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What an act on many came to: the ids that changed, and of others why they did not.

    `matched` is how many tasks were in the right state; a dry run says just that. `until` is the instant that the act was
    frozen at. An act that takes too long stops between two pages and is not `complete`: the same again with its `until` goes on.
    """

    changed: Sequence[TaskId] = ()
    refused: Mapping[TaskId, str] = field(default_factory=dict)
    matched: int = 0
    until: datetime | None = None
    complete: bool = True


@dataclass(slots=True)
class Tally:
    """What a loop over pages has come to so far."""

    changed: list[TaskId] = field(default_factory=list)
    unchanged: list[TaskId] = field(default_factory=list)
    """Those that matched, and that somebody else changed before us."""
    matched: int = 0
    complete: bool = True


async def act_on_pages(
    next_page: Callable[[TaskId | None, int], Awaitable[Page[TaskId]]],
    change: Callable[[Sequence[TaskId]], Awaitable[Iterable[TaskId]]],
    *,
    at_most: int | None = None,
    within: timedelta | None = None,
    progress: Progress | None = None,
) -> Tally:
    """Act page by page on what `next_page(cursor, limit)` gives, until there is no more, or time is up.

    `change` says which of the ids it was given have changed. A look that takes too long after something has changed is not
    an error: what has changed must be told.
    """
    tally = Tally()
    ends = None if within is None else time.monotonic() + within.total_seconds()
    cursor: TaskId | None = None
    while limit := CHUNK if at_most is None else max(0, min(CHUNK, at_most - tally.matched)):
        try:
            page = await next_page(cursor, limit)
            changed = list(await change(page.items)) if page.items else []
        except TooSlowError:
            if not tally.changed:
                raise
            tally.complete = False
            break
        tally.matched += len(page.items)
        tally.changed += changed
        if len(changed) < len(page.items):
            done = set(changed)
            tally.unchanged += [id_ for id_ in page.items if id_ not in done]
        if progress is not None:
            progress(len(page.items))
        cursor = page.cursor
        if cursor is None:
            break
        if ends is not None and time.monotonic() > ends:
            tally.complete = False
            break
    return tally


class Acts:
    """Acts on the tasks of one ledger for a person or a system; what a filter means is read by its pages."""

    def __init__(self, ledger: OperatorLedger, pages: TaskPages, tell: Callable[[list[Event]], None]) -> None:
        self._ledger = ledger
        self._pages = pages
        self._tell = tell

    async def act(
        self,
        act: Act,
        end: State,
        which: Which,
        actor: Actor,
        *,
        dry_run: bool = False,
        until: datetime | None = None,
        at_most: int | None = None,
        within: timedelta | None = None,
        progress: Progress | None = None,
        whole: WholeAct | None = None,
    ) -> Acted:
        """Bring the tasks to `end`: waiting by a redrive, cancelled by a cancel, done or cancelled by a resolve."""
        before = State.WAITING if act is Act.CANCEL else State.DEAD
        self._check(act, before, end, actor)
        refused: Mapping[TaskId, str] = {}
        if not isinstance(which, Filter):
            ids, refused = await read_names(self._ledger, which)
            which = Filter(ids=ids)
        if which.state not in (None, before):
            raise UsageError(f"{act} takes {before} tasks only, not {which.state}")
        until = until or which.until
        if until is None and which.ids is None:  # ids are frozen by themselves
            until = await self._pages.present()
        asked = replace(which, state=before, until=until)
        if dry_run and asked.ids is None:
            matched = await self._pages.count(asked)
            return Acted(matched=matched if at_most is None else min(matched, at_most), until=until)

        named = None if asked.ids is not None else {one.name: getattr(asked, one.name) for one in fields(asked)}
        actor = actor if whole is None else replace(actor, whole=whole)
        alone = asked.ids is not None and len(asked.ids) == 1
        one_act = actor if alone else as_one_act(actor, f"{act} of {self._ledger.name} to {end}", named)

        async def change(ids: Sequence[TaskId]) -> Sequence[TaskId]:
            return ids if dry_run else await self._change(act, end, ids, one_act)

        tally = await act_on_pages(self._source(asked), change, at_most=at_most, within=within, progress=progress)
        left = tally.unchanged if asked.ids is None else set(asked.ids) - set(tally.changed)
        if tally.complete:
            refused = {**refused, **await self._reasons(act, before, list(left))}
        return Acted(
            changed=() if dry_run else tuple(tally.changed),
            refused=refused,
            matched=tally.matched,
            until=until,
            complete=tally.complete,
        )

    def _check(self, act: Act, before: State, end: State, actor: Actor) -> None:
        if not actor.name.strip():
            raise UsageError(f"{act} is recorded with who did it: give the actor a name")
        check_transition(act, before, end)
        if end is State.CANCELLED and self._ledger.table.words.cancelled is None:
            raise UsageError(f"{self._ledger.name!r} has no word for cancelled: its tasks cannot end as cancelled")

    def _source(self, asked: Filter) -> Callable[[TaskId | None, int], Awaitable[Page[TaskId]]]:
        """Pages of what is asked for. Ids that were given are looked at some at a time, without a cursor of the ledger."""
        ids = asked.ids

        async def by_filter(cursor: TaskId | None, limit: int) -> Page[TaskId]:
            return await self._pages.ids(asked, cursor=cursor, limit=limit)

        async def by_ids(cursor: TaskId | None, limit: int) -> Page[TaskId]:
            assert ids is not None
            start = int(str(cursor or 0))
            some = ids[start : start + limit]
            found = await self._pages.ids(replace(asked, ids=some), limit=limit)
            return Page(items=found.items, cursor=start + limit if start + limit < len(ids) else None)

        return by_filter if ids is None else by_ids

    async def _change(self, act: Act, end: State, ids: Sequence[TaskId], actor: Actor) -> list[TaskId]:
        match act:
            case Act.REDRIVE:
                changed = await self._ledger.redrive(ids, actor)
            case Act.CANCEL:
                changed = await self._ledger.cancel(ids, actor)
            case _:
                changed = await self._ledger.resolve(ids, end, actor)
        if changed:
            self._tell([TasksChanged(self._ledger.name, act, tuple(changed), actor.name, actor.reason)])
        return changed

    async def _reasons(self, act: Act, before: State, ids: Sequence[TaskId]) -> dict[TaskId, str]:
        """Why these did not change, as they stand now."""
        found: dict[TaskId, Task] = {}
        for start in range(0, len(ids), CHUNK):
            some = ids[start : start + CHUNK]
            found |= {task.id: task for task in (await self._ledger.find(Filter(ids=some), limit=CHUNK)).items}
        marks: dict[TaskId, EffectMark] = {}
        if act is Act.REDRIVE and self._ledger.effects is not None:
            for start in range(0, len(ids), CHUNK):
                marks |= await self._ledger.effects.of(ids[start : start + CHUNK])
        unanswered = {id_ for id_, mark in marks.items() if mark.is_open}
        return {id_: UNANSWERED if id_ in unanswered else _reason(act, before, found.get(id_)) for id_ in ids}


def _reason(act: Act, before: State, task: Task | None) -> str:
    if task is None:
        return "there is no such task"
    if task.state is before:
        return "it has changed since it was looked at: look again"
    return f"it is {task.state}: only {before} tasks can be {PAST[act]}"
