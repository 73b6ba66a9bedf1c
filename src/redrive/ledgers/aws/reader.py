"""Reading: tasks, their history, and how many there are, with what the indexes serve. Nothing here scans.

An index only says where to look: every head that is shown is read strongly from the table. What was written less than a second ago may
be missing from a page, but nothing on it is old.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, TypeVar

from redrive.core.cause import cause_of
from redrive.core.stack import read_stack
from redrive.core.states import TERMINAL, State
from redrive.core.task import Attempt, Deed, Task, TaskId
from redrive.errors import UsageError
from redrive.ledgers.aws.attributes import Item, from_item
from redrive.ledgers.aws.base import ItemBase
from redrive.ledgers.aws.expressions import query
from redrive.ledgers.aws.gate_items import deeds_key, gate_named
from redrive.ledgers.aws.heads import (
    OPEN,
    SHARDS,
    UNDECODED,
    Head,
    UnreadableHeadError,
    line_of,
    split_id,
    task_id,
    task_of,
    waiting_parts,
)
from redrive.ledgers.aws.history import CAUSE_SHARDS, attempt_from, deed_from, ended_counts, failure_key, stack_key
from redrive.ports import Filter, Page, check_limit

T = TypeVar("T")

ROUNDS_MAX = 10
"""How many pages of an index one call reads; a page that is short then has a cursor all the same."""
CENSUS = "CE"
"""Where it is written down how many tasks a ledger has, by whoever counts them now and then."""
USERS_COUNTED_MAX = 100
"""The counters of so many users are added up at once; of more, the census has the sums."""
USERS_AT_ONCE = 32
DUE_LOOKED_AT = 3
"""How many heads of each shard are looked at for the oldest that is due; the first may be held."""


class ItemReading(ItemBase):
    """The part of the ledger that shows what is there."""

    async def find(
        self, filter: Filter, *, cursor: TaskId | None = None, limit: int = 100, newest_first: bool = False
    ) -> Page[Task]:
        """See `LedgerReader.find`."""
        check_limit(limit)
        self.check(filter)
        after = None if cursor is None else str(cursor)
        fits = self._fits(filter, after, backwards=newest_first)
        if filter.ids is not None or filter.key is not None:
            tasks = [task for task in await self.tasks(_named(filter)) if fits(task)]
            return _page(sorted(tasks, key=lambda task: str(task.id), reverse=newest_first), limit)
        listings = _listings(filter)
        pages = [
            await self._listed(listing, _both(fits, states), after, limit, backwards=newest_first)
            for listing, states in listings.items()
        ]
        return pages[0] if len(pages) == 1 else _merged(pages, limit, backwards=newest_first)

    def check(self, filter: Filter) -> None:
        """Raise `UsageError` for what no index serves."""
        if filter.kind is not None:
            raise UsageError(f"{self.name!r} has no column for kind: all of its tasks have the same")
        if filter.text is not None:
            raise UsageError(
                f"{self.name!r} is kept in DynamoDB, which cannot search for text: ask by id, state, error or cause"
            )
        named = filter.ids is not None or filter.key is not None
        if not named and not _listings(filter):
            raise UsageError(
                "ended deliveries are listed by user: ask for the inbox with status=delivered, "
                "or for deliveries that are waiting, claimed or dead"
            )

    def _fits(self, filter: Filter, after: str | None, *, backwards: bool) -> Callable[[Task], bool]:
        """Whether a task fulfils all that the filter asks and lies behind the cursor."""
        until = None if filter.older_than is None else self._now() - filter.older_than

        def fits(task: Task) -> bool:
            id_, changed_at = str(task.id), task.updated_at
            return (
                (after is None or (id_ < after if backwards else id_ > after))
                and (filter.state is None or task.state is filter.state)
                and (filter.error is None or filter.error.lower() in (task.last_error or "").lower())
                and (filter.cause is None or _has_cause(task, filter.cause))
                and (until is None or _not_after(changed_at, until))
                and (filter.until is None or _not_after(changed_at, filter.until))
            )

        return fits

    async def _listed(
        self, listing: str, fits: Callable[[Task], bool], after: str | None, limit: int, *, backwards: bool
    ) -> Page[Task]:
        """A page from a list: the shards are read side by side and merged, as often as it takes to fill the page."""
        found: list[Task] = []
        start = after
        for _ in range(ROUNDS_MAX):
            places = await self._places(listing, start, limit + 1, backwards=backwards)
            for task in await self._tasks_at(listing, places, backwards=backwards):
                if fits(task):
                    found.append(task)
            if len(found) > limit or len(places) <= limit:
                return _page(found, limit)
            start = places[-1]
        last = found[-1].id if found else start
        return Page(items=found, cursor=last)

    async def _places(self, listing: str, start: str | None, amount: int, *, backwards: bool) -> list[str]:
        """The next ids on a list, of heads where tasks are open and of tasks where they are dead."""
        sort = None
        if start is not None:
            place = split_id(start)
            # Some parts of the head at which the page before ended may still be to come.
            begin = place[0] if listing == "open" and place is not None else start
            inclusive = listing == "open" and place is not None
            comparison = ("<" if backwards else ">") + ("=" if inclusive else "")
            sort = ("listing_at", comparison, begin)
        asked = [
            query(("listing", f"{listing}#{shard}"), sort, index="ListIndex", backwards=backwards, limit=amount)
            for shard in range(SHARDS)
        ]
        found = await asyncio.gather(*(self.dynamo.query(one, items_max=amount) for one in asked))
        shards = [[item["listing_at"]["S"] for item in items] for items in found]
        return list(merge(*shards, reverse=backwards))[:amount]

    async def _tasks_at(self, listing: str, places: Sequence[str], *, backwards: bool) -> list[Task]:
        if listing == "dead":
            tasks = await self.tasks(places)
        else:
            found = await self._find_heads(places)
            tasks = await self._tasks_of((head, number) for head in found.heads.values() for number in head.parts)
            tasks += [self._unreadable(bad, number) for bad in found.unreadable.values() for number in bad.numbers]
        return sorted(tasks, key=lambda task: str(task.id), reverse=backwards)

    async def tasks(self, ids: Iterable[str]) -> list[Task]:
        """Those of the tasks that are there, with their errors, read strongly."""
        places = [place for place in map(split_id, ids) if place is not None]
        heads, unreadable = await self._find_heads({head_id for head_id, _ in places})
        there = [(heads[head_id], number) for head_id, number in places if head_id in heads]
        tasks = await self._tasks_of((head, number) for head, number in there if number in head.parts)
        bad = [(unreadable[head_id], number) for head_id, number in places if head_id in unreadable]
        return tasks + [self._unreadable(one, number) for one, number in bad if number in one.numbers]

    def _unreadable(self, bad: UnreadableHeadError, number: str) -> Task:
        """A task of a head that cannot be read, as far as it can be shown: it waits until somebody corrects it."""
        id_, said = task_id(bad.id, number), f"cannot be read: {bad.why}"
        return Task(id_, id_, self.name, said, State.WAITING, failures=0, last_error=str(bad))

    async def _tasks_of(self, parts: Iterable[tuple[Head, str]]) -> list[Task]:
        some = list(parts)
        failed = {failure_key(head.id, number) for head, number in some if head.parts[number].failed}
        failures = await self.dynamo.get_many(failed)

        def error_of(head: Head, number: str) -> str | None:
            item: Item = failures.get(failure_key(head.id, number), {})
            error: str | None = from_item(item).get("last_error")
            return error

        return [task_of(head, number, self.name, last_error=error_of(head, number)) for head, number in some]

    def read_id(self, text: str) -> TaskId:
        """The id that a person wrote; `UsageError` where none could look so."""
        if split_id(text) is None:
            raise UsageError(
                f"{text!r:.80} is not the id of a delivery: that is the id of its event, a dot and a number such as 00"
            )
        return text

    async def named(self, names: Sequence[str]) -> dict[str, set[TaskId]]:
        """The tasks that have each name as their id, which is their key as well."""
        there = {str(task.id) for task in await self.tasks(names)}
        return {name: {name} if name in there else set() for name in names}

    async def get(self, id: TaskId) -> Task | None:
        """See `LedgerReader.get`."""
        found = await self.tasks([str(id)])
        return found[0] if found else None

    async def get_by_key(self, key: str) -> Task | None:
        """See `LedgerReader.get_by_key`: the key is the id."""
        return await self.get(key)

    async def attempts(self, id: TaskId) -> list[Attempt]:
        """See `LedgerReader.attempts`."""
        attempts = self._readable(await self._beside(id, "A"), attempt_from)
        named = {str((one.explanation or {}).get("stack", "")) for one in attempts} - {""}
        kept = await self.dynamo.get_many(map(stack_key, sorted(named))) if named else {}
        stacks = {key[0].removeprefix("ST#"): read_stack(from_item(item)["frames"]) for key, item in kept.items()}
        return [replace(one, stack=stacks.get((one.explanation or {}).get("stack", ""), ())) for one in attempts]

    async def deeds(self, id: TaskId) -> list[Deed]:
        """See `LedgerReader.deeds`. What people did to a gate is found as `gate:NAME`."""
        if (gate := gate_named(id)) is not None:
            asked = query(("pk", deeds_key(self.name, gate)[0]), ("sk", "begins_with", "H#"))
            return self._readable(await self.dynamo.query(asked), deed_from)
        return self._readable(await self._beside(id, "H"), deed_from)

    def _readable(self, items: Iterable[Item], read: Callable[[Item], T]) -> list[T]:
        """What these items hold. One that cannot be read is told, and left out."""
        held = []
        for item in items:
            try:
                held.append(read(item))
            except UNDECODED as error:
                self._tell_trouble(f"item {item['pk']['S']} {item['sk']['S']} cannot be read", error)
        return held

    async def _beside(self, id: TaskId, letter: str) -> list[Item]:
        place = split_id(id)
        if place is None:
            return []
        head_id, number = place
        return await self.dynamo.query(query(("pk", f"E#{head_id}"), ("sk", "begins_with", f"{letter}#{number}#")))

    async def count_line(self, gate: str, *, counted_max: int) -> int:
        """How many tasks stand in the line of a gate."""
        return await self.dynamo.count(query(("due_shard", line_of(gate)), index="DueIndex"), counted_max=counted_max)

    async def counts(self, *, counted_max: int = 100_000) -> Mapping[State, int]:
        """See `LedgerReader.counts`: what is open is counted head by head, what has ended by the counters of all users.

        Where there are many users, what has ended is as the last census has counted it.
        """
        counted = {**await self.open_counts(counted_max), **await self._ended()}
        return {state: min(amount, counted_max) for state, amount in counted.items()}

    async def _ended(self) -> dict[State, int]:
        users = await self.dynamo.query(_users(USERS_COUNTED_MAX + 1), items_max=USERS_COUNTED_MAX + 1)
        if len(users) > USERS_COUNTED_MAX and (census := await self.dynamo.get((CENSUS, self.name))):
            amounts = from_item(census)["amounts"]
            return {state: int(amounts[state.value]) for state in TERMINAL}
        return ended_counts(await self.all_counters())

    async def open_counts(self, heads_max: int) -> dict[State, int]:
        """How many tasks wait and how many are held, among so many heads."""
        counted = dict.fromkeys(sorted(OPEN), 0)
        places = await self._places("open", None, heads_max, backwards=False)
        for head in (await self.heads(places)).values():
            for part in head.parts.values():
                if part.state in OPEN:
                    counted[part.state] += 1
        return counted

    async def all_counters(self) -> dict[str, int]:
        """The counters of all users, added up."""
        users = [item["listing_at"]["S"] for item in await self.dynamo.query(_users())]
        sums: dict[str, int] = {}
        for start in range(0, len(users), USERS_AT_ONCE):
            for counters in await asyncio.gather(*map(self.counters, users[start : start + USERS_AT_ONCE])):
                for name, amount in counters.items():
                    sums[name] = sums.get(name, 0) + amount
        return sums

    async def counters(self, user_id: str) -> dict[str, int]:
        """The counters of a user, all shards added up."""
        sums: dict[str, int] = {}
        for item in await self.dynamo.query(query(("pk", f"C#{user_id}"))):
            for name, amount in from_item(item).items():
                if name not in ("pk", "sk"):
                    sums[name] = sums.get(name, 0) + amount
        return sums

    async def oldest_due(self) -> timedelta | None:
        """How long the oldest due task has waited, among those that a sweep looks at first; None where none is due."""
        asked = [query(("due_shard", f"due#{shard}"), index="DueIndex", limit=DUE_LOOKED_AT) for shard in range(SHARDS)]
        found = await asyncio.gather(*(self.dynamo.query(one, items_max=DUE_LOOKED_AT) for one in asked))
        heads = await self.heads(item["pk"]["S"].removeprefix("E#") for items in found for item in items)
        dues = (part.due_at for head in heads.values() for part in waiting_parts(head).values())
        first, now = min((due for due in dues if due is not None), default=None), self._now()
        return None if first is None or first > now else now - first

    async def open_kinds(self) -> list[str]:
        """The one kind that there is: whether any of its tasks is open would be a question to every shard."""
        return [self.name]

    # --- causes -------------------------------------------------------------------------------------------------------

    async def caused(
        self, cause: str, after: str | None = None, *, amount: int | None = None, backwards: bool = False
    ) -> list[str]:
        """The places of dead tasks in the list of a cause, as many as wanted, by the time at which they died: see `id_at`."""
        sort = None if after is None else ("cause_at", "<" if backwards else ">", after)
        asked = [
            query(("cause_key", f"{cause}#{shard}"), sort, index="CauseIndex", backwards=backwards, limit=amount)
            for shard in range(CAUSE_SHARDS)
        ]
        found = await asyncio.gather(*(self.dynamo.query(one, items_max=amount) for one in asked))
        shards = [[item["cause_at"]["S"] for item in items] for items in found]
        return list(merge(*shards, reverse=backwards))[:amount]

    async def dead_after(self, start: str | None, amount: int) -> list[str]:
        """The next dead tasks behind this one, by their ids."""
        return await self._places("dead", start, amount, backwards=False)

    def now(self) -> datetime:
        """The instant, by the clock of this ledger."""
        return self._now()


def id_at(place: str) -> str:
    """The id of the task at a place in the list of a cause."""
    return place.partition("#")[2]


def _users(limit: int | None = None) -> dict[str, Any]:
    return query(("listing", "users"), index="ListIndex", limit=limit)


def _named(filter: Filter) -> set[str]:
    """The ids that a filter names; a key is one."""
    ids = {str(id_) for id_ in filter.ids} if filter.ids is not None else None
    if filter.key is None:
        return ids or set()
    return {filter.key} if ids is None else ids & {filter.key}


def _has_cause(task: Task, cause: str) -> bool:
    return task.state is State.DEAD and cause_of(task.last_error).id == cause


def _not_after(changed_at: datetime | None, until: datetime) -> bool:
    return changed_at is not None and changed_at <= until


def _listings(filter: Filter) -> dict[str, frozenset[State]]:
    """The lists on which there may be what a filter asks for, and the states that count there. Without a state: all that has not ended
    well, and of what has an error or a cause the dead."""
    dead = {"dead": frozenset({State.DEAD})}
    if filter.state is None:
        return dead if filter.error is not None or filter.cause is not None else {"open": OPEN, **dead}
    if filter.state in OPEN:
        return {"open": OPEN}
    return dead if filter.state is State.DEAD else {}


def _both(fits: Callable[[Task], bool], states: frozenset[State]) -> Callable[[Task], bool]:
    return lambda task: task.state in states and fits(task)


def _merged(pages: Sequence[Page[Task]], limit: int, *, backwards: bool) -> Page[Task]:
    """Pages of several lists as one, as far as all of them are known."""
    ends = [str(page.cursor) for page in pages if page.cursor is not None]
    end = (max(ends) if backwards else min(ends)) if ends else None
    tasks = sorted((task for page in pages for task in page.items), key=lambda task: str(task.id), reverse=backwards)
    known = [task for task in tasks if end is None or (str(task.id) >= end if backwards else str(task.id) <= end)]
    return _page(known, limit) if len(known) > limit else Page(items=known, cursor=end)


def _page(tasks: Sequence[Task], limit: int) -> Page[Task]:
    """The first of the tasks, and where to go on."""
    return Page(items=list(tasks[:limit]), cursor=tasks[limit - 1].id if len(tasks) > limit else None)
