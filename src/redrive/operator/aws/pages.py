"""Pages of deliveries, with what the indexes serve.

Those that are open or dead are listed by their ids; those that died of one cause by the time of their death. What has ended otherwise is
listed by user, in the inbox, and asking for it here is refused with a sentence that says so. An index only says where to look: everything
on a page is read from the table, and is there once it was written for about a second.

A page may be short and still have a cursor: a look goes past so many that do not fit, and no more.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from redrive.core.cause import cause_of
from redrive.core.states import State
from redrive.core.task import Task, TaskId
from redrive.errors import TooSlowError, UsageError
from redrive.ledgers.aws.attributes import to_iso
from redrive.ledgers.aws.heads import split_id
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.reader import ROUNDS_MAX, id_at
from redrive.operator.cursors import Position, read_cursor, write_cursor
from redrive.operator.shown_errors import shows
from redrive.ports import PAGE_MAX, Filter, Page, check_limit

COUNT_WITHIN = timedelta(seconds=10)


class ItemTaskPages:
    """The deliveries of one ledger; see `TaskPages`. `limited` is for people who wait: a count gives up in time."""

    def __init__(self, ledger: DynamoLedger, *, limited: bool = True) -> None:
        self._ledger = ledger
        self._limited = limited

    async def page(
        self, asked: Filter, *, cursor: TaskId | None = None, limit: int = 50, newest_first: bool = False
    ) -> Page[Task]:
        """See `TaskPages.page`."""
        check_limit(limit)
        if asked.cause is not None and asked.ids is None and asked.key is None:
            return await self._caused(asked, cursor, limit, newest_first=newest_first)
        behind = None if cursor is None else str(cursor)
        if behind is not None and split_id(behind) is None:
            raise UsageError("the cursor belongs to another filter: begin again without it")
        if asked.error is None:
            return await self._ledger.find(asked, cursor=behind, limit=limit, newest_first=newest_first)
        return await self._showing(asked, behind, limit, newest_first=newest_first)

    async def ids(
        self, asked: Filter, *, cursor: TaskId | None = None, limit: int = 500, newest_first: bool = False
    ) -> Page[TaskId]:
        """See `TaskPages.ids`."""
        found = await self.page(asked, cursor=cursor, limit=limit, newest_first=newest_first)
        return Page(items=[task.id for task in found.items], cursor=found.cursor)

    async def due_until(self, end: datetime, *, limit: int = 2000) -> list[datetime]:  # noqa: ARG002
        """See `TaskPages.due_until`. The queue hands deliveries out when they are due, and does not tell of them before."""
        return []

    async def count(self, asked: Filter) -> int:
        """See `TaskPages.count`: page by page."""
        amount, cursor, ends = 0, None, time.monotonic() + COUNT_WITHIN.total_seconds()
        while True:
            page = await self.page(asked, cursor=cursor, limit=PAGE_MAX)
            amount += len(page.items)
            cursor = page.cursor
            if cursor is None:
                return amount
            if self._limited and time.monotonic() > ends:
                raise TooSlowError(f"there are more than {amount:,} tasks to look at")

    async def present(self) -> datetime:
        """See `TaskPages.present`."""
        return self._ledger.now()

    async def _showing(self, asked: Filter, behind: TaskId | None, limit: int, *, newest_first: bool) -> Page[Task]:
        """Those whose error shows the text as people see it. Without a state only the dead are looked through."""
        named = asked.ids is not None or asked.key is not None
        every = replace(asked, error=None, state=asked.state or (None if named else State.DEAD))
        found: list[Task] = []
        for _ in range(ROUNDS_MAX):
            page = await self._ledger.find(every, cursor=behind, limit=limit, newest_first=newest_first)
            found += [task for task in page.items if shows(task.last_error, asked.error or "")]
            if len(found) > limit:
                return Page(items=found[:limit], cursor=found[limit - 1].id)
            behind = page.cursor
            if behind is None:
                break
        return Page(items=found, cursor=behind)

    async def _caused(self, asked: Filter, cursor: TaskId | None, limit: int, *, newest_first: bool) -> Page[Task]:
        """Those that died of one cause, in the order in which they died."""
        fits = self._fits(asked)
        place = None if cursor is None else _place_of(read_cursor(str(cursor), self._ledger.read_id))
        found: list[tuple[str, Task]] = []
        for _ in range(ROUNDS_MAX):
            places = await self._ledger.caused(asked.cause or "", place, amount=limit + 1, backwards=newest_first)
            tasks = {str(task.id): task for task in await self._ledger.tasks(map(id_at, places))}
            found += [(one, tasks[id_at(one)]) for one in places if id_at(one) in tasks and fits(tasks[id_at(one)])]
            if len(found) > limit or len(places) <= limit:
                place = found[limit - 1][0] if len(found) > limit else None
                break
            place = places[-1]
        following = None if place is None else write_cursor(_position_of(place))
        return Page(items=[task for _, task in found[:limit]], cursor=following)

    def _fits(self, asked: Filter) -> Callable[[Task], bool]:
        now = asked.until or self._ledger.now()
        before = None if asked.older_than is None else now - asked.older_than

        def fits(task: Task) -> bool:
            ended_at = task.updated_at
            return (
                task.state is State.DEAD
                and cause_of(task.last_error).id == asked.cause
                and asked.kind in (None, task.kind)
                and (asked.error is None or shows(task.last_error, asked.error))
                and (before is None or (ended_at is not None and ended_at <= before))
                and (asked.until is None or (ended_at is not None and ended_at <= asked.until))
            )

        return fits


def _position_of(place: str) -> Position:
    at, _, id_ = place.partition("#")
    return Position(datetime.fromisoformat(at), id_)


def _place_of(position: Position) -> str:
    position.check(datetime)
    return f"{to_iso(position.at)}#{position.id}"
